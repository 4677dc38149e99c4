"""Means over blocks with intervals, and differences that are paired by block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import fmean, stdev

from steppe.report.seeds import compute_student_p, pair_differences

LEVEL = 0.95
# Points by which one run each of two methods may differ by chance: two standard deviations of the differences between
# the league's methods over its blocks, rounded up (tests/reproduce/test_advice.py).
CHANCE = 3.0


@dataclass(frozen=True)
class Interval:
    """A mean, half the width of its Student interval (None for one block), and the number of blocks."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return self.format()

    def format(self, digits: int = 2) -> str:
        width = f" ± {self.half:.{digits}f}" if self.half is not None else ""
        return f"{self.mean:.{digits}f}{width} ({self.count})"

    @property
    def ends(self) -> tuple[float, float] | None:
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)

    @property
    def excludes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half


def estimate(values: Collection[float]) -> Interval | None:
    """Return the mean of independent values with its interval; None without values.

    >>> str(estimate([1.0, 2.0, 3.0])), str(estimate([1.0]))
    ('2.00 ± 2.48 (3)', '1.00 (1)')
    """
    n = len(values)
    if n < 2:
        return Interval(fmean(values), None, n) if n else None
    return Interval(fmean(values), find_quantile(LEVEL, n - 1) * stdev(values) / sqrt(n), n)


def compare_blocks(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """Return the mean of our value minus theirs over the blocks that both have."""
    return estimate(pair_differences(ours, theirs))


def correct_by_holm(chances: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method: below 0.05, a difference is decided among all.

    >>> correct_by_holm([0.01, 0.03, 0.02])
    [0.03, 0.04, 0.04]
    """
    found, so_far = [0.0] * len(chances), 0.0
    for place, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        so_far = max(so_far, min(1.0, chances[i] * (len(chances) - place)))
        found[i] = so_far
    return found


@cache
def find_quantile(level: float, freedom: int) -> float:
    """Return t with P(|T| ≤ t) = level for Student's T.

    >>> round(find_quantile(0.95, 5), 4)
    2.5706
    """
    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - compute_student_p(middle, freedom) < level else (low, middle)
    return high
