"""Which runs a table still needs, and where their rows and tables go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from steppe.config import Config
from steppe.reproduce.recipes import Cell, select, table
from steppe.reproduce.rows import Row, answers
from steppe.reproduce.work import Job

TRACED = ("bytes_x", "flops_x")  # statistics that need no training
UNKNOWN = "unknown"  # a statistic that the paper does not define well enough to compute


def needed(names: Sequence[str], scale: str, globs: list[str], seeds: int, tried: bool, known: Iterable[Row],
           machine: dict[str, object]) -> list[Job]:  # fmt: skip
    """Runs that no row answers yet; cells with the same recipe share one. First seeds first, then table by table."""
    there = list(known)
    waiting: dict[tuple[str, int], list[tuple[tuple[int, ...], Cell]]] = {}
    every = [(place, cell) for place, name in enumerate(names) for cell in table(name, scale).cells]
    chosen = {id(c) for c in select([c for _, c in every], globs, tried)}
    for place, cell in every:
        if id(cell) not in chosen or cell.statistic in (*TRACED, UNKNOWN):
            continue
        for seed in range(seeds):
            mine = [r for r in there if r["recipe"] == cell.hash and r["seed"] == seed]
            if not any(answers(r, cell.statistic) for r in mine):
                waiting.setdefault((cell.hash, seed), []).append(((seed, place), cell))
    runs = []
    for (_, seed), several in waiting.items():
        stages, cells = zip(*several, strict=True)
        runs.append(Job(_joined(cells, seed, machine), cells, min(stages)))
    return runs


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
