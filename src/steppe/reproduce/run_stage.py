"""Run what is missing, and keep one row per run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from steppe.jobs.queue import Queue
from steppe.reproduce.make_row import make_row
from steppe.reproduce.missing_runs import CellJob, estimate_seconds
from steppe.reproduce.rows import Row, append_row


def run_stage(find_runs: Callable[[], list[CellJob]], queue: Queue, where: Path, scale: str, processes: int,
              known: Sequence[Row] = (), again: bool = False) -> dict[str, str]:  # fmt: skip
    """Run the jobs of a stage and append their rows to files in `where`; return why some failed, by label.

    known  rows that tell how long runs take, until the first one does
    again  look for further runs after each one, because the next runs depend on its result
    """
    failed: dict[str, str] = {}
    jobs = find_runs()
    first = {job.label: job.cells[0] for job in jobs}
    seconds, _ = estimate_seconds(jobs, known)
    queue.expects |= {j.label: processes * s for j, s in zip(jobs, seconds, strict=True) if s is not None}
    queue.add(jobs)
    for ended in queue:
        if ended.error:
            failed[ended.job.label] = ended.error
            continue
        cell = first[ended.job.label]
        row = {"table": cell.table, "cell": cell.id, "scale": scale, **make_row(ended.job.config, ended.facts),
               "processes": processes}  # fmt: skip
        append_row(where / f"{cell.table}.jsonl", row)
        if again:
            more = [job for job in find_runs() if job.label not in first]
            first |= {job.label: job.cells[0] for job in more}
            queue.add(more)
    return failed
