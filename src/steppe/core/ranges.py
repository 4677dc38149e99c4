"""The range of a setting, written next to its type and checked in one place.

    rho: Amount = 0.1                       a number between 0 and 1e9
    cut: Annotated[float, Range(0, 0.5)]    its own range

A part's fields and a catalogue function's arguments are settings. A number without a range must be finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from steppe.core.errors import SettingError, quote, suggest_name


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included unless `below` is set, which excludes `high`.

    >>> 0.5 in Range(0, 1), 1 in Range(0, 1, below=True), float("nan") in Range(0, 1), str(Range(0, 1))
    (True, False, False, 'between 0 and 1')
    """

    low: float
    high: float
    below: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value < self.high if self.below else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"at least {self.low:g}"
        return (
            f"at least {self.low:g}, below {self.high:g}" if self.below else f"between {self.low:g} and {self.high:g}"
        )


Amount = Annotated[float, Range(0, 1e9)]  # a radius, a weight, a learning rate
Positive = Annotated[float, Range(1e-9, 1e9)]  # a divisor
Share = Annotated[float, Range(0, 1)]
Momentum = Annotated[float, Range(0, 1, below=True)]
Epsilon = Annotated[float, Range(0, 1)]  # added to a norm
Bound = Annotated[float, Range(1e-12, math.inf)]  # inf: no bound
Count = Annotated[int, Range(0, 10**9)]
FromOne = Annotated[int, Range(1, 10**9)]
FINITE = Range(-1.7976931348623157e308, 1.7976931348623157e308)
WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def check_setting(what: str, key: str, value: Any, hint: Any) -> Any:
    """Return the value in the type of its hint; raise SettingError if its type or range is wrong.

    >>> check_setting("part 'sam'", "rho", -1, Amount)
    Traceback (most recent call last):
    steppe.core.errors.SettingError: rho of part 'sam' is -1, but must be between 0 and 1e+09
    """
    if get_origin(hint) is Literal:
        words = get_args(hint)
        value = "none" if value is None and "none" in words else value  # the command line reads none as None
        if not any(type(value) is type(word) and value == word for word in words):
            raise SettingError(f"{key} of {what} is {quote(value)}{suggest_name(quote(value), map(str, words))}", key)
        return value
    kinds = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    if value is None and type(None) in kinds:
        return None
    plain = [(get_args(k) if get_origin(k) is Annotated else (k, FINITE)) for k in kinds if k is not type(None)]
    for kind, *ranges in plain:
        if kind not in WORDS:
            return value  # a part, a tensor, …: the type checks itself
        if not _is(value, kind):
            continue
        limits = next((r for r in ranges if isinstance(r, Range)), FINITE)
        if kind in (int, float) and value not in limits:
            wanted = "finite" if limits is FINITE else str(limits)
            raise SettingError(f"{key} of {what} is {quote(value)}, but must be {wanted}", key)
        return kind(value)
    expected = " or ".join(WORDS[kind] for kind, *_ in plain)
    raise SettingError(f"{key} of {what} must be {expected}, not {quote(value)}", key)


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, Real if kind is float else Integral if kind is int else kind)


@cache
def read_hints(function: Any) -> dict[str, Any]:
    """Read the types and ranges of a catalogue function's arguments or a part's fields; {} if they cannot be read."""
    if isinstance(function, partial):
        return read_hints(function.func)
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # names that do not exist at run time; an object that can be called
        return {}
    if isinstance(function, type):
        if not is_dataclass(function):  # it has its own __init__, or no settings
            return {}
        return {f.name: hints[f.name] for f in fields(function) if f.init}
    return {name: hint for name, hint in hints.items() if name != "return"}
