"""Build an algorithm from its name, settings and further parts, with helpful errors."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from steppe import parts as ideas
from steppe import references
from steppe.algorithms import CATALOGUE, Parts
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SettingError, SteppeError, quote, suggest_name
from steppe.core.part import Part
from steppe.core.part_class_checks import check_attributes, check_class
from steppe.core.ranges import check_setting, read_hints
from steppe.settings import parse_named, shorten, split_name

Given = Part | Sequence[Part] | Algorithm


def make_algorithm(name: str, optimiser: Part, settings: dict[str, Any] | None = None, add: Parts = ()) -> Algorithm:
    """Build a catalogue entry, or a user's own, from its settings, with further parts and the local optimiser."""
    found = call_with_settings(find_entry(name), f"algorithm {name!r}", settings or {})
    check_returned(found, f"algorithm {name!r}")
    return complete_algorithm(found, optimiser, add, shorten(name))


def check_returned(found: Any, what: str) -> None:
    """Refuse what a function of the user's own returns if it cannot be parts."""
    if not isinstance(found, Part | Algorithm | tuple | list):
        raise SettingError(f"{what} returns {quote(found)}, but must return a part, several parts, or a "
                           "steppe.Algorithm")  # fmt: skip


def find_entry(name: str) -> Callable[..., Any]:
    """Return the function of this name, from the catalogue or the user, that returns an algorithm's parts."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    return _find_own_function(name, "algorithm", references.ALGORITHMS, CATALOGUE)


def find_part(name: str) -> Callable[..., Any]:
    """Return the class of this name among the parts that can be added to any algorithm, or the user's own."""
    return PARTS[name] if name in PARTS else _find_own_function(name, "part", references.PARTS, PARTS)


