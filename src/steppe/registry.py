"""Names to things: building an algorithm from its name, settings and further parts, with errors that help."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from steppe import parts as ideas
from steppe.algorithms import CATALOGUE, Parts
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SettingError, nearest, quote
from steppe.core.part import Part
from steppe.core.ranges import check_setting, read_hints
from steppe.settings import parse_named


def make(name: str, optimiser: Part, settings: dict[str, Any] | None = None, add: Parts = ()) -> Algorithm:
    """A catalogue entry with its settings, further parts inside or around it, and the local optimiser around all."""
    parts = configured(find_entry(name), f"algorithm {name!r}", settings or {})
    return assembled(parts, optimiser, add, name)


def find_entry(name: str) -> Callable[..., Parts]:
    """Return the catalogue's function of this name."""
    if name not in CATALOGUE:
        raise SettingError(f"there is no algorithm {quote(name)}{nearest(name, CATALOGUE)}", "algorithm")
    return CATALOGUE[name]


def assembled(parts: Parts, optimiser: Part, add: Parts, name: str) -> Algorithm:
    """Return every part in its place: see `Part.outer` and `Part.around_optimiser`."""
    together = (*(p for p in add if not p.outer), *parts, *(p for p in add if p.outer))
    inside = [p for p in together if not p.around_optimiser]
    around = [p for p in together if p.around_optimiser]
    label = "+".join([name, *(p.name for p in add)])
    return Algorithm((*inside, optimiser, *around), label)


def configured(function: Callable[..., Any], what: str, settings: dict[str, Any]) -> Any:
    """Call `function` with settings of the right names, types and ranges, or say which one is wrong."""
    defaults, hints = settings_of(function), read_hints(function)
    for key in settings:
        if key not in defaults:
            raise SettingError(f"{what} has no setting {quote(key)}{nearest(key, defaults)}", key)
    return function(**{key: check_setting(what, key, value, hints[key]) for key, value in settings.items()})


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings of a catalogue entry or a part with their defaults, in order."""
    return {k: p.default for k, p in inspect.signature(function).parameters.items()}


def catalogue_settings(name: str) -> dict[str, Any]:
    """Return the settings of an algorithm by name; none for an unknown one, which is refused later."""
    return settings_of(CATALOGUE[name]) if name in CATALOGUE else {}


def _discovered() -> dict[str, type[Part]]:
    """Return every part of the package `steppe.parts` that says it is addable, by its name."""
    modules = [import_module(f"{ideas.__name__}.{found.name}") for found in pkgutil.iter_modules(ideas.__path__)]
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type) and issubclass(c, Part)]
    return {c.name: c for c in sorted(classes, key=lambda c: getattr(c, "name", "")) if c.__dict__.get("addable")}


# What can be added to any algorithm. A part's `outer` says where it goes: closest to the loss (False), or around the
# algorithm's own parts (corrections of a finished direction, server rules); always inside the local optimiser.
PARTS: dict[str, type[Part]] = _discovered()


def parse_addition(text: str) -> Part:
    """Return a part from its name and settings.

    >>> parse_addition("ema"), parse_addition("sam:rho=0.05,eps=1e-7")
    (EMA(keep=0.99), SAM(rho=0.05, eps=1e-07, mix=1.0, ramp=0))
    """
    try:
        name, settings = parse_named(text)
        if name not in PARTS:
            raise SettingError(f"there is no part {quote(name)} to add{nearest(name, PARTS)}")
        missing = [k for k, v in settings_of(PARTS[name]).items() if v is inspect.Parameter.empty and k not in settings]
        if missing:
            raise SettingError(f"part {name!r} needs a value for {missing[0]}: write {name}:{missing[0]}=…")
        part: Part = configured(PARTS[name], f"part {name!r}", settings)
    except SettingError as error:
        error.keys = ("add",)  # whatever the part calls its setting, the run knows it by this key
        raise
    return part
