"""The runs of the league: which are missing, and where every arm stands by those that are there.

What to run next follows from the rows, so a command may be stopped and started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from steppe.reproduce.costs import compare_costs, trace_costs
from steppe.reproduce.league import MEAN, MODEL, NAME, Arm, Candidate, choose_ours, list_arms, read_league
from steppe.reproduce.missing_runs import CellJob
from steppe.reproduce.recipes import Cell, check_globs, is_named
from steppe.reproduce.rows import (
    Row,
    count_seconds,
    find_statistic,
    group_runs,
    has_statistic,
    is_on_gpu,
    name_device,
)


def find_order(arm: Arm, column: dict[str, Any]) -> int:
    """Return the place of an arm's runs in a column: that of the first `order` that names both, otherwise by tier."""
    order = read_league()["order"]
    named = (i for i, one in enumerate(order)
             if column["id"] in one["columns"] and any(fnmatchcase(arm.id, g) for g in one["arms"]))  # fmt: skip
    return next(named, len(order) + arm.tier - 1)


def find_missing_runs(rows: Sequence[Row], scale: str, globs: list[str], machine: dict[str, object]) -> list[CellJob]:
    """Find the runs that are missing and already known: more follow from their results.

    They are in the order of the league's file: first the arms and columns of its first `order`, and so on. In each,
    tuning comes first, and then block by block. Arms that may get another candidate wait for it.

    globs  patterns of COLUMN/ARM, or of runs (COLUMN/ARM/CANDIDATE, tuning/ARM/CANDIDATE); what is named in a column
           is tuned as well
    """
    league, arms = read_league(), list_arms(scale)
    in_columns = {arm: [_list_ids(arm, column, rows) for column in arm.columns] for arm in arms}
    in_tuning = {arm: [] if arm.like else arm.list_names("tuning", rows) for arm in arms}
    check_globs(globs, [i for arm in arms for several in (*in_columns[arm], in_tuning[arm]) for i in several])
    ours = choose_ours(rows, scale)
    there = group_runs(rows)
    jobs: dict[tuple[str, int], CellJob] = {}

    def want(cell: Cell, seed: int, stage: tuple[int, ...], measure: Sequence[str] = ()) -> None:
        key = cell.hash, seed
        if key not in jobs and not any(has_statistic(r, cell.statistic) for r in there.get(key, [])):
            config = cell.config.model_copy(update={"seed": seed, "measure": list(measure), **machine})
            jobs[key] = CellJob(config, f"{NAME} {cell.id}, seed {seed}", None, stage, (cell,))

    for arm in arms:
        every = list(enumerate(arm.columns))
        columns = [(i, c) for i, c in every if is_named(globs, *in_columns[arm][i])]
        if not columns and not is_named(globs, *in_tuning[arm]):
            continue
        scores = arm.score_candidates(rows)
        for candidate in scores:
            if columns or is_named(globs, arm.cell(candidate, None).id):
                order = min(find_order(arm, c) for _, c in columns or every)
                want(arm.cell(candidate, None), league["tuning"]["seed"], (order, 0))
        chosen = arm.choose(rows)
        if chosen is None or None in scores.values() or (arm.ours and ours is None):
            continue
        beaten = arm.ours and arm is not ours
        for place, column in columns:
            if not is_named(globs, f"{column['id']}/{arm.id}", arm.cell(chosen, column).id):
                continue  # what is named is a candidate that was not chosen
            order = len(league["order"]) + 1 if beaten else find_order(arm, column)
            for block in range(1, column["blocks"] + 1):
                measured = block <= league["measure"]["blocks"]
                names = league["measure"]["names"] if measured and scale == "paper" else []
                want(arm.cell(chosen, column), block, (order, 1, place, block), names)
    return sorted(jobs.values(), key=lambda j: j.stage)


def _list_ids(arm: Arm, column: dict[str, Any], rows: Sequence[Row]) -> list[str]:
    """Return the names of an arm in a column, and of its runs there."""
    return [f"{column['id']}/{arm.id}", *arm.list_names(column["id"], rows)]


def list_cells(rows: Sequence[Row]) -> list[Cell]:
    """Return every recipe that a row of the league may have: of all candidates that the rows lead to."""
    found = []
    for arm in list_arms():
        chosen = arm.choose(rows)
        candidates = list(arm.score_candidates(rows)) or ([chosen] if chosen else [])
        found += [arm.cell(c, column) for c in candidates for column in (None, *arm.columns)]
    return found


def find_earlier(arm: Arm, column: dict[str, Any], rows: Sequence[Row]) -> list[Candidate]:
    """Return the candidates with which an arm was run in a column before a further one changed its choice."""
    ran = {r["recipe"] for r in rows if r.get("cell", "").startswith(f"{column['id']}/{arm.id}/")}
    chosen = arm.choose(rows)
    return [c for c in arm.score_candidates(rows) if c != chosen and arm.cell(c, column).hash in ran]


def find_standings(rows: Sequence[Row], scale: str = "paper") -> list[dict[str, Any]]:
    """List every arm in every column with its results by block, in percent; costs are traced and always known.

    An arm whose choice has changed since it was run is there twice: its earlier choice is a standing of its own.
    """
    found = []
    by_recipe: dict[str, list[Row]] = {}
    for row in rows:
        by_recipe.setdefault(row["recipe"], []).append(row)
    for arm in list_arms(scale):
        chosen = arm.choose(rows)
        for column in arm.columns:
            usual = chosen or Candidate(arm.axis["values"][1])
            for candidate in (usual, *find_earlier(arm, column, rows)):
                cell, earlier = arm.cell(candidate, column), candidate != usual
                mine = {r["seed"]: r for r in by_recipe.get(cell.hash, []) if 1 <= r["seed"] <= column["blocks"]}
                mine = mine if chosen else {}
                ended = [(b, r) for b, r in sorted(mine.items()) if "failed" not in r]

                def by_block(statistic: str, factor: float = 1.0, mine: dict[int, Row] = mine) -> dict[int, float]:
                    each = ((b, find_statistic(r, statistic)) for b, r in sorted(mine.items()))
                    return {b: factor * v for b, v in each if v is not None}

                name = arm.name(candidate)
                found.append({
                    "column": column["id"], "blocks": column["blocks"],
                    "arm": f"{arm.id}/{name}" if earlier else arm.id, "earlier": earlier,
                    "title": f"{arm.title}, no longer chosen" if earlier else arm.title,
                    "ours": arm.ours, "tier": arm.tier,
                    "chosen": name if chosen else None, "recipe": cell.hash,
                    "failed": sorted(b for b, r in mine.items() if "failed" in r),
                    "mean": by_block(MEAN, 100), "model": by_block(MODEL, 100),
                    "lambda1": by_block("measures.lambda1.lambda1"), "trace": by_block("measures.trace.value"),
                    **compare_costs(cell.config), "kept": trace_costs(cell.config)["kept"],
                    "seconds": {b: count_seconds(r) for b, r in ended if is_on_gpu(r)},
                    "devices": {b: name_device(r) for b, r in ended},
                })  # fmt: skip
    return found
