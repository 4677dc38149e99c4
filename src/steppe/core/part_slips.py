"""Find mistakes in a part: a hook or a setting that Python ignores, a state that does not exist, a wrong result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from inspect import get_annotations, isfunction, signature
from traceback import walk_tb
from typing import Any

from torch import Tensor

from steppe.core.errors import SettingError, SteppeError, quote
from steppe.core.part import Part
from steppe.core.scopes import ServerTurn

VECTORS = ("send", "start", "gradient", "finish", "server", "evaluated")  # hooks that return one of the model's size
DICTS = ("client_state", "round_state", "server_state", "observe")  # hooks that return tensors by name
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


def watch(part: Part) -> Part:
    """Return a copy of the part whose hooks refuse wrong arguments and results, lost states, and changes in place."""
    watched = copy.copy(part)
    hooks = {name: _watch_hook(part, name) for name in HOOKS if part.has(name)}
    kind = type(type(part).__name__, (type(part),), {**hooks, "__slots__": ()})
    object.__setattr__(watched, "__class__", kind)  # the fields of a dataclass are frozen
    return watched


def _watch_hook(part: Part, name: str) -> Callable[..., Any]:
    where, own = f"{type(part).__name__}.{name}", getattr(part, name)
    names = list(signature(getattr(Part, name)).parameters)[1:]

    def watched(_: Part, *given: Any) -> Any:
        try:
            signature(own).bind(*given)
        except TypeError:
            raise PartSlip(f"{where} must take these arguments: ({', '.join(['self', *names])}).") from None
        scope = given[-1] if names[-1:] == ["s"] else None
        seen = {n: v for n, v in zip(names, given, strict=True) if isinstance(v, Tensor)}
        states = {}
        if scope is not None:
            seen |= {"s.x": scope.x} | {f"s.down[{k!r}]": v for k, v in getattr(scope, "down", {}).items()}
            states = dict(scope.state)
        versions = {n: v._version for n, v in seen.items()}
        try:
            value = own(*given)
        except (AttributeError, TypeError) as error:
            if name != "penalty" or "features" in part.needs or "NoneType" not in str(error):
                raise
            raise PartSlip(f"{where} fails ({error}): out.features exists only if the class says "
                           'needs = frozenset({"features"}).') from error  # fmt: skip
        if changed := [n for n, v in seen.items() if v._version != versions[n]]:
            raise PartSlip(f"{where} changes {' and '.join(changed)} in place: write to a new tensor, because others "
                           "read this one.")  # fmt: skip
        if scope is not None and name != "receive":  # what that adds lasts for the round
            _check_states(where, states, scope)
        _check_result(where, name, value, given[0] if scope is None else scope.x)
        return value

    return watched


def _check_states(where: str, before: dict[str, Tensor], scope: Any) -> None:
    server = isinstance(scope, ServerTurn)
    for state, value in scope.state.items():
        if state not in before:
            raise PartSlip(f"{where} writes s.state[{state!r}] on "
                           + ("the server: declare it in server_state." if server else
                              "a client, where it is lost: declare it in client_state, or in round_state if it is for "
                              "one round only."))  # fmt: skip
        if not isinstance(value, Tensor) or value.shape != before[state].shape:
            raise PartSlip(f"{where} writes {_describe(value)} to s.state[{state!r}], which was declared as a tensor "
                           f"of shape {tuple(before[state].shape)}.")  # fmt: skip


def _check_result(where: str, hook: str, value: Any, x: Tensor) -> None:
    if hook in VECTORS and not (isinstance(value, Tensor) and value.shape == x.shape):
        raise PartSlip(f"{where} returns {_describe(value)}, but must return a tensor of the model's size, "
                       f"{tuple(x.shape)}.")  # fmt: skip
    if hook == "penalty" and not (isinstance(value, Tensor) and value.ndim == 0):
        raise PartSlip(f"{where} returns {_describe(value)}, but must return one number as a tensor, such as a sum.")
    if hook in DICTS and not (isinstance(value, dict) and all(isinstance(v, Tensor) for v in value.values())):
        raise PartSlip(f"{where} returns {_describe(value)}, but must return a dict of tensors, such as "
                       '{"c": torch.zeros_like(x)}.')  # fmt: skip


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else quote(value)
