"""Watch the hooks of parts while a round is traced, before training: what they take, return, write and change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cached_property
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from typing import Any

from torch import Tensor

from steppe.core.errors import SteppeError, quote
from steppe.core.part import Part
from steppe.core.part_class_checks import HOOKS, HookFailed, PartSlip
from steppe.core.scopes import Oracle, ServerTurn
from steppe.core.task import Outputs

VECTORS = ("send", "start", "gradient", "finish", "server", "evaluated")  # hooks that return one of the model's size
STATES = ("client_state", "round_state", "server_state")
DICTS = (*STATES, "observe")  # hooks that return tensors by name


def watch(part: Part, inside: Sequence[Part] = ()) -> Part:
    """Return a copy of the part whose hooks refuse wrong arguments and results, lost states, and changes in place.

    `inside` are the parts that it wraps.
    """
    watched = copy.copy(part)
    once = any(inner.once for inner in inside)
    hooks = {name: _watch_hook(part, name, once) for name in HOOKS if part.has(name)}
    kind = type(type(part).__name__, (type(part),), {**hooks, "__slots__": ()})
    object.__setattr__(watched, "__class__", kind)  # the fields of a dataclass are frozen
    return watched


def _watch_hook(part: Part, name: str, once: bool) -> Callable[..., Any]:
    where, own = f"{type(part).__name__}.{name}", getattr(part, name)
    names = list(signature(getattr(Part, name)).parameters)[1:]

    def watched(_: Part, *given: Any) -> Any:
        try:
            signature(own).bind(*given)
        except TypeError:
            raise PartSlip(f"{where} must take these arguments: ({', '.join(['self', *names])}).") from None
        scope = given[-1] if names[-1:] == ["s"] else None
        oracle = _WatchedOracle(where, given[0], scope.x) if name == "gradient" and scope is not None else None
        seen = {n: v for n, v in zip(names, given, strict=True) if isinstance(v, Tensor)}
        if name == "penalty" and isinstance(out := given[1], Outputs):
            seen |= {f"out.{n}": v for n, v in (("logits", out.logits), ("features", out.features)) if v is not None}
        states = {}
        if scope is not None:
            seen |= {"s.x": scope.x} | {f"s.down[{k!r}]": v for k, v in getattr(scope, "down", {}).items()}
            states = dict(scope.state)
            seen |= {f"s.state[{k!r}]": v for k, v in states.items()}
        kept = _take_attributes(part)
        versions = {n: v._version for n, v in seen.items()}
        try:
            value = own(*given) if oracle is None else own(oracle, *given[1:])
        except (SteppeError, KeyError):  # the latter is a state that does not exist
            raise
        except Exception as error:
            if oracle is not None and error is oracle.error:
                raise
            raise _explain_failure(part, name, own, scope, error) from error
        if own_state := [n for n, v in _take_attributes(part).items() if not _are_same(kept.get(n, []), v)]:
            raise PartSlip(f"{where} changes self.{own_state[0]}, which all clients share and no checkpoint holds: "
                           "declare it in client_state, round_state or server_state, and write s.state. A constant "
                           "may be a functools.cached_property.")  # fmt: skip
        if changed := [n for n, v in seen.items() if v._version != versions[n]]:
            raise PartSlip(f"{where} changes {' and '.join(changed)} in place: write to a new tensor, because others "
                           "read this one.")  # fmt: skip
        if scope is not None and name != "receive":  # what that adds lasts for the round
            _check_states(where, states, scope)
        _check_uploads(where, getattr(scope, "up", {}) if name == "finish" else {})
        _check_result(where, name, value, given[0] if scope is None else scope.x)
        if oracle is not None:
            oracle.check_calls(part.asks, once)
        return value

    return watched


class _WatchedOracle:
    """The oracle that `gradient` gets: it refuses other arguments than a point, and counts its calls."""

    def __init__(self, where: str, oracle: Oracle, like: Tensor) -> None:
        self.where, self.oracle, self.like = where, oracle, like
        self.calls = 0
        self.error: Exception | None = None  # of something inside this part, which is not to blame

    def __call__(self, *point: Any, **how: Any) -> Tensor:
        if not point or not isinstance(point[0], Tensor) or point[0].shape != self.like.shape:
            given = ", ".join(map(_describe, point)) or "no argument"
            raise PartSlip(f"{self.where} calls grad with {given}, but it takes a point, which is a tensor of the "
                           f"model's size, {tuple(self.like.shape)}: grad(w).")  # fmt: skip
        if why := _find_other_type(point[0], self.like):
            raise PartSlip(f"{self.where} calls grad with a tensor of {why}.")
        self.calls += 1
        try:
            return self.oracle(*point, **how)
        except Exception as error:
            self.error = error
            raise

    def check_calls(self, asks: int, once: bool) -> None:
        """Refuse a step without a gradient, and more calls than were declared if a part inside writes state in them."""
        if not self.calls:
            raise PartSlip(f"{self.where} never calls grad, so there is no gradient of the loss: call grad(w).")
        if once and self.calls > asks:
            raise PartSlip(f"{self.where} calls grad {self.calls} times per step, but the class says asks = {asks}: "
                           f"write asks = {self.calls}.")  # fmt: skip


def _explain_failure(part: Part, hook: str, own: Callable[..., Any], scope: Any, error: Exception) -> Exception:
    """Return the error of a user's hook as a sentence with its place; ours stay as they are."""
    where = f"{type(part).__name__}.{hook}"
    if hook == "penalty" and "features" not in part.needs and "NoneType" in str(error):
        return PartSlip(f"{where} fails ({error}): out.features exists only if the class says "
                        'needs = frozenset({"features"}).')  # fmt: skip
    if type(part).__module__.startswith("steppe."):
        return error
    file = getattr(getattr(own, "__code__", None), "co_filename", "")
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    place = f" in line {lines[-1]} of {Path(file).name}" if lines else ""
    known = ""
    if isinstance(error, AttributeError) and scope is not None and error.obj is scope:
        known = f" In {hook}, s has {', '.join(vars(scope))}."
    return HookFailed(f"{where} fails{place}: {type(error).__name__}: {error}.{known}")


