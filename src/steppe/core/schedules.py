"""Schedules of the local learning rate: the factor of `lr` in round t of `rounds`, counted from 0.

>>> [steps(t, 300, 100, 200, gamma=0.1) for t in (99, 100, 200)]
[1.0, 0.1, 0.010000000000000002]
>>> [warm_up(t, 4) for t in range(5)]
[0.25, 0.5, 0.75, 1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi


def constant(t: int, rounds: int) -> float:
    return 1.0


def exponential(t: int, rounds: int, decay: float = 0.99) -> float:
    return float(decay**t)


def cosine(t: int, rounds: int, end: float = 0.0) -> float:
    """Fall from 1 to `end` along half a cosine."""
    return end + (1 - end) * (0.5 * (1 + cos(pi * t / max(rounds, 1))))


def linear(t: int, rounds: int, end: float = 0.0) -> float:
    return 1 + (end - 1) * t / max(rounds, 1)


def steps(t: int, rounds: int, *milestones: float, gamma: float = 0.1) -> float:
    """Multiply by gamma at every milestone."""
    return float(gamma ** sum(t >= m for m in milestones))


def warm_up(t: int, length: float) -> float:
    """Rise to 1 in this number of equal steps, the first of which is not 0."""
    return min((t + 1) / length, 1.0) if length else 1.0


def look_up(table: Sequence[float] | Mapping[int, float], t: int) -> float:
    """Look up the factor of a round in a list, whose last factor is kept, or in a dict of first rounds, 1 before them.

    >>> look_up([1, 0.5], 7), look_up({10: 0.1, 20: 0.01}, 15), look_up({10: 0.1}, 3)
    (0.5, 0.1, 1.0)
    """
    if isinstance(table, Mapping):
        begun = [r for r in table if r <= t]
        return float(table[max(begun)]) if begun else 1.0
    return float(table[min(t, len(table) - 1)])


# Each has an example; `exponential` without a number uses lr_decay.
SCHEDULES = {
    "constant": (constant, "constant"), "exponential": (exponential, "exponential or exponential(0.99)"),
    "cosine": (cosine, "cosine or cosine(0.1)"), "linear": (linear, "linear or linear(0.1)"),
}  # fmt: skip
OF_ALL_ROUNDS = (cosine, linear)  # they depend on the number of rounds
