"""Find mistakes in a part: a hook or a setting that Python ignores, a state that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from inspect import get_annotations, isfunction
from traceback import walk_tb
from typing import Any

from steppe.core.errors import SettingError, SteppeError, quote
from steppe.core.part import Part

HOOKS = tuple(n for n, value in vars(Part).items() if isfunction(value) and n != "has" and not n.startswith("_"))


class PartSlip(SteppeError):
    """A hook of a part does what it must not; the text says what to write instead."""


class HookFailed(PartSlip):
    """A hook raised an exception. On tensors without data it may do so although it works on numbers."""


@cache
def check_class(kind: type[Part]) -> None:
    """Refuse a method whose name is almost that of a hook, and settings that are not fields.

    >>> class LookBack(Part):
    ...     def gradeint(self, grad, w, s): ...
    >>> check_class(LookBack)
    Traceback (most recent call last):
    steppe.core.errors.SettingError: LookBack.gradeint is not a hook, so it would never be called: write gradient, or \
_gradeint if it is a method of your own.
    """
    for base in kind.__mro__:
        if base is Part or not issubclass(base, Part):
            continue
        for name, value in vars(base).items():
            meant = [] if name.startswith("_") or name in HOOKS else get_close_matches(name, HOOKS, 1, 0.8)
            if meant and isfunction(value):
                raise SettingError(f"{base.__name__}.{name} is not a hook, so it would never be called: write "
                                   f"{meant[0]}, or _{name} if it is a method of your own.")  # fmt: skip
        lost = [] if "__dataclass_fields__" in vars(base) or "__init__" in vars(base) else list(_list_settings(base))
        if lost:
            raise SettingError(f"{base.__name__} has the setting {lost[0]}, but is not a dataclass: decorate it with "
                               "@dataclass(frozen=True).")  # fmt: skip


def check_attributes(part: Part) -> None:
    """Refuse what a class says about itself in a form that would be misread, or not be read at all.

    >>> class Sends(Part):
    ...     name, down = "sends", "momentum"
    >>> check_attributes(Sends())
    Traceback (most recent call last):
    steppe.core.errors.SettingError: Sends: down is 'momentum', but must be a tuple of names: down = ("momentum",)
    """
    kind = type(part).__name__

    def refuse(key: str, wanted: str) -> None:
        raise SettingError(f"{kind}: {key} is {quote(getattr(part, key))}, but must be {wanted}")

    if not isinstance(getattr(part, "name", None), str):
        raise SettingError(f'{kind} needs a name: write name = "my_part" in the class.')
    if not re.fullmatch(r"[\w.-]+", part.name):  # it is part of the names of states, messages and folders
        refuse("name", "made of letters, digits, '_', '-' and '.'")
    for key in ("down", "times"):
        if not _is_several(value := getattr(part, key)):
            refuse(key, f'a tuple of names: {key} = ("{value}",)' if isinstance(value, str) else "a tuple of names")
    outputs = {"logits", "features", "activations"}
    if not _is_several(part.needs) or not set(part.needs) <= outputs:
        refuse("needs", f"some of {', '.join(sorted(outputs))}: needs = frozenset({{'features'}})")
    if not isinstance(part.reduction, Mapping) or not set(part.reduction.values()) <= {"weights", "mean", "sum"}:
        refuse("reduction", 'a dictionary such as {"c": "mean"}, with "weights", "mean" or "sum" for each upload')
    if part.frozen not in ("", "head", "body"):
        refuse("frozen", "'head' or 'body'")
    for key in ("asks", "batches_per_step"):
        if not isinstance(value := getattr(part, key), int) or value < 1:
            refuse(key, "a whole number, at least 1")


def _is_several(given: Any) -> bool:
    return isinstance(given, tuple | list | Set) and all(isinstance(name, str) for name in given)


def _list_settings(kind: type[Part]) -> Iterator[str]:
    """Return the names that a class annotates like the fields of a dataclass, without those of every part."""
    for name, hint in get_annotations(kind).items():
        if not name.startswith("_") and not hasattr(Part, name) and name != "name" and "ClassVar" not in str(hint):
            yield name


@contextmanager
def explain_missing_states() -> Iterator[None]:
    """Turn a KeyError in a hook into a sentence: it read a state, a broadcast or an upload that does not exist."""
    try:
        yield
    except KeyError as error:
        hooks = [(frame.f_locals["self"], frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__)
                 if isinstance(frame.f_locals.get("self"), Part)]  # fmt: skip
        if not hooks:
            raise
        part, hook = hooks[-1]
        raise PartSlip(f"{type(part).__name__}.{hook} reads {error}, which does not exist: declare it in "
                          "client_state, round_state or server_state, name in `down` what the server sends, and fill "
                          "s.up in finish.") from error  # fmt: skip
