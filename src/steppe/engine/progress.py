"""Progress with the time left, and log messages: a bar on a terminal or in a notebook, plain lines elsewhere.

Everything goes to standard error. The messages come from `logging.getLogger("steppe")`; a program that configures
logging itself still receives them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from steppe.core.metric import Metric, show_loss

log = logging.getLogger("steppe")
ACCURACY = Metric("accuracy", percent=True)


@contextmanager
def handle_logs(handler: logging.Handler) -> Iterator[None]:
    """Send log messages of level INFO and above to this handler, and to the root logger only if it has handlers."""
    level, passed_on = log.level, log.propagate
    log.addHandler(handler)
    log.propagate = bool(logging.getLogger().handlers)  # a caller that has configured logging gets them too
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = passed_on


class Display(logging.Handler):
    """Shows log messages while it is entered, above a bar where there is one."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__()
        self.quiet = quiet
        self.bar: Any = None
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        if not self.quiet:
            self.stack.enter_context(handle_logs(self))
            from rich.console import Console

            console = Console(stderr=True, emoji=False)
            # A notebook needs ipywidgets for a bar, and colours (FORCE_COLOR) do not make a terminal.
            if find_spec("ipywidgets") if console.is_jupyter else sys.stderr.isatty():
                self._start_bar(console)
        return self

    def _start_bar(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
                       TextColumn("{task.fields[state]}"), TimeElapsedColumn(), TextColumn("left"),
                       TimeRemainingColumn(), console=console)  # fmt: skip
        self.bar.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a log message."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING and record.levelno < logging.ERROR:
            text = f"warning: {text}"
        if self.bar:
            style = "yellow" if record.levelno >= logging.WARNING else "dim"
            self.bar.console.print(text, style=style, highlight=False, markup=False)
        else:
            self._print(text)

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()
        self.stack.close()


class Progress(Display):
    """Shows the rounds of a run, with the time left."""

    def __init__(self, rounds: int, quiet: bool = False, metric: Metric = ACCURACY) -> None:
        super().__init__(quiet)
        self.rounds, self.metric = rounds, metric
        self.label, self.began = "", 0.0
        self.first: int | None = None
        self.task: Any = None

    def begin(self, label: str) -> None:
        """Start the display of the next run."""
        self.label, self.began, self.first = label, time.monotonic(), None
        if self.bar:
            self.task = self.bar.add_task(label, total=self.rounds, state="")

    def round(self, record: dict[str, Any]) -> None:
        """Show that a round has ended."""
        done, name = record["round"], self.metric.name
        if self.first is None:
            self.first = done - 1  # a resumed run does not start at 0
        state = f"{self.metric.text(record[name])}  {show_loss(record['loss'])}" if name in record else ""
        state += f"  {format_privacy(record)}" if "epsilon" in record else ""
        if self.bar:
            self.bar.update(self.task, completed=done, state=state)
        elif not self.quiet and (done % max(1, self.rounds // 10) == 0 or done == self.rounds):
            left = (time.monotonic() - self.began) / (done - self.first) * (self.rounds - done)
            self._print(f"{self.label}  round {done}/{self.rounds}  {state}  {left:.0f} s left")


def format_privacy(record: dict[str, Any]) -> str:
    """Format ε of a record or summary of a run with differential privacy."""
    return f"ε {record['epsilon']:.3g}" if record["epsilon"] is not None else "ε ∞"
