"""The provenance of a run: qualified names, hashes of data and model, versions of software and hardware."""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from importlib import metadata
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import steppe
from steppe.config import OWN
from steppe.core.algorithm import Algorithm
from steppe.core.losses import find_loss_name, find_loss_settings
from steppe.core.part import Part
from steppe.core.prediction import find_prediction
from steppe.core.shared_copies import hash_tensors
from steppe.experiment import Experiment
from steppe.registry import find_sources
from steppe.runs.trained_parameters import describe_base

FORMAT = 3  # of about.json; folders of version 0.1.0 have no number, and 2 had ambiguous texts of parts' settings


def qualify_name(thing: Any) -> str:
    """Return the qualified name of a class, a function or an object's class.

    >>> qualify_name(nn.Linear(1, 1)), qualify_name(qualify_name)
    ('torch.nn.modules.linear.Linear', 'steppe.runs.provenance.qualify_name')
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def is_ours(kind: Any) -> bool:
    return kind.__module__.startswith("steppe.")


def hash_structure(model: nn.Module) -> str:
    """Hash a model's modules and its tensors' names, shapes and types, but not their values."""
    tensors = [(k, tuple(v.shape), str(v.dtype)) for k, v in model.state_dict().items()]
    trained = [k for k, p in model.named_parameters() if p.requires_grad]
    return hashlib.sha256(repr((repr(model), tensors, trained)).encode()).hexdigest()[:16]


def describe_parts(algorithm: Algorithm) -> list[dict[str, Any]]:
    """Return every part's name, class and settings."""
    return [describe_part(p) for p in algorithm.parts]


def describe_part(part: Part) -> dict[str, Any]:
    """Return a part's name, class and settings; one that is called `part` or `type` gets a line after its name."""
    about = {"part": part.name, "type": qualify_name(part)}
    return about | {f"{k}_" if k in about else k: v for k, v in _describe_settings(part).items()}


def _describe_settings(part: Part) -> dict[str, Any]:
    own = {f.name: getattr(part, f.name) for f in fields(part)} if is_dataclass(part) else vars(part)
    return {k: describe_value(v) for k, v in own.items()}


def describe_value(value: Any) -> Any:
    """Return a setting as JSON, such that two that differ have different texts, also in another process.

    The text of an array may leave out its middle, and that of an object may be its address.

    >>> describe_value((0.1, torch.zeros(2)))
    [0.1, 'shape (2,), hash af0f426cb512e855']
    >>> describe_value({1: float("nan")}), describe_value(qualify_name)
    ({'1': 'nan'}, 'steppe.runs.provenance.qualify_name')
    """
    if isinstance(value, Tensor | np.ndarray):
        return f"shape {tuple(value.shape)}, hash {hash_tensors({'': torch.as_tensor(value)})}"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Part):  # the settings of ours say which one it is
        return _describe_settings(value) if is_ours(type(value)) else describe_part(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: describe_value(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): describe_value(v) for k, v in value.items()}
    if isinstance(value, Set):
        return sorted(map(str, map(describe_value, value)))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [describe_value(v) for v in value]
    if isinstance(value, nn.Module):
        return f"{' '.join(repr(value).split())}, hash {hash_tensors(value.state_dict())}"
    if isinstance(value, partial):
        return {"function": describe_value(value.func), "given": describe_value([*value.args, value.keywords])}
    if callable(value):
        return qualify_name(value) + (f", hash {_hash_text(code)}" if (code := _read_lambda(value)) else "")
    return text if " at 0x" not in (text := str(value)) else qualify_name(value)


