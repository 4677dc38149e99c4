"""How far a benchmark is, and how long it will still take: one line that renews itself, on a terminal alone."""

from __future__ import annotations

import sys
import time


def spoken(seconds: float) -> str:
    """
    >>> spoken(8), spoken(100), spoken(600)
    ('8 s', '1 min 40 s', '10 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{rest} s" if not minutes else f"{minutes} min" if minutes >= 10 or not rest else f"{minutes} min {rest} s"


class Progress:
    """`of` steps of one kind; without a number only their pace is shown."""

    def __init__(self, what: str, of: int | None = None) -> None:
        self.what, self.of, self.done, self.began = what, of, 0, time.perf_counter()
        self.shown = sys.stderr.isatty()

    def step(self) -> None:
        self.done += 1
        pace = (time.perf_counter() - self.began) / self.done
        told = f"{self.what}: {self.done}"
        if self.of is None:
            told += f", {pace:.1f} s each"
        else:
            told += f" of {self.of}, about {spoken(pace * (self.of - self.done))} left"
        if self.shown:
            sys.stderr.write(f"\r\033[K{told}")
            sys.stderr.flush()

    def say(self, line: str) -> None:
        """A line that stays."""
        self.end()
        print(line, flush=True)

    def end(self) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
