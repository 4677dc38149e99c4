"""The table of `steppe sweep`: a row per point, mean ± standard deviation over seeds, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steppe.jobs.points import Point, choose_measure, find_best, find_metric, find_others
from steppe.report.compare_table import format_loss
from steppe.report.formats import count_evaluations, name_tail
from steppe.report.seeds import compute_spread, describe_points

COLUMNS = {"validation": "validation", "last": "test", "mean_of_last_ten": "test, last ten", "loss": "test loss"}


def summarize_points(points: Sequence[Point]) -> dict[str, Any]:
    """Summarise a sweep for sweep.json."""
    first = find_best(list(points))
    variation = describe_points(points)
    return {"chosen_by": choose_measure(points), "variation": variation, "best": _summarize(first) if first else None,
            "points": [_summarize(p) for p in points]}  # fmt: skip


def _summarize(p: Point) -> dict[str, Any]:
    over = {k: pair for k in [*COLUMNS, "seconds"] if (pair := _average_seeds(p, k))}
    over |= {f"last_{m.name}": pair for m in find_others([p]) if (pair := _average_seeds(p, m.name))}
    return {"label": p.label, "settings": p.settings, "seeds": sorted(p.results), **over,
            "failed": {str(seed): why for seed, why in p.failed.items()}}  # fmt: skip


def _average_seeds(p: Point, key: str) -> tuple[float, float] | None:
    each = ({**{name: one["last"] for name, one in r.get("metrics", {}).items()}, **r} for r in p.results.values())
    values = [float(r[key]) for r in each if r.get(key) is not None]
    return compute_spread(values) if values else None


def make_cells(points: Sequence[Point], keys: Sequence[str], seeds: int) -> tuple[list[str], list[list[str]]]:
    """Make the table's columns and rows: the settings, their scores, the runs that there are, and which is the best."""
    first = find_best(list(points))
    results, on = [r for p in points for r in p.results.values()], points[0].config.judged_on
    tail = name_tail(map(count_evaluations, results)) if results else ""
    columns = {
        k: title.replace("test", on).replace("last ten", tail)
        for k, title in COLUMNS.items()
        if any(k in r for r in results) and (k, on) != ("last", "validation")
    }  # that column is there already
    others = {m.name: m for m in find_others(points)}
    columns |= {name: f"{on} {m.heading}" for name, m in others.items()}
    rows = []
    for p in points:
        row = [str(p.settings.get(k, "")) for k in keys]
        for k in columns:
            pair, count = _average_seeds(p, k), len(p.results)
            shown = others.get(k, p.metric)
            row.append("" if pair is None else format_loss(pair, count) if k == "loss" else shown.pair(*pair, count))
        rows.append([*row, f"{len(p.results)}/{seeds}", "best" if p is first else ""])
    return [*keys, *columns.values(), "runs", ""], rows


def explain_table(points: Sequence[Point], seeds: int) -> str:
    """Say what the table's numbers are, and how the best was chosen."""
    metric = find_metric(points)
    each = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if choose_measure(points) == "validation":
        how = f"the best is chosen by validation {metric.name}; the test set played no part in it"
    else:
        how = (f"the best is chosen by test {metric.name}, because there are no validation data, so its own "
               f"{metric.name} is optimistic: set validation, for example to 0.1")  # fmt: skip
    unit = " in %" if metric.percent else " (lower is better)" if metric.lower else ""
    variation = f"\n{describe_points(points)}" if seeds > 1 else ""
    return f"{metric.name}{unit}, {each}; {how}{variation}"
