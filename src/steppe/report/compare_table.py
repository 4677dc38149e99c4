"""The table of `steppe compare`: a row per algorithm, over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from steppe.core.metric import Metric
from steppe.report.formats import count_evaluations, format_bytes, name_tail
from steppe.report.seeds import Paired, compare_pairs, compute_spread
from steppe.runs.records import restore_number

# Beginnings of what a narrow terminal leaves out, in this order.
SPARE = ("best", "passes", "loss", "time", "last ", "FLOPs", "traffic")


@dataclass(frozen=True)
class Line:
    """One algorithm over its seeds; metrics are as recorded: shares, not percentages."""

    algorithm: str
    seeds: int
    evaluations: list[int]  # of each run
    last: tuple[float, float]  # mean and sample standard deviation
    mean_of_last_ten: tuple[float, float]
    best: tuple[float, float]
    loss: tuple[float, float]
    seconds: float
    bytes_round: int  # of one client, down and up
    gradients: int
    forwards: int
    flops: float  # per step
    against_first: Paired | None  # of `last`; the first itself has none
    simulated: float | None = None  # seconds, where clients have a speed
    missing: float = 0  # replies of a run that never came, or came too late
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)  # all of the final models, by name


def make_lines(points: Sequence[Any]) -> list[Line]:
    """Make a line per algorithm that has a run (see `jobs.points.Point`), tested against the first one."""
    last = {p.label: {seed: float(r["last"]) for seed, r in p.results.items()} for p in points}
    first = points[0].label if points else ""
    return [_make_line(p.label, list(p.results.values()), p.cost,
                       None if p.label == first else compare_pairs(last[p.label], last[first]))
            for p in points if p.results]  # fmt: skip


def _make_line(algorithm: str, summaries: Sequence[Mapping[str, Any]], cost: Mapping[str, Any],
               against_first: Paired | None) -> Line:  # fmt: skip
    def over(key: str) -> tuple[float, float]:
        return compute_spread([restore_number(s[key]) for s in summaries])

    simulated = over("simulated_seconds")[0] if all("simulated_seconds" in s for s in summaries) else None
    names = [name for name in summaries[0].get("metrics", {}) if all(name in s.get("metrics", {}) for s in summaries)]
    metrics = {name: compute_spread([restore_number(s["metrics"][name]["last"]) for s in summaries]) for name in names}
    evaluations = [count_evaluations(s) for s in summaries]
    return Line(algorithm, len(summaries), evaluations, over("last"), over("mean_of_last_ten"), over("best"),
                over("loss"), over("seconds")[0], cost["bytes_down"] + cost["bytes_up"], cost["gradients"],
                cost["forwards"], cost["flops"], against_first, simulated,
                fmean(s.get("missing", 0) for s in summaries), metrics)  # fmt: skip


def explain_columns(columns: Sequence[str], metric: Metric, judged_on: str, variation: str = "") -> str:
    """Say what the columns mean and, where there are several seeds, what differs between them."""
    unit, points = (" in %", " in points") if metric.percent else ("", "")
    unit += ", lower is better," if metric.lower else ""
    tail = next((column for column in columns if column.startswith("last ")), "")
    legend = {
        "last": f"last{f', {tail} (mean)' * bool(tail)} and best: {metric.name}{unit} on the {judged_on} set"
        + (", ± standard deviation over seeds" if variation else ""),
        "− first": f"− first: difference of `last` from the first row{points}, ± standard error over seeds",
        "p": "p: paired t-test over seeds, not corrected for the number of rows",
        "traffic": "traffic: per client and round, down and up",
        "passes": "passes: gradients per step (+ forwards)",
        "FLOPs": "FLOPs: per step, compared with the first row",
        "time": "time: seconds",
        "simulated": "simulated: seconds that the rounds would take with such clients",
        "missing": "missing: replies that never came, or came too late",
    }
    told = "; ".join(legend[column] for column in columns if column in legend)
    return f"{told}\n{variation}; runs with the same seed share all of these" if variation else told


def make_cells(lines: Sequence[Line], metric: Metric,
               others: Sequence[Metric] = ()) -> tuple[list[str], list[list[str]]]:  # fmt: skip
    """Make the table's columns and rows, with a column for each further metric. Empty columns are left out."""
    columns: dict[str, list[str]] = {
        "algorithm": [one.algorithm for one in lines],
        "last": [metric.pair(*one.last, one.seeds) for one in lines],
        "− first": [format_difference(one.against_first, metric) for one in lines],
        "p": [format_test(one.against_first) for one in lines],
        name_tail(count for one in lines for count in one.evaluations): [
            metric.pair(*one.mean_of_last_ten, one.seeds) for one in lines
        ],
        "best": [metric.pair(*one.best, one.seeds) for one in lines],
        **{
            m.heading: [m.pair(*one.metrics[m.name], one.seeds) if m.name in one.metrics else "" for one in lines]
            for m in others
        },
        "loss": [format_loss(one.loss, one.seeds) for one in lines],
        "traffic": [format_bytes(one.bytes_round) for one in lines],
        "passes": [str(one.gradients) + (f"+{one.forwards}" if one.forwards else "") for one in lines],
        "FLOPs": [f"{one.flops / lines[0].flops:.2f}×" for one in lines],
        "time": [f"{one.seconds:.1f}" for one in lines],
        "simulated": ["" if one.simulated is None else f"{one.simulated:.0f}" for one in lines],
        "missing": [f"{one.missing:g}" if one.missing else "" for one in lines],
    }
    kept = {name: column for name, column in columns.items() if any(column)}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)]


def format_loss(pair: tuple[float, float], seeds: int) -> str:
    """
    >>> format_loss((0.9512, 0.0134), 3), format_loss((0.5, 0.0), 1)
    ('0.951 ± 0.013', '0.500')
    """
    return f"{pair[0]:.3f} ± {pair[1]:.3f}" if seeds > 1 else f"{pair[0]:.3f}"


def format_difference(test: Paired | None, metric: Metric) -> str:
    if test is None:
        return ""
    if test.error is None:
        return metric.number(test.difference, sign=True)
    return f"{'+' * (test.difference >= 0)}{metric.pair(test.difference, test.error)}"


def format_test(test: Paired | None) -> str:
    if test is None or test.error is None:
        return ""
    return "–" if test.p is None else "<0.001" if test.p < 0.001 else f"{test.p:.3f}"
