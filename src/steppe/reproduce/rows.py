"""Results as lines of JSON, one per recipe and seed: appended, never rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError

from steppe.config import Config, rename_old, resolve
from steppe.core.errors import SteppeError
from steppe.reproduce.recipes import hash_recipe
from steppe.settings import explain

Row = dict[str, Any]
HERE = Path(__file__).parent
CPU = "a CPU"


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
    """Return the rows of a file; incomplete lines, and lines that are not rows, are left out."""
    rows = []
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("config", {}), dict):
            rows.append(_rename(row))
    return rows


def _rename(row: Row) -> Row:
    """Return a row of an earlier version with today's names, so that it belongs to the same cell."""
    config = rename_old(row.get("config", {}))
    if config == row.get("config", {}):
        return row
    return {**row, "config": config, "recipe": hash_recipe(resolve(config))}


class WholeRow(BaseModel):
    """What every row has; the rest depends on what was run."""

    table: str
    cell: str
    recipe: str
    seed: int
    config: Config
    hardware: str
    seconds: dict[str, float]
    processes: int = Field(1, ge=1)
    accuracy: list[float] = []


def find_fault(row: Row) -> str:
    """Return what is wrong with a row that lacks what every row has, or has it in another form; empty if nothing is."""
    try:
        WholeRow.model_validate(row)
    except ValidationError as error:
        return str(explain(error, WholeRow))
    lost = [key for key in ("algorithm", "data", "lr_schedule", "rounds", "validation") if key not in row["config"]]
    lost += ["total seconds"] * ("total" not in row["seconds"])
    lost += ["accuracy"] * ("failed" not in row and not row.get("accuracy"))
    return f"{lost[0]} is missing" if lost else ""


def read_folders(folders: Iterable[Path], scale: str = "paper", check: bool = False) -> list[Row]:
    """Return all rows of these folders at a scale, oldest first; refuse a faulty one if they are to be checked."""
    places = dict.fromkeys(p.resolve() for folder in folders for p in sorted(folder.glob("*.jsonl")))
    found = [(path, row) for path in places for row in read_rows(path) if row.get("scale", "paper") == scale]
    for path, row in found if check else ():
        if fault := find_fault(row):
            raise SteppeError(f"{path} has a row that is damaged, or of a newer version: {fault}. Remove its line.")
    return [row for _, row in found]


def group_runs(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return the rows of every run, by its recipe and seed."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["recipe"], row["seed"]), []).append(row)
    return found


def is_on_gpu(row: Row) -> bool:
    """Return whether a run was trained on a GPU, whose memory is then recorded."""
    return row.get("peak_gpu_mib") is not None


def count_seconds(row: Row) -> float:
    """Return the seconds that a run took of its GPU, which several processes may have shared; 0 on a CPU."""
    return float(row["seconds"]["total"] / max(row.get("processes", 1), 1)) if is_on_gpu(row) else 0.0


def name_device(row: Row) -> str:
    """Name the GPU of whose seconds a run took some, or a CPU.

    >>> name_device({"hardware": "one NVIDIA H200, 16 CPU cores", "processes": 5, "peak_gpu_mib": 100})
    'one H200, shared'
    """
    if not is_on_gpu(row):
        return CPU
    name = row["hardware"].partition(", ")[0].replace("NVIDIA ", "")
    return f"{name}, shared" if row.get("processes", 1) > 1 else name


def describe_devices(names: Collection[str]) -> str:
    """Say of which GPUs the seconds are of runs on these devices.

    >>> describe_devices(["one H200, shared", "a CPU", "one A100"]), describe_devices(["a CPU"])
    ('seconds are of one A100 or one H200, shared; runs on a CPU have none', 'runs on a CPU have no seconds')
    """
    gpus = sorted({*names} - {CPU})
    if not gpus:
        return f"runs on {CPU} have no seconds"
    return f"seconds are of {' or '.join(gpus)}" + f"; runs on {CPU} have none" * (CPU in names)


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


def find_score(rows: Iterable[Row], recipe: str, seed: int, statistic: str) -> float | None:
    """Return the newest score of a recipe; −1 where the training broke down, None where it was not run."""
    mine = [r for r in rows if r["recipe"] == recipe and r["seed"] == seed]
    found = [-1.0 if "failed" in r else find_statistic(r, statistic) for r in mine]
    return next((f for f in reversed(found) if f is not None), None)


def has_statistic(row: Row, statistic: str) -> bool:
    """Return whether this statistic needs no new run: it is there, or the run failed."""
    return "failed" in row or find_statistic(row, statistic) is not None
