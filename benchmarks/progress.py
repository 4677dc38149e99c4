"""Progress of a benchmark and the time left: one line that updates itself, only on a terminal."""

from __future__ import annotations

import sys
import time


def spoken(seconds: float) -> str:
    """Format seconds for people.

    >>> spoken(8), spoken(100), spoken(600)
    ('8 s', '1 min 40 s', '10 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{rest} s" if not minutes else f"{minutes} min" if minutes >= 10 or not rest else f"{minutes} min {rest} s"


class Progress:
    """A progress line for `of` steps; without a number, only their pace is shown."""

    def __init__(self, what: str, of: int | None = None) -> None:
        self.what, self.of, self.done, self.began = what, of, 0, time.perf_counter()
        self.shown = sys.stderr.isatty()

    def step(self) -> None:
        """Count one step and update the line."""
        self.done += 1
        pace = (time.perf_counter() - self.began) / self.done
        line = f"{self.what}: {self.done}"
        if self.of is None:
            line += f", {pace:.1f} s each"
        else:
            line += f" of {self.of}, about {spoken(pace * (self.of - self.done))} left"
        if self.shown:
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()

    def say(self, line: str) -> None:
        """Print a permanent line."""
        self.end()
        print(line, flush=True)

    def end(self) -> None:
        """Erase the progress line."""
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
