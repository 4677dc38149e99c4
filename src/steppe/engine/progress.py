"""Progress with time left: a bar on a terminal, plain lines elsewhere. Always on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """Shows the rounds of one run after the other."""

    def __init__(self, rounds: int, quiet: bool = False) -> None:
        self.rounds, self.quiet = rounds, quiet
        self.label, self.began = "", 0.0
        self.first: int | None = None
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Progress:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
                           TextColumn("{task.fields[told]}"), TimeElapsedColumn(), TextColumn("left"),
                           TimeRemainingColumn(), console=Console(stderr=True))  # fmt: skip
            self.bar.start()
        return self

    def begin(self, label: str) -> None:
        """The next run."""
        self.label, self.began, self.first = label, time.monotonic(), None
        if self.bar:
            self.task = self.bar.add_task(label, total=self.rounds, told="")

    def round(self, record: dict[str, Any]) -> None:
        done = record["round"]
        if self.first is None:
            self.first = done - 1  # a resumed run does not start at 0
        told = f"accuracy {100 * record['accuracy']:5.2f}  loss {record['loss']:.4f}" if "accuracy" in record else ""
        told += f"  {privacy_text(record)}" if "epsilon" in record else ""
        if self.bar:
            self.bar.update(self.task, completed=done, told=told)
        elif not self.quiet and (done % max(1, self.rounds // 10) == 0 or done == self.rounds):
            left = (time.monotonic() - self.began) / (done - self.first) * (self.rounds - done)
            print(f"{self.label}  round {done}/{self.rounds}  {told}  {left:.0f} s left", file=sys.stderr, flush=True)

    def so_far(self, done: int, told: str) -> None:
        """Where many runs are together, in rounds; only a bar shows it."""
        if self.bar:
            self.bar.update(self.task, completed=done, told=told)

    def say(self, text: str) -> None:
        if self.bar:
            self.bar.console.print(text, style="dim", highlight=False, markup=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()


def privacy_text(told: dict[str, Any]) -> str:
    """ε of a record or summary of a run with differential privacy."""
    return f"ε {told['epsilon']:.3g}" if told["epsilon"] is not None else "ε ∞"