def _find_own_function(name: str, kind: str, group: str, ours: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what a file, a module or an installed package has under this name: a class, a function, or its result."""
    first, _, rest = name.partition(":")
    if first in ours:  # the mistake in man:weight
        raise SettingError(f"{quote(rest)} is not a setting: write it as key=value", kind)
    reference = references.locate(name, group)
    if reference is None:
        known = _say_how_to_name(name) or suggest_name(name, {*ours, *references.list_installed(group)})
        raise SettingError(f"there is no {kind} {quote(name)}{' to add' if kind == 'part' else ''}{known}", kind)
    try:
        thing = references.load(reference)
    except SettingError as error:
        error.keys = (kind,)
        raise
    if isinstance(thing, Part | Algorithm | tuple | list):
        return lambda: thing
    if not callable(thing) or (isinstance(thing, type) and not issubclass(thing, Part)):
        raise SettingError(f"{name} is {quote(thing)}, but must be a part (a subclass of steppe.Part), a function that "
                           "returns parts, or a steppe.Algorithm", kind)  # fmt: skip
    function: Callable[..., Any] = thing
    return function


def _say_how_to_name(name: str) -> str:
    """Return how to name an object of the user's own if this looks like its file or module; otherwise nothing."""
    if name.endswith(".py") or references.find_file(f"{name}.py:"):
        file = name if name.endswith(".py") else f"{name}.py"
        return f"; to name what a file defines, write {file}:NAME, with settings {file}:NAME:key=value,key=value"
    module, _, last = name.rpartition(".")
    return f"; to name what a module defines, write {module}:{last}" if re.fullmatch(r"[\w.]+", module) else ""


def complete_algorithm(given: Given, optimiser: Part, add: Parts, name: str = "") -> Algorithm:
    """Return an algorithm from its parts; a complete one has its optimiser already."""
    if isinstance(given, Algorithm):
        check_parts(given.parts)
        return replace(given.plus(*add), name="+".join([given.name, *(p.name for p in add)]))
    parts = check_parts(given)
    return assemble(parts, optimiser, add, name or "+".join(p.name for p in parts))


def check_parts(given: Any) -> Parts:
    """Return one part or several as a tuple; refuse anything else."""
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    for p in parts:
        if not isinstance(p, Part):
            raise SettingError(f"{quote(p)} is not a part: give instances of steppe.Part (not classes), the name of an "
                               "algorithm, or a steppe.Algorithm")  # fmt: skip
        check_attributes(p)
        check_class(type(p))  # type: ignore[arg-type]  # a class is hashable
    return parts


def assemble(parts: Parts, optimiser: Part, add: Parts, name: str) -> Algorithm:
    """Put every part in its place: see `Part.outer` and `Part.around_optimiser`."""
    together = (*(p for p in add if not p.outer), *parts, *(p for p in add if p.outer))
    inside = [p for p in together if not p.around_optimiser]
    around = [p for p in together if p.around_optimiser]
    label = "+".join([name, *(p.name for p in add)])
    return Algorithm((*inside, optimiser, *around), label)


def call_with_settings(function: Callable[..., Any], what: str, settings: dict[str, Any]) -> Any:
    """Call `function` with settings of the right names, types and ranges, or say which one is wrong."""
    if isinstance(function, type) and issubclass(function, Part):
        check_class(function)  # type: ignore[arg-type]
    defaults, hints = list_settings(function), read_hints(function)
    for key in settings:
        if key not in defaults:
            known = suggest_name(key, defaults) if defaults else "; it has none"
            if isinstance(function, type) and issubclass(function, Part) and key in vars(function):
                known = (
                    f": {key} has no type in the class, so it is not a field of the dataclass; write {key}: TYPE = …"
                )
            raise SettingError(f"{what} has no setting {quote(key)}{known}", key)
    for key, default in defaults.items():
        if default is inspect.Parameter.empty and key not in settings:
            name = what.partition("'")[2].rstrip("'")
            raise SettingError(f"{what} needs a value for {key}: write {name + ':' if name else ''}{key}=…")
    given = {key: check_setting(what, key, value, hints.get(key, Any)) for key, value in settings.items()}
    try:
        return function(**given)
    except (Exception, SystemExit) as error:
        if isinstance(error, SteppeError) or function.__module__.startswith("steppe."):
            raise
        raise references.explain_failure(f"{what} cannot be made", error) from error


def list_settings(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings of a catalogue entry or a part with their defaults, in order."""
    taken = inspect.signature(function).parameters.items()
    return {k: p.default for k, p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def list_catalogue_settings(name: str) -> dict[str, Any]:
    """Return the settings of an algorithm by name; none for an unknown one, which is refused later."""
    known = name in CATALOGUE or references.locate(name, references.ALGORITHMS)
    return list_settings(find_entry(name)) if known else {}


def _discover() -> dict[str, type[Part]]:
    """Return every part of the package `steppe.parts` that is marked as addable, by its name."""
    modules = [import_module(f"{ideas.__name__}.{found.name}") for found in pkgutil.iter_modules(ideas.__path__)]
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type) and issubclass(c, Part)]
    return {c.name: c for c in sorted(classes, key=lambda c: getattr(c, "name", "")) if c.__dict__.get("addable")}


# What can be added to any algorithm. A part's `outer` says where it goes: closest to the loss (False), or around the
# algorithm's own parts (corrections of a finished direction, server rules); always inside the local optimiser.
PARTS: dict[str, type[Part]] = _discover()


def parse_addition(text: str) -> Part:
    """Return a part from its name and settings.

    >>> parse_addition("ema"), parse_addition("sam:rho=0.05,eps=1e-7")
    (EMA(keep=0.99), SAM(rho=0.05, eps=1e-07, mix=1.0, ramp=0))
    """
    try:
        name, settings = parse_named(text)
        found = check_parts(call_with_settings(find_part(name), f"part {name!r}", settings))
        if len(found) != 1:
            raise SettingError(f"{name} is {len(found)} parts: add them one by one, or name it as the algorithm")
    except SettingError as error:
        error.keys = ("add",)  # the run's key, whatever the part calls its setting
        raise
    return found[0]


def name_part(part: str | Part) -> str:
    """Return what a part is called everywhere: the name in its class, wherever it comes from.

    >>> name_part("man:weight=0.1"), name_part("own:__main__.LookBack")
    ('man', 'LookBack')
    """
    if isinstance(part, Part):
        return part.name
    name = split_name(part)[0]
    return shorten(part) if name in PARTS or name.startswith(references.OWN) else parse_addition(part).name


def find_sources(algorithm: str, add: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return where each name that is not built in is loaded from, with the hash of that file, without running it."""
    sources = {name: references.describe_source(name, group) for name, group in find_foreign(algorithm, add).items()}
    return {name: source for name, source in sources.items() if source}


def find_foreign(algorithm: str, add: Sequence[str]) -> dict[str, str]:
    """Return the names of an algorithm and its additions that are not built in, without settings, with their groups.

    >>> find_foreign("mine.py:mine", ["man:weight=0.1", "package.module:Idea:rho=1", "own:package.Idea"])
    {'mine.py:mine': 'steppe.algorithms', 'package.module:Idea': 'steppe.parts'}
    """
    named: list[tuple[str, str, Mapping[str, Any]]] = [(algorithm, references.ALGORITHMS, CATALOGUE)]
    named += [(split_name(text)[0], references.PARTS, PARTS) for text in add]
    return {name: group for name, group, ours in named if name not in ours and not name.startswith(references.OWN)}
