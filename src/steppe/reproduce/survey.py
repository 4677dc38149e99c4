"""A survey: every method under one protocol, tuned on held-out training data, then tested once.

`survey_page` shows the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any

from steppe.reproduce.costs import compare_costs
from steppe.reproduce.missing_runs import CellJob, find_runs_of_cells
from steppe.reproduce.recipes import (
    Cell,
    check_globs,
    check_scale,
    is_named,
    make_config,
    merge_layers,
    read_table_file,
)
from steppe.reproduce.rows import Row, count_seconds, find_score, find_statistic, name_device

TUNED, TESTED = "validation_mean_of_last_ten", "mean_of_last_ten"


@dataclass(frozen=True)
class Entrant:
    """A method in one column: its candidates for tuning, and for the test."""

    column: str
    method: str
    title: str
    composition: bool
    tuning: tuple[Cell, ...]
    final: tuple[Cell, ...]
    without_momentum: bool = False  # as published; the recipe has one

    @property
    def id(self) -> str:
        return f"{self.column}/{self.method}"

    @property
    def names(self) -> list[str]:
        """Return its own name, and those of its runs."""
        return [self.id, *(c.id for c in (*self.tuning, *self.final))]


@cache
def list_entrants(scale: str = "paper") -> tuple[Entrant, ...]:
    content = read_table_file("survey")
    made = []
    for column in content["column"]:
        for method in content["method"]:
            cells: dict[str, list[Cell]] = {"tuning": [], "final": []}
            for candidate in method["candidates"]:
                for stage, several in cells.items():
                    values = merge_layers(content["setting"], column["set"], {"algorithm": method["algorithm"]},
                                          candidate, content[stage])  # fmt: skip
                    label = f"{method['id']}/{_label(candidate)}" + ("/tuning" if stage == "tuning" else "")
                    config = make_config(values, scale, f"survey: {method['id']}")
                    statistic = TUNED if stage == "tuning" else TESTED
                    several.append(Cell("survey", column["id"], label, None, config, statistic))
            made.append(Entrant(column["id"], method["id"], method["title"], method.get("composition", False),
                                tuple(cells["tuning"]), tuple(cells["final"]),
                                method.get("published_without_momentum", False)))  # fmt: skip
    return tuple(made)


def select_entrants(globs: list[str], scale: str = "paper") -> list[Entrant]:
    """Return the entrants whose column/method matches any of the patterns, or one of their runs."""
    check_scale(scale)
    everyone = list_entrants(scale)
    check_globs(globs, [name for e in everyone for name in e.names])
    return [e for e in everyone if is_named(globs, *e.names)]


def _label(candidate: dict[str, Any]) -> str:
    """
    >>> _label({"settings": {"rho": 0.1}, "add": ["man:weight=0.15", "ema"]})
    'rho=0.1,man:weight=0.15,ema'
    """
    own = {**candidate.get("settings", {}), **{k: v for k, v in candidate.items() if k not in ("settings", "add")}}
    return ",".join([*(f"{k}={v}" for k, v in own.items()), *candidate.get("add", [])])


def find_tuning_runs(
    chosen: Sequence[Entrant], rows: Sequence[Row], machine: dict[str, object], globs: Sequence[str] = ()
) -> list[CellJob]:
    """Find the runs that are needed before anything that patterns name can be chosen; one seed."""
    cells = [c for e in chosen for c in e.tuning if is_named(globs, c.id, e.id, *(f.id for f in e.final))]
    return find_runs_of_cells(cells, rows, 1, machine)


def find_final_runs(
    chosen: Sequence[Entrant], rows: Sequence[Row], seeds: int, machine: dict[str, object], globs: Sequence[str] = ()
) -> list[CellJob]:
    """Find the missing runs of the chosen candidates, where tuning is complete and patterns name them."""
    best = [choose_candidate(e, rows) for e in chosen]
    cells = [e.final[i] for e, i in zip(chosen, best, strict=True) if i is not None
             and is_named(globs, e.id, e.final[i].id)]  # fmt: skip
    return find_runs_of_cells(cells, rows, seeds, machine)


def choose_candidate(entrant: Entrant, rows: Sequence[Row]) -> int | None:
    """Return the best candidate on held-out data; None while one of them was not tried, or if all failed."""
    scores = [_find_score(c, rows) for c in entrant.tuning]
    if any(s is None for s in scores) or max(s for s in scores if s is not None) < 0:
        return None
    return max(range(len(scores)), key=lambda i: scores[i] or -1.0)


def _find_score(cell: Cell, rows: Sequence[Row]) -> float | None:
    return find_score(rows, cell.hash, 0, TUNED)


def rank_entrants(rows: Sequence[Row], scale: str = "paper") -> list[dict[str, Any]]:
    """List every entrant with its results so far; costs are traced and always known."""
    found = []
    for e in list_entrants(scale):
        best = choose_candidate(e, rows)
        cell = e.final[best if best is not None else 0]
        mine = {r["seed"]: r for r in rows if best is not None and r["recipe"] == cell.hash}
        good = [r for r in mine.values() if "failed" not in r]
        costs = compare_costs(cell.config)

        def mean(statistic: str, scale: float = 1.0, good: list[Row] = good) -> float | None:
            values = [scale * v for r in good if (v := find_statistic(r, statistic)) is not None]
            return round(fmean(values), 4) if values else None

        values = [100 * r[TESTED] for r in good]
        found.append({
            "column": e.column, "method": e.method, "title": e.title, "composition": e.composition,
            "without_momentum": e.without_momentum,
            "tuned": {c.row.split("/")[1]: _convert_to_percent(_find_score(c, rows)) for c in e.tuning},
            "chosen": None if best is None else cell.row.split("/")[1], "recipe": cell.hash, "seeds": sorted(mine),
            "failed": [r["failed"] for r in mine.values() if "failed" in r],
            "accuracy": mean(TESTED, 100), "std": round(stdev(values), 4) if len(values) > 1 else None,
            "last": mean("last", 100), "best": mean("best", 100), "lambda1": mean("measures.lambda1.lambda1"),
            "trace": mean("measures.trace.value"), **{k: round(v, 3) for k, v in costs.items()},
            "seconds": round(sum(map(count_seconds, mine.values())), 1),
            "devices": sorted({name_device(r) for r in mine.values()}),
        })  # fmt: skip
    return found


def _convert_to_percent(score: float | None) -> float | None:
    return None if score is None else -1.0 if score < 0 else round(100 * score, 2)
