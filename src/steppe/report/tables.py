"""Numbers of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from steppe.report.paired import Paired, paired


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
    flops: float  # of a step
    against_first: Paired | None  # of `last`; the first itself has none
    simulated: float | None = None  # seconds, where clients have a speed
    missing: float = 0  # replies of a run that never came, or came too late


def comparison(points: Sequence[Any]) -> list[Line]:
    """A line per algorithm that has a run (see `jobs.points.Point`); others are tested against the first."""
    last = {p.label: {seed: float(r["last"]) for seed, r in p.results.items()} for p in points}
    first = points[0].label if points else ""
    return [line(p.label, list(p.results.values()), p.cost,
                 None if p.label == first else paired(last[p.label], last[first]))
            for p in points if p.results]  # fmt: skip


def line(algorithm: str, summaries: Sequence[Mapping[str, Any]], cost: Mapping[str, Any],
         against_first: Paired | None = None) -> Line:  # fmt: skip
    def over(key: str) -> tuple[float, float]:
        values = [float(s[key]) for s in summaries]
        return fmean(values), stdev(values) if len(values) > 1 else 0.0

    traffic = cost["bytes_down"] + cost["bytes_up"]
    simulated = over("simulated_seconds")[0] if all("simulated_seconds" in s for s in summaries) else None
    return Line(algorithm, len(summaries), over("last"), over("mean_of_last_ten"), over("best"), over("loss"),
                over("seconds")[0], traffic, cost["gradients"], cost["forwards"], cost["flops"],
                against_first, simulated, fmean(s.get("missing", 0) for s in summaries))  # fmt: skip


LEGEND = {
    "last": "last, last ten (their mean) and best: accuracy in % on the test set",
    "− first": "− first: difference of `last` from the first row's in points, ± standard error over seeds",
    "p": "p: paired t-test over seeds, not corrected for the number of rows",
    "traffic": "traffic: of one client's round, down and up",
    "passes": "passes: gradients a step (+ forwards)",
    "FLOPs": "FLOPs: of a step, beside the first row's",
    "time": "time: seconds",
    "simulated": "simulated: seconds that the rounds would take with such clients",
    "missing": "missing: replies that never came, or came too late",
}


def cells(lines: Sequence[Line]) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
    """A table of a comparison: its columns, its rows, and the columns that a narrow terminal may leave out, in order.

    Columns that would be empty are not there.
    """
    columns: dict[str, list[str]] = {
        "algorithm": [one.algorithm for one in lines],
        "last": [spread(one.last, one.seeds) for one in lines],
        "− first": [_difference(one.against_first) for one in lines],
        "p": [_p(one.against_first) for one in lines],
        "last ten": [spread(one.mean_of_last_ten, one.seeds) for one in lines],
        "best": [spread(one.best, one.seeds) for one in lines],
        "loss": [spread(one.loss, one.seeds, percent=False) for one in lines],
        "traffic": [size(one.bytes_round) for one in lines],
        "passes": [str(one.gradients) + (f"+{one.forwards}" if one.forwards else "") for one in lines],
        "FLOPs": [f"{one.flops / lines[0].flops:.2f}×" for one in lines],
        "time": [f"{one.seconds:.1f}" for one in lines],
        "simulated": ["" if one.simulated is None else f"{one.simulated:.0f}" for one in lines],
        "missing": [f"{one.missing:g}" if one.missing else "" for one in lines],
    }
    kept = {name: column for name, column in columns.items() if any(column)}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)], (
        "best", "passes", "loss", "time", "last ten", "FLOPs", "traffic")  # fmt: skip


def _difference(test: Paired | None) -> str:
    if test is None:
        return ""
    error = "" if test.error is None else f" ± {100 * test.error:.2f}"
    return f"{100 * test.difference:+.2f}{error}"


def _p(test: Paired | None) -> str:
    if test is None or test.error is None:
        return ""
    return "–" if test.p is None else "<0.001" if test.p < 0.001 else f"{test.p:.3f}"


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