def _read_lambda(function: Any) -> str:
    """Return the source of a function without a name, if it can be found, and of others that begin on its line.

    Not the line itself, in which other arguments of a call may change.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_name != "<lambda>":
        return ""
    with suppress(SyntaxError, ValueError):  # the file was changed meanwhile
        nodes = ast.walk(ast.parse("".join(linecache.getlines(code.co_filename))))
        return "; ".join(ast.unparse(n) for n in nodes if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno)
    return ""


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_sources(experiment: Experiment) -> dict[str, dict[str, str]]:
    """Record where the user's own code comes from: the hash of its file or, for an object in Python, of its source.

    The user's own classes from which it inherits are recorded, too.
    """
    config, task, parts = experiment.config, experiment.task, experiment.algorithm.parts
    sources = find_sources(config.algorithm, config.add)
    things: list[Any] = [task.loss_each, task.predict, *(getattr(p, "rule", None) for p in parts)]
    things += [getattr(m, kind) for m in task.metrics for kind in ("each", "tally", "on_all", "finish")]
    if config.model.startswith(OWN):
        things += {type(module): None for module in task.learner.modules()}
    if any(text.startswith(OWN) for text in (config.algorithm, *config.add)):
        things += map(type, parts)
    for thing in filter(callable, things):
        function = thing.func if isinstance(thing, partial) else thing
        code = function if inspect.isroutine(function) or isinstance(function, type) else type(function)
        for one in filter(is_users, code.__mro__ if isinstance(code, type) else [code]):
            with suppress(OSError, TypeError):  # typed into an interpreter, for instance
                text = _read_lambda(one) or inspect.getsource(one)
                sources[qualify_name(one)] = {"file": str(inspect.getsourcefile(one)),
                                              "sha256": hashlib.sha256(text.encode()).hexdigest()}  # fmt: skip
    return sources


def is_users(code: Any) -> bool:
    """Return whether a class or function is the user's own, and not of Steppe, PyTorch or another package."""
    with suppress(OSError, TypeError):  # builtins have no file
        return not is_ours(code) and not {"site-packages", "dist-packages", "torch"} & {
            *Path(inspect.getfile(code)).parts
        }
    return False


def describe(experiment: Experiment) -> dict[str, Any]:
    """Describe what the configuration does not contain, for about.json."""
    config, task, federation = experiment.config, experiment.task, experiment.federation
    data, split = federation.data, federation.partition
    own_model = config.model.startswith(OWN)
    named = {} if task.own_loss else {"name": find_loss_name(task.loss_each), **find_loss_settings(task.loss_each)}
    return {
        "format": FORMAT,
        "algorithm": experiment.algorithm.name,
        "parts": describe_parts(experiment.algorithm),
        **({"sources": sources} if (sources := describe_sources(experiment)) else {}),
        "cost": asdict(experiment.cost),
        "parameters": task.layout.size,
        "model": {"own": own_model, "type": qualify_name(task.learner), "structure": hash_structure(task.learner),
                  "initial": hash_tensors({"x0": task.x0}), "head": task.head, "own_head": task.own_head,
                  **describe_base(task),
                  **({} if task.predict is find_prediction else {"predict": qualify_name(task.predict)}),
                  **({} if own_model else {"name": config.model, "classes": data.outputs,
                                           "shape": list(data.shape)})},
        "data": {"own": config.data.startswith(OWN), "name": data.name,
                 "train": len(data.train_targets) if split else None,  # the nodes of a federation have them
                 "test": len(data.test_targets), "classes": data.classes, "hash": data.hash},
        "inputs": {"mean": list(data.mean), "std": list(data.std)},
        "loss": {"own": task.own_loss, "type": qualify_name(getattr(task.loss_each, "func", task.loss_each)),
                 **named},
        "metric": task.metric.record,
        "metrics": [m.record for m in task.metrics],
        "partition": {"rule": split.rule, "hash": split.hash,
                      **({} if data.by is None else {"by": "own values"})} if split else None,
    }  # fmt: skip


def find_versions(device: torch.device) -> dict[str, Any]:
    """Find the versions of hardware and software that can explain a different result."""
    packages = ("torch", "numpy", "safetensors", "pydantic")
    hardware = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    return {"steppe": steppe.__version__, "python": platform.python_version(), "device": str(device),
            "hardware": hardware, "threads": torch.get_num_threads(), "commit": _find_commit(),
            **{name: metadata.version(name) for name in packages}}  # fmt: skip


def _find_commit() -> str | None:
    """Return the git commit of the working directory, with a mark if files differ; $STEPPE_COMMIT replaces it."""
    if named := os.environ.get("STEPPE_COMMIT"):
        return named
    try:
        commit, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")
