"""Find mistakes in a part: a hook or a setting that Python ignores, a state that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from inspect import get_annotations, isfunction
from traceback import walk_tb

from steppe.core.errors import SettingError, SteppeError
from steppe.core.part import Part

HOOKS = tuple(n for n, value in vars(Part).items() if isfunction(value) and n != "has" and not n.startswith("_"))


class PartSlip(SteppeError):
    """A hook of a part does what it must not; the text says what to write instead."""


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


def _list_settings(kind: type[Part]) -> Iterator[str]:
    """Return the names that a class annotates like the fields of a dataclass, without those of every part."""
    for name, hint in get_annotations(kind).items():
        if not name.startswith("_") and not hasattr(Part, name) and name != "name" and "ClassVar" not in str(hint):
            yield name


@contextmanager
def telling_missing_states() -> Iterator[None]:
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
