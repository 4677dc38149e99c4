"""Progress of a queue: on a terminal a bar for all jobs and one per running job, elsewhere a line now and then."""

from __future__ import annotations

import logging
import time
from typing import Any

from steppe.engine.progress import Display

TICK = 30.0  # seconds between two lines about running jobs


class QueueProgress(Display):
    """Shows jobs, messages of the queue and warnings of runs; a run's other messages are in its log.txt."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self.task: Any = None  # of all jobs
        self.rounds_of: dict[str, int] = {}
        self.states: dict[str, str] = {}  # of the running jobs
        self.bars: dict[str, Any] = {}
        self.printed = time.monotonic()

    def begin_job(self, label: str, rounds: int, done: int) -> None:
        self.rounds_of[label] = rounds
        if self.bar:
            self.task = self.bar.add_task("all", total=None, state="runs") if self.task is None else self.task
            self.bars[label] = self.bar.add_task(label, total=rounds, completed=done, state="")

    def update_job(self, label: str, done: int, state: str, left: float) -> None:
        """Show that a round has ended, with the seconds until all jobs have."""
        self.states[label] = f"{label}, round {done} of {self.rounds_of[label]}" + (f", {state}" if state else "")
        if self.bar:
            self.bar.update(self.bars[label], completed=done, **({"state": state} if state else {}))
        elif not self.quiet and time.monotonic() - self.printed > TICK:
            self.printed = time.monotonic()
            self._print(f"running: {'; '.join(self.states.values())}; about {left:.0f} s left")

    def end_job(self, label: str, done: int, total: int) -> None:
        """Show that a job has ended, and that now `done` of `total` jobs have."""
        self.states.pop(label, None)
        if self.bar and label in self.bars:
            self.bar.remove_task(self.bars.pop(label))
            self.bar.update(self.task, completed=done, total=total)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "steppe.queue" or record.levelno >= logging.WARNING:
            super().emit(record)
