"""Watch the hooks of parts while a round is traced, before training: what they take, return, write and change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor

from steppe.core.errors import quote
from steppe.core.part import Part
from steppe.core.part_class_checks import HOOKS, PartSlip
from steppe.core.scopes import ServerTurn

VECTORS = ("send", "start", "gradient", "finish", "server", "evaluated")  # hooks that return one of the model's size
DICTS = ("client_state", "round_state", "server_state", "observe")  # hooks that return tensors by name


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
