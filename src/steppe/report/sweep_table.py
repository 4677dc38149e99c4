"""A sweep's points side by side: mean ± standard deviation over seeds, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from steppe.core.metric import Metric
from steppe.jobs.points import Point, best, choose_measure

MEASURES = {"validation": "validation", "last": "test", "mean_of_last_ten": "test, last ten", "loss": "test loss"}
LOSS = Metric("loss", lower=True)


def told(points: Sequence[Point]) -> dict[str, Any]:
    """All that is to be said, as JSON."""
    first = best(list(points))
    return {"chosen_by": choose_measure(points), "best": _point(first) if first else None,
            "points": [_point(p) for p in points]}  # fmt: skip


def _point(p: Point) -> dict[str, Any]:
    over = {k: pair for k in [*MEASURES, "seconds"] if (pair := _over(p, k))}
    return {"label": p.label, "settings": p.settings, "seeds": sorted(p.results), **over,
            "failed": {str(seed): why for seed, why in p.failed.items()}}  # fmt: skip


def _over(p: Point, key: str) -> tuple[float, float] | None:
    """Mean and sample standard deviation over seeds."""
    values = [float(r[key]) for r in p.results.values() if key in r]
    return (fmean(values), stdev(values) if len(values) > 1 else 0.0) if values else None


def cells(points: Sequence[Point], keys: Sequence[str], seeds: int) -> tuple[list[str], list[list[str]]]:
    """A table's columns and rows: the settings, what came of them, the runs that there are, and the best."""
    first = best(list(points))
    shown = {k: title for k, title in MEASURES.items() if any(k in r for p in points for r in p.results.values())}
    rows = []
    for p in points:
        row = [str(p.settings.get(k, "")) for k in keys]
        for k in shown:
            pair = _over(p, k)
            metric = LOSS if k == "loss" else p.metric
            row.append("" if pair is None else metric.pair(*pair, len(p.results)))
        rows.append([*row, f"{len(p.results)}/{seeds}", "best" if p is first else ""])
    return [*keys, *shown.values(), "runs", ""], rows


def explained(points: Sequence[Point], seeds: int) -> str:
    """What the table's numbers are, and by what the best was chosen."""
    each = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    metric = next((p.metric for p in points if p.results), points[0].metric)
    if choose_measure(points) == "validation":
        how = f"the best is chosen by validation {metric.name}; the test set played no part in it"
    else:
        how = (f"the best is chosen by test {metric.name}, because there is no validation data, so its own value is "
               "optimistic: set validation, to 0.1 for instance")  # fmt: skip
    unit = " in %" if metric.percent else ", lower is better" if metric.lower else ""
    return f"{metric.name}{unit}, {each}; {how}"
