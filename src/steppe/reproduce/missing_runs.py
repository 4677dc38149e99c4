"""Find the runs that a table still needs, and the folders for their rows and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from steppe.config import Config
from steppe.jobs.job import Job
from steppe.reproduce.costs import estimate_work
from steppe.reproduce.recipes import Cell, add_shortened, hash_recipe, load_table, select_cells
from steppe.reproduce.rows import Row, has_statistic

TRACED = ("bytes_x", "flops_x")  # statistics that need no training
UNKNOWN = "unknown"  # a statistic that the paper does not define well enough to compute
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
    every = [cell for name in names for cell in load_table(name, scale).cells]
    chosen = [c for c in select_cells(every, globs, tried) if c.statistic not in (*TRACED, UNKNOWN)]
    return find_runs_of_cells(chosen, known, seeds, machine, globs)


def find_runs_of_cells(cells: Sequence[Cell], known: Sequence[Row], seeds: int, machine: dict[str, object],
                       globs: Sequence[str] = ()) -> list[CellJob]:  # fmt: skip
    """Find the runs that these cells need. Cells with the same recipe share one.

    Seed by seed, then in the order of the patterns, then table by table: what matters most can be named first.
    """
    there: dict[tuple[str, int], list[Row]] = {}
    for row in add_shortened(known, cells):
        there.setdefault((row["recipe"], row["seed"]), []).append(row)
    tables = list(dict.fromkeys(c.table for c in cells))

    def place(cell: Cell) -> tuple[int, int]:
        named = (i for i, glob in enumerate(globs) if fnmatchcase(cell.id, glob))
        return next(named, len(globs)), tables.index(cell.table)

    waiting: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        for seed in range(seeds):
            key = cell.hash, seed
            if not any(has_statistic(r, cell.statistic) for r in there.get(key, [])):
                waiting.setdefault(key, []).append(cell)
    jobs = [CellJob(_join(several, seed, machine), f"{several[0].table} {several[0].id}, seed {seed}", None,
                    (seed, *min(map(place, several))), tuple(several))
            for (_, seed), several in waiting.items()]  # fmt: skip
    return sorted(jobs, key=lambda job: job.stage)


def _join(cells: Sequence[Cell], seed: int, machine: dict[str, object]) -> Config:
    """Configure one run with everything that any of the cells needs."""
    measure = list(dict.fromkeys(m for c in cells for m in c.config.measure))
    epochs = sorted({e for c in cells for e in c.config.personal or []})
    update = {"measure": measure, "personal": epochs or cells[0].config.personal, "seed": seed, **machine}
    return cells[0].config.model_copy(update=update)


def find_folders(out: Path | None, results: Path | None, scale: str) -> tuple[Path, Path]:
    """Return the folders for rows and tables: the committed ones in a checkout, else (and if tiny) one in runs/."""
    if out is None and scale == "paper" and CHECKOUT.is_dir():
        return results or Path("results"), Path("docs") / "reproductions"
    out = out or Path("runs") / ("reproduce" if scale == "paper" else f"reproduce-{scale}")
    return results or out / "results", out
