"""The race of `benchmarks.gpu`: programs in this process, and other frameworks in their own processes, take turns.

A round ends with the evaluation, so that every time comes with an accuracy. A framework that is not installed, fails,
or takes too long becomes a row with the reason.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import race
from benchmarks.contenders import WORDS, missing

WARM_UP, TIMED = 2, 7  # rounds: for compilation and the choice of kernels, then for timing
Turn = Callable[[], tuple[float, float | None]]  # a round: its seconds, and the accuracy after it
Row = dict[str, Any]


def compete(
    turns: dict[str, Turn], others: list[str], settle: dict[str, Callable[[], None]], limit: float
) -> list[Row]:
    """Return the rows of all programs, other frameworks last; their time limit is `limit` seconds per round."""
    if not turns:
        return []
    absent = [{"job": WORDS[name], "skipped": f"not installed: {missing(name)}"} for name in others if missing(name)]
    rounds = WARM_UP + TIMED
    children = [race.Child(name, race.command(name, "gpu", rounds), limit) for name in others if not missing(name)]
    try:
        return [*together({**turns, **{WORDS[c.name]: asked(c) for c in children}}, TIMED, settle).values(), *absent]
    finally:
        for child in children:
            child.stop(patience=30 if len(child.rounds) == rounds else 0)


def clocked(step: Callable[[], Any]) -> Turn:
    """Return a function that runs and times one round in this process."""

    def turn() -> tuple[float, Any]:
        synchronise()
        began = time.perf_counter()
        found = step()
        synchronise()
        return time.perf_counter() - began, found

    return turn


def timed(step: Callable[[], Any]) -> float:
    """Return the seconds that a step takes."""
    return clocked(step)()[0]


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def asked(child: race.Child) -> Turn:
    """Return a function that runs one round in another process, timed there; the first round includes the start."""

    def turn() -> tuple[float, float | None]:
        try:
            child.round()
        except race.GaveUp:
            child.stop()  # now, because its remaining processes would slow down the others
            raise
        answer = child.rounds[-1]
        return (answer["seconds"] if len(child.rounds) > 1 else child.first), answer["accuracy"]

    return turn


def together(turns: dict[str, Turn], count: int, settle: dict[str, Callable[[], None]]) -> dict[str, Row]:
    """Run the first rounds of each program alone, with its `settle` step; then `count` rounds of all in turns."""
    rows: dict[str, Row] = {name: {"job": name} for name in turns}
    times: dict[str, list[float]] = {name: [] for name in turns}

    def play(name: str) -> None:
        if "failed" in rows[name]:
            return
        try:
            seconds, rows[name]["accuracy"] = turns[name]()
            times[name].append(seconds)
        except race.GaveUp as why:
            rows[name] = {"job": name, "failed": str(why)}

    for name in turns:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        play(name)
        settle.get(name, lambda: None)()
        play(name)
        rows[name]["peak_GiB"] = (torch.cuda.max_memory_allocated() - held) / 2**30 or None  # of this process
    for _ in range(count):
        for name in turns:
            play(name)
    for name, (first, _, *t) in ((name, times[name]) for name in turns if "failed" not in rows[name]):
        rows[name] |= {"best": min(t), "median": statistics.median(t), "times": t, "first_round": first,
                       "rounds": len(times[name])}  # fmt: skip
    return rows
