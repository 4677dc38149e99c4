"""A survey: every method under one protocol, tuned on held-out training data, then tested once.

`survey_page` shows the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from statistics import fmean, stdev
from typing import Any

from steppe.reproduce.costs import compare_costs
from steppe.reproduce.missing_runs import CellJob, find_runs_of_cells
from steppe.reproduce.recipes import Cell, check_globs, check_scale, make_config, merge_layers, read_table_file
from steppe.reproduce.rows import Row, find_statistic

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

    @property
    def id(self) -> str:
        return f"{self.column}/{self.method}"


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
                                tuple(cells["tuning"]), tuple(cells["final"])))  # fmt: skip
    return tuple(made)


def select_entrants(globs: list[str], scale: str = "paper") -> list[Entrant]:
    """Return the entrants whose column/method matches any of the patterns."""
    check_scale(scale)
    everyone = list_entrants(scale)
    check_globs(globs, [e.id for e in everyone])
    return [e for e in everyone if not globs or any(fnmatchcase(e.id, g) for g in globs)]


def _label(candidate: dict[str, Any]) -> str:
    """
    >>> _label({"settings": {"rho": 0.1}, "add": ["man:weight=0.15", "ema"]})
    'rho=0.1,man:weight=0.15,ema'
    """
    own = {**candidate.get("settings", {}), **{k: v for k, v in candidate.items() if k not in ("settings", "add")}}
    return ",".join([*(f"{k}={v}" for k, v in own.items()), *candidate.get("add", [])])


def find_tuning_runs(chosen: Sequence[Entrant], rows: Sequence[Row], machine: dict[str, object]) -> list[CellJob]:
    """Find the runs that are needed before anything can be chosen; one seed."""
    return find_runs_of_cells([c for e in chosen for c in e.tuning], rows, 1, machine)


def find_final_runs(
    chosen: Sequence[Entrant], rows: Sequence[Row], seeds: int, machine: dict[str, object]
) -> list[CellJob]:
    """Find the missing runs of the chosen candidates, where tuning is complete."""
    best = [choose_candidate(e, rows) for e in chosen]
    cells = [e.final[i] for e, i in zip(chosen, best, strict=True) if i is not None]
    return find_runs_of_cells(cells, rows, seeds, machine)


def choose_candidate(entrant: Entrant, rows: Sequence[Row]) -> int | None:
    """Return the best candidate on held-out data; None while one of them was not tried, or if all failed."""
    scores = [_tuned(c, rows) for c in entrant.tuning]
    if any(s is None for s in scores) or max(s for s in scores if s is not None) < 0:
        return None
    return max(range(len(scores)), key=lambda i: scores[i] or -1.0)


def _tuned(cell: Cell, rows: Sequence[Row]) -> float | None:
    """Return the score on held-out data; −1 if training failed."""
    mine = [r for r in rows if r["recipe"] == cell.hash and r["seed"] == 0]
    found = [-1.0 if "failed" in r else find_statistic(r, TUNED) for r in mine]
    return next((f for f in reversed(found) if f is not None), None)


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
            "tuned": {c.row.split("/")[1]: _percent(_tuned(c, rows)) for c in e.tuning},
            "chosen": None if best is None else cell.row.split("/")[1], "recipe": cell.hash, "seeds": sorted(mine),
            "failed": [r["failed"] for r in mine.values() if "failed" in r],
            "accuracy": mean(TESTED, 100), "std": round(stdev(values), 4) if len(values) > 1 else None,
            "last": mean("last", 100), "best": mean("best", 100), "lambda1": mean("measures.lambda1.lambda1"),
            "trace": mean("measures.trace.value"), **{k: round(v, 3) for k, v in costs.items()},
            "seconds": round(sum(r["seconds"]["total"] / max(r.get("processes", 1), 1) for r in mine.values()), 1),
        })  # fmt: skip
    return found


def _percent(value_: float | None) -> float | None:
    return None if value_ is None else -1.0 if value_ < 0 else round(100 * value_, 2)