def _take_attributes(part: Part) -> dict[str, list[Any]]:
    """Return every attribute of a part, with what a list, set or dictionary holds, and the version of a tensor."""
    caches = {name for name in vars(part) if isinstance(getattr(type(part), name, None), cached_property)}
    return {name: [value, *_list_content(value)] for name, value in vars(part).items() if name not in caches}


def _list_content(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, list | set) else [value._version] if isinstance(value, Tensor) else []


def _are_same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(
        a is b or (type(a) is type(b) is int and a == b) for a, b in zip(one, two, strict=True)
    )


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
        if why := _find_other_type(value, before[state]):
            raise PartSlip(f"{where} writes a tensor to s.state[{state!r}] of {why}.")


def _check_uploads(where: str, uploads: dict[str, Any]) -> None:
    for name, value in uploads.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise PartSlip(f"{where} writes {_describe(value)} to s.up[{name!r}], but must write a tensor of "
                           "floating-point numbers, such as delta.new_tensor(1.0).")  # fmt: skip


def check_reduction(part: Part, uploads: dict[str, Any]) -> None:
    """Refuse a reduction whose name is almost that of an upload, which would be averaged by samples instead.

    Other names may be those of uploads that only some settings have.
    """
    for name in part.reduction.keys() - uploads.keys():
        if meant := get_close_matches(name, uploads.keys() - part.reduction.keys(), 1, 0.8):
            raise PartSlip(f"{type(part).__name__}.reduction names {quote(name)}, but finish writes "
                           f"s.up[{meant[0]!r}]: give both one name.")  # fmt: skip


def _check_result(where: str, hook: str, value: Any, x: Tensor) -> None:
    if hook in VECTORS and not (isinstance(value, Tensor) and value.shape == x.shape):
        raise PartSlip(f"{where} returns {_describe(value)}, but must return a tensor of the model's size, "
                       f"{tuple(x.shape)}.")  # fmt: skip
    if hook == "penalty" and not (isinstance(value, Tensor) and value.ndim == 0):
        raise PartSlip(f"{where} returns {_describe(value)}, but must return one number as a tensor, such as a sum.")
    if hook in DICTS and not (isinstance(value, dict) and all(isinstance(v, Tensor) for v in value.values())):
        raise PartSlip(f"{where} returns {_describe(value)}, but must return a dict of tensors, such as "
                       '{"c": torch.zeros_like(x)}.')  # fmt: skip
    if hook in VECTORS and (why := _find_other_type(value, x)):
        raise PartSlip(f"{where} returns a tensor of {why}.")
    if hook in STATES:
        for name, state in value.items():
            if not isinstance(name, str) or not state.is_floating_point():
                raise PartSlip(f"{where} returns {_describe(state)} as {quote(name)}, but a state has a name that is "
                               "text, and floating-point numbers: "
                               '{"c": torch.zeros_like(x)}.')  # fmt: skip


def _find_other_type(value: Tensor, like: Tensor) -> str:
    """Return how the type of a tensor differs from that of the model's parameters, and what to do; empty if not."""
    if value.dtype == like.dtype:
        return ""
    mine, theirs = (str(t.dtype).removeprefix("torch.") for t in (value, like))
    return f"type {mine}, but the model's is {theirs}: convert it, with .to(s.x.dtype)"


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return quote(value)
    kind = "" if value.is_floating_point() else f" and type {str(value.dtype).removeprefix('torch.')}"
    return f"a tensor of shape {tuple(value.shape)}{kind}"
