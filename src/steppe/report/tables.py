"""Numbers of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True)
class Line:
    """One algorithm over its seeds; accuracies are shares, not percentages."""

    algorithm: str
    seeds: int
    last: tuple[float, float]  # mean and sample standard deviation
    mean_of_last_ten: tuple[float, float]
    best: tuple[float, float]
    loss: tuple[float, float]
    seconds: float
    bytes_round: int  # of one client, down and up
    gradients: int
    forwards: int


def line(algorithm: str, summaries: Sequence[Mapping[str, Any]], cost: Mapping[str, Any]) -> Line:
    def over(key: str) -> tuple[float, float]:
        values = [float(s[key]) for s in summaries]
        return fmean(values), stdev(values) if len(values) > 1 else 0.0

    traffic = cost["bytes_down"] + cost["bytes_up"]
    return Line(algorithm, len(summaries), over("last"), over("mean_of_last_ten"), over("best"), over("loss"),
                over("seconds")[0], traffic, cost["gradients"], cost["forwards"])  # fmt: skip


def spread(pair: tuple[float, float], seeds: int, percent: bool = True) -> str:
    """
    >>> spread((0.9512, 0.0134), 3), spread((0.5, 0.0), 1, percent=False)
    ('95.12 ± 1.34', '0.500')
    """
    mean, deviation = (100 * pair[0], 100 * pair[1]) if percent else pair
    digits = 2 if percent else 3
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}" if seeds > 1 else f"{mean:.{digits}f}"


def size(count: float) -> str:
    """
    >>> size(1536), size(8_600_000)
    ('1.5 KiB', '8.2 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
