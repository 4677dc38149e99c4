"""Results as lines of JSON, one per recipe and seed: appended, never rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock

from steppe.config import rename_old, resolve

Row = dict[str, Any]
HERE = Path(__file__).parent


def find_ours() -> Path:
    """Return the folder of the rows that are shipped with the library: in the package, or in the repository."""
    return HERE / "results" if (HERE / "results").is_dir() else HERE.parents[2] / "results"


def append_row(path: Path, row: Row) -> None:
    """Write one line at once, so that a crash damages at most the last line; a new line does not continue it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
    with FileLock(path.parent / ".lock"), path.open("ab+") as file:  # two commands may share a file
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; incomplete lines are left out, and others that are no row."""
    rows = []
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("config", {}), dict):
            rows.append(_renamed(row))
    return rows


def _renamed(row: Row) -> Row:
    """Return a row of an earlier version with today's names, so that it belongs to the same cell."""
    config = rename_old(row.get("config", {}))
    if config == row.get("config", {}):
        return row
    from steppe.reproduce.recipes import hash_recipe  # which imports this file

    return {**row, "config": config, "recipe": hash_recipe(resolve(config))}


def read_folders(folders: Iterable[Path], scale: str = "paper") -> list[Row]:
    """Return all rows of these folders at a scale, oldest first."""
    places = dict.fromkeys(p.resolve() for folder in folders for p in sorted(folder.glob("*.jsonl")))
    return [row for path in places for row in read_rows(path) if row.get("scale", "paper") == scale]


def find_statistic(row: Row, statistic: str) -> float | None:
    """Return a statistic of a row: `last`, `mean_of_last_ten`, `personal.5`, `measures.lambda1.values.0`; or None.

    >>> find_statistic({"personal": {"5": {"mean": 0.9}}}, "personal.5.mean"), find_statistic({"last": 0.5}, "best")
    (0.9, None)
    """
    found: Any = row
    for key in statistic.split("."):
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return float(found) if isinstance(found, int | float) else None


def has_statistic(row: Row, statistic: str) -> bool:
    """Return whether this statistic needs no new run: it is there, or the run failed."""
    return "failed" in row or find_statistic(row, statistic) is not None
