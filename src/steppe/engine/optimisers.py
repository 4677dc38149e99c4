"""The local optimiser of a run: a name with settings, a part, a function on flat vectors, or a class of torch.optim."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from functools import partial
from numbers import Integral
from typing import Any

import torch

from steppe.config import OWN, Config, parse_local_schedule
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SettingError, quote, suggest_name
from steppe.core.part import Part
from steppe.parts.adamw import AdamW
from steppe.parts.own_optimiser import OwnOptimiser
from steppe.parts.rate_cycle import RateCycle
from steppe.parts.sgd import SGD
from steppe.runs.provenance import qualify_name
from steppe.settings import parse_named

NAMED: dict[str, type[Part]] = {"sgd": SGD, "adamw": AdamW}
# What PyTorch calls the settings of these; others have no counterpart.
TORCH: dict[type, tuple[type[Part], dict[str, str]]] = {
    torch.optim.SGD: (SGD, {"momentum": "momentum", "weight_decay": "decay"}),
    torch.optim.AdamW: (AdamW, {"betas": "betas", "eps": "eps", "weight_decay": "decay"}),
}


def take_optimiser(options: dict[str, Any]) -> Any:
    """Take an optimiser that is an object out of a run's options, and put its name there instead."""
    given = options.get("optimiser")
    if given is None or isinstance(given, str):
        return None
    options["optimiser"] = f"{OWN}{qualify_name(given.func if isinstance(given, partial) else given)}"
    return given


def tabulate_schedule(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a schedule that is a function of the round by its factors, so that records say what happened."""
    rule, rounds = values.get("lr_schedule"), values.get("rounds", Config.model_fields["rounds"].default)
    if not callable(rule) or not isinstance(rounds, Integral):  # which is refused later
        return dict(values)
    try:
        return {**values, "lr_schedule": [float(rule(t)) for t in range(int(rounds) + 1)]}
    except Exception as error:
        raise SettingError(f"lr_schedule fails: {error}. It is called with the round, from 0, and returns a factor of "
                           "lr", "lr_schedule") from error  # fmt: skip


def make_optimiser(config: Config, own: Any = None) -> Part:
    """Return the outermost part."""
    if own is None:
        name, settings = parse_named(config.optimiser) if not config.optimiser.startswith(OWN) else (OWN, {})
        if name == OWN:
            raise SettingError(f"The optimiser of this run is an object of your own ({config.optimiser}): pass it "
                               "again from Python, with optimiser=…", "optimiser")  # fmt: skip
        if name not in NAMED:
            raise SettingError(f"optimiser is {quote(name)}{suggest_name(name, NAMED)}", "optimiser")
        return _make(NAMED[name], name, _list_usual(NAMED[name], config) | settings)
    if isinstance(own, Part):
        return own
    kind = own.func if isinstance(own, partial) else own
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        return _translate(kind, own.keywords if isinstance(own, partial) else {}, config)
    if isinstance(kind, type) or not callable(kind):
        raise SettingError(f"optimiser is {quote(own)}: give sgd, adamw, a part, a function (gradient, w, memory, k) "
                           "-> direction, or torch.optim.SGD or AdamW, with settings as functools.partial",
                           "optimiser")  # fmt: skip
    return OwnOptimiser.of(own, qualify_name(kind), config.weight_decay, config.clip)


def make_local_schedule(config: Config) -> tuple[Part, ...]:
    """Return the part that changes the rate during a round, if there is one."""
    found = parse_local_schedule(config.local_schedule)
    return () if found is None else (RateCycle(end=found[1], shape=found[0]),)  # type: ignore[arg-type]


def find_unused_momentum(config: Config, algorithm: Algorithm) -> list[str]:
    """Return a note if the run's momentum is a setting of an optimiser that the algorithm does not have."""
    used = any(isinstance(p, SGD) and p.momentum for p in algorithm.parts)
    if used or not config.momentum:
        return []
    return [f"momentum = {config.momentum:g} has no effect, because it is a setting of the optimiser sgd, which this "
            "run does not have"]  # fmt: skip


def _list_usual(kind: type[Part], config: Config) -> dict[str, Any]:
    shared = {"decay": config.weight_decay, "clip": config.clip}
    return shared | ({"momentum": config.momentum} if kind is SGD else {})


def _make(kind: type[Part], name: str, settings: dict[str, Any]) -> Part:
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in settings:
        if key not in known:
            raise SettingError(
                f"the optimiser {name} has no setting {quote(key)}{suggest_name(key, known)}", "optimiser"
            )
    try:
        return kind(**settings)
    except SettingError as error:
        error.keys = ("optimiser",)  # the run's key, whatever the part calls its setting
        raise


def _translate(kind: type, settings: dict[str, Any], config: Config) -> Part:
    """Return our part for a class of torch.optim; refuse settings that it lacks."""
    if kind not in TORCH:
        raise SettingError(f"optimiser is {quote(kind)}, whose rule works on modules, not on flat "
                           "vectors: write it as a function (gradient, w, memory, k) -> direction, or take SGD, AdamW",
                           "optimiser")  # fmt: skip
    part, names = TORCH[kind]
    usual = {k: p.default for k, p in inspect.signature(kind).parameters.items()}
    found = _list_usual(part, config)
    for key, value in settings.items():
        if key == "lr":
            raise SettingError(
                "optimiser has an lr: set the key lr of the run, which the schedule changes", "optimiser"
            )
        if key not in names and value != usual.get(key):
            raise SettingError(f"optimiser: {key} of torch.optim.{kind.__name__} has no counterpart here: leave it out",
                               "optimiser")  # fmt: skip
        if key == "betas":
            found |= {"beta1": value[0], "beta2": value[1]}
        elif key in names:
            found[names[key]] = value
    return _make(part, kind.__name__, found)
