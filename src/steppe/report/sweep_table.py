"""A sweep's points side by side: mean ± standard deviation over seeds, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from steppe.jobs.sweep import Point, best, chosen_by
from steppe.report.tables import spread

MEASURES = {"validation": "validation", "last": "test", "mean_of_last_ten": "test, last ten", "loss": "test loss"}


def told(points: Sequence[Point]) -> dict[str, Any]:
    """All that is to be said, as JSON."""
    first = best(list(points))
    return {"chosen_by": chosen_by(list(points)), "best": _point(first) if first else None,
            "points": [_point(p) for p in points]}  # fmt: skip


def _point(p: Point) -> dict[str, Any]:
    over = {k: pair for k in [*MEASURES, "seconds"] if (pair := _over(p, k))}
    return {"label": p.label, "settings": p.settings, "seeds": sorted(p.results), **over,
            "failed": {str(seed): why for seed, why in p.failed.items()}}  # fmt: skip


def _over(p: Point, key: str) -> tuple[float, float] | None:
    """Mean and sample standard deviation over seeds."""
    values = [float(r[key]) for r in p.results.values() if key in r]
    return (fmean(values), stdev(values) if len(values) > 1 else 0.0) if values else None


def score(p: Point) -> str:
    """A point in a few words."""
    key = chosen_by([p])
    pair = _over(p, key)
    return "failed" if pair is None else f"{MEASURES[key]} {spread(pair, len(p.results))} %"


def cells(points: Sequence[Point], keys: Sequence[str], seeds: int) -> tuple[list[str], list[list[str]]]:
    """A table's columns and rows: the settings, what came of them, the runs that there are, and the best."""
    first = best(list(points))
    shown = {k: title for k, title in MEASURES.items() if any(k in r for p in points for r in p.results.values())}
    rows = []
    for p in points:
        row = [str(p.settings.get(k, "")) for k in keys]
        for k in shown:
            pair = _over(p, k)
            row.append("" if pair is None else spread(pair, len(p.results), percent=k != "loss"))
        rows.append([*row, f"{len(p.results)}/{seeds}", "best" if p is first else ""])
    return [*keys, *shown.values(), "runs", ""], rows


def explained(points: Sequence[Point], seeds: int) -> str:
    """What the table's numbers are, and by what the best was chosen."""
    each = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if chosen_by(list(points)) == "validation":
        how = "the best is chosen by validation accuracy; the test set played no part in it"
    else:
        how = ("the best is chosen by test accuracy, because there is no validation data, so its own accuracy is "
               "optimistic: set validation, to 0.1 for instance")  # fmt: skip
    return f"accuracies in %, {each}; {how}"
