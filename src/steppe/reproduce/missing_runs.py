"""Which runs a table still needs, and where their rows and tables go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steppe.config import Config
from steppe.reproduce.recipes import Cell, select, shortened, table
from steppe.reproduce.rows import Row, answers
from steppe.reproduce.work import Job

TRACED = ("bytes_x", "flops_x")  # statistics that need no training
UNKNOWN = "unknown"  # a statistic that the paper does not define well enough to compute


def needed(names: Sequence[str], scale: str, globs: list[str], seeds: int, tried: bool, known: Sequence[Row],
           machine: dict[str, object]) -> list[Job]:  # fmt: skip
    """Runs of these tables that no row answers yet."""
    every = [cell for name in names for cell in table(name, scale).cells]
    chosen = [c for c in select(every, globs, tried) if c.statistic not in (*TRACED, UNKNOWN)]
    return runs_for(chosen, known, seeds, machine)


def runs_for(cells: Sequence[Cell], known: Sequence[Row], seeds: int, machine: dict[str, object]) -> list[Job]:
    """Cells with the same recipe share one run. First seeds come first, then table by table."""
    there: dict[tuple[str, int], list[Row]] = {}
    for row in shortened(known, cells):
        there.setdefault((row["recipe"], row["seed"]), []).append(row)
    places = list(dict.fromkeys(c.table for c in cells))
    waiting: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        for seed in range(seeds):
            key = cell.hash, seed
            if not any(answers(r, cell.statistic) for r in there.get(key, [])):
                waiting.setdefault(key, []).append(cell)
    return [Job(_joined(several, seed, machine), tuple(several), (seed, min(places.index(c.table) for c in several)))
            for (_, seed), several in waiting.items()]  # fmt: skip


def _joined(cells: Sequence[Cell], seed: int, machine: dict[str, object]) -> Config:
    """One run with everything that any of the cells looks at."""
    measure = list(dict.fromkeys(m for c in cells for m in c.config.measure))
    epochs = sorted({e for c in cells for e in c.config.personal or []})
    update = {"measure": measure, "personal": epochs or cells[0].config.personal, "seed": seed, **machine}
    return cells[0].config.model_copy(update=update)


def folders(out: Path | None, results: Path | None, scale: str) -> tuple[Path, Path]:
    """Where rows and where tables go: in a checkout, to the committed ones; at the tiny scale aside."""
    if scale == "tiny" and out is None:
        out = Path("runs") / "reproduce-tiny"
    if out is None:
        return results or Path("results"), Path("docs") / "reproductions"
    return results or out / "results", out
