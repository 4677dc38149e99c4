"""What has a name, and what it costs: read from the registries, never written down twice."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, get_args, get_origin

import torch

from steppe.algorithms import CATALOGUE
from steppe.config import RECIPES, Config, assign
from steppe.core.cost import cost
from steppe.core.errors import SteppeError, nearest
from steppe.core.settings import hints_of
from steppe.core.task import Task
from steppe.data import AUGMENTATIONS, DATASETS, PARTITIONS
from steppe.measures.during_training import MEASURES
from steppe.models import MODELS, build, describe
from steppe.parts.sgd import SGD
from steppe.registry import PARTS, make, parse_addition, settings_of


def list_catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """List everything that has a name, for `steppe list`."""
    return {
        "algorithms": {name: _describe_entry(f) for name, f in CATALOGUE.items()},
        "parts": {name: _describe_entry(f) for name, f in PARTS.items()},
        "data": {name: {"about": about} for name, (_, about) in DATASETS.items()},
        "partitions": {name: {"about": about} for name, (_, about) in PARTITIONS.items()},
        "augmentations": {name: {"about": repr(a).removeprefix("Augmentation")} for name, a in AUGMENTATIONS.items()},
        "models": {name: {"about": describe(name)} for name in MODELS},
        "measures": {name: {"about": m.about, "settings": {"for": m.kind} | ({"usual": True} if m.usual else {})}
                     for name, m in MEASURES.items()},
        "protocols": {"fine_tune": {
            "about": "judge each client's own model after some epochs on its own data, for any algorithm (FedAvg-FT is "
            "fedavg with it, FedSoL-FT is fedsol with it)", "settings": {"personal": "[1, 5]", "personal_lr": None}}},
        "recipes": {name: {"about": "", "settings": recipe} for name, recipe in RECIPES.items()},
        "keys": {name: {"about": f.description or "", "settings": {"default": f.get_default(call_default_factory=True)}}
                 for name, f in Config.model_fields.items()},
    }  # fmt: skip


def _describe_entry(function: Any) -> dict[str, Any]:
    about = (function.__doc__ or "").strip().splitlines()
    if isinstance(function, type):  # the file of a part describes its idea
        import inspect

        module = inspect.getmodule(function)
        if not function.__doc__ or function.__doc__.startswith(function.__name__ + "("):
            about = ((module.__doc__ if module else "") or "").strip().splitlines()
    entry: dict[str, Any] = {"about": about[0] if about else "", "settings": {}}
    hints = hints_of(function)
    for name, default in settings_of(function).items():
        entry["settings"][name] = default if default is None or isinstance(default, int | float | str) else "required"
        if get_origin(hints.get(name)) is Literal:
            entry.setdefault("choices", {})[name] = list(get_args(hints[name]))
    return entry


def trace_costs(names: list[str] | None, model: str, shape: tuple[int, ...], classes: int, batch: int, sets: list[str],
              add: list[str]) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
    """Trace the costs of algorithms (None: all) on a named model; each is also given as a multiple of FedAvg's."""
    task = Task(build(model, classes, shape))
    example = {"x": torch.zeros(batch, *shape), "y": torch.zeros(batch, dtype=torch.int64)}
    base = cost(make("fedavg", SGD()), task, example)
    rows = []
    for name in names or CATALOGUE:
        if name not in CATALOGUE:
            raise SteppeError(f"there is no algorithm {name!r}{nearest(name, CATALOGUE)}")
        settings = {}
        for text in sets:
            key, value = assign(text, settings_of(CATALOGUE[name]))
            settings[key.removeprefix("settings.")] = value
        found = cost(make(name, SGD(), settings, tuple(map(parse_addition, add))), task, example)
        ratio = (found.bytes_down + found.bytes_up) / (base.bytes_down + base.bytes_up)
        rows.append({"algorithm": name, **asdict(found), "bytes_x": ratio, "flops_x": found.flops / base.flops})
    return rows, task.layout.size
