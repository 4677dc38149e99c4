"""Find the runs that a table still needs, and the folders for their rows and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from statistics import median

from steppe.config import Config
from steppe.jobs.job import Job
from steppe.jobs.queue import choose_job
from steppe.reproduce.costs import estimate_work
from steppe.reproduce.recipes import (
    Cell,
    Table,
    add_shortened,
    hash_recipe,
    list_tables,
    load_table,
    read_table_file,
    select_cells,
)
from steppe.reproduce.rows import Row, count_seconds, group_runs, has_statistic, is_on_gpu

TRACED = ("bytes_x", "flops_x")  # statistics that need no training
UNKNOWN = "unknown"  # a statistic that the paper does not define well enough to compute
# Data sets whose files were not available when the rows were made: what needs them is run last.
NOT_AT_HAND = {"svhn": "SVHN", "cinic10": "CINIC-10", "pathmnist": "PathMNIST", "tissuemnist": "TissueMNIST",
               "tiny-imagenet": "Tiny-ImageNet"}  # fmt: skip
CHECKOUT = Path("src/steppe/reproduce/tables")  # a checkout with this folder also has the committed rows and tables


@dataclass(frozen=True)
class CellJob(Job):
    """A run, and the cells that wait for it."""

    cells: tuple[Cell, ...] = ()

    @property
    def recipe(self) -> str:
        return hash_recipe(self.config)

    @cached_property
    def weight(self) -> float:
        return estimate_work(self.config)


def find_missing_runs(names: Sequence[str], scale: str, globs: list[str], seeds: int, tried: bool, known: Sequence[Row],
           machine: dict[str, object]) -> list[CellJob]:  # fmt: skip
    """Find the runs of these tables that have no row yet."""
    tables = [load_table(name, scale) for name in names]
    every = [cell for table in tables for cell in table.cells]
    chosen = [c for c in select_cells(every, globs, tried) if c.statistic not in (*TRACED, UNKNOWN)]
    orders = {(cell.table, cell.id): _find_order(table, cell) for table in tables for cell in table.cells}
    return find_runs_of_cells(chosen, known, seeds, machine, globs, orders, _list_measures(scale))


def _find_order(table: Table, cell: Cell) -> int:
    """Return the place of the first group of the table's order that names a cell."""
    named = (i for i, group in enumerate(table.order) if any(fnmatchcase(cell.id, glob) for glob in group))
    return next(named, len(table.order))


def _list_measures(scale: str) -> dict[str, list[str]]:
    """Return by recipe what any table measures at the end of its run: little beside training it again for that."""
    found: dict[str, list[str]] = {}
    measured = (name for name in list_tables() if read_table_file(name)["statistic"].startswith("measures."))
    for cell in (cell for name in measured for cell in load_table(name, scale).main):
        found.setdefault(cell.hash, []).extend(cell.config.measure)
    return found


def find_runs_of_cells(
    cells: Sequence[Cell], known: Sequence[Row], seeds: int, machine: dict[str, object], globs: Sequence[str] = (),
    orders: Mapping[tuple[str, str], int] | None = None, measures: Mapping[str, Sequence[str]] | None = None,
) -> list[CellJob]:  # fmt: skip
    """Find the runs that these cells need. Cells with the same recipe share one.

    Seed by seed, then in the order of the patterns, then table by table and in each table's own order; of each, what
    needs files that may not be there is last.

    orders    the place of a cell in its table's own order, by table and cell
    measures  what else is measured in the run of a recipe
    """
    orders, measures = orders or {}, measures or {}
    there = group_runs(add_shortened(known, cells))
    tables = list(dict.fromkeys(c.table for c in cells))

    def place(cell: Cell) -> tuple[int, ...]:
        named = next((i for i, glob in enumerate(globs) if fnmatchcase(cell.id, glob)), len(globs))
        return named, cell.config.data in NOT_AT_HAND, tables.index(cell.table), orders.get((cell.table, cell.id), 0)

    waiting: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        for seed in range(seeds):
            key = cell.hash, seed
            if not any(has_statistic(r, cell.statistic) for r in there.get(key, [])):
                waiting.setdefault(key, []).append(cell)
    jobs = [CellJob(_join(several, seed, machine, measures.get(hash_, ())),
                    f"{several[0].table} {several[0].id}, seed {seed}", None,
                    (seed, *min(map(place, several))), tuple(several))
            for (hash_, seed), several in waiting.items()]  # fmt: skip
    return sorted(jobs, key=lambda job: job.stage)


def _join(cells: Sequence[Cell], seed: int, machine: dict[str, object], measures: Sequence[str]) -> Config:
    """Configure one run with everything that any of the cells needs, and further measures."""
    measure = list(dict.fromkeys([*(m for c in cells for m in c.config.measure), *measures]))
    epochs = sorted({e for c in cells for e in c.config.personal or []})
    update = {"measure": measure, "personal": epochs or cells[0].config.personal, "seed": seed, **machine}
    return cells[0].config.model_copy(update=update)


def sort_as_run(jobs: Sequence[CellJob]) -> list[CellJob]:
    """Return jobs in the order in which one process runs them."""
    waiting, order = list(jobs), list[CellJob]()
    while job := choose_job(waiting, order[-1].group if order else ""):
        order.append(job)
        waiting = [j for j in waiting if j is not job]
    return order


def estimate_seconds(jobs: Sequence[CellJob], known: Sequence[Row]) -> tuple[list[float | None], list[str]]:
    """Estimate each job's seconds of a GPU from the rows with its model (None: there are none), and say how roughly."""
    took: dict[str, list[tuple[float, float]]] = {}
    for row in known:
        if is_on_gpu(row) and "failed" not in row:
            config = Config.model_validate(row["config"])
            took.setdefault(config.model, []).append((count_seconds(row), estimate_work(config)))
    rates = {model: median(s / work for s, work in several) for model, several in took.items()}
    found = [rates[j.config.model] * j.weight if j.config.model in rates else None for j in jobs]
    told = [f"{len(jobs)} runs on {', '.join(sorted({j.config.data for j in jobs}))}"]
    if some := [s for s in found if s is not None]:
        models = {j.config.model for j in jobs} & rates.keys()
        near = [0.5 <= s / (rates[m] * work) <= 2 for m in models for s, work in took[m]]
        told.append(f"about {sum(some):,.0f} seconds of the GPU that made the rows, for {len(some)} of them: "
                    f"{sum(near)} of the {len(near)} rows with their models took from half to twice their "
                    "estimate")  # fmt: skip
    if unknown := sorted({j.config.model for j, s in zip(jobs, found, strict=True) if s is None}):
        told.append(f"?: no row has the model {', '.join(unknown)}, so nothing is known about their time")
    return found, told


def find_folders(out: Path | None, results: Path | None, scale: str) -> tuple[Path, Path]:
    """Return the folders for rows and tables: the committed ones in a checkout, else (and if tiny) one in runs/."""
    if out is None and scale == "paper" and CHECKOUT.is_dir():
        return results or Path("results"), Path("docs") / "reproductions"
    out = out or Path("runs") / ("reproduce" if scale == "paper" else f"reproduce-{scale}")
    return results or out / "results", out
