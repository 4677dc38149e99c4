"""Many runs: points of a grid or of a search, several seeds each, in a queue over local GPUs or cores.

Each run has its folder, POINT/seed-N, so all that reads folders of comparisons reads these. What is finished is not
run again, what was interrupted goes on, what fails is reported and the rest is kept.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from steppe.config import Config
from steppe.jobs.processes import Job, Place, Pool, alone
from steppe.runs.folder import RunFolder

log = logging.getLogger("steppe")
POLL = 0.2  # seconds between two looks at the children


@dataclass
class Point:
    """One choice of settings, and what became of its runs."""

    settings: dict[str, Any]
    config: Config
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # by seed
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return ",".join(f"{k}={v}" for k, v in self.settings.items()) or self.config.algorithm

    def jobs(self, seeds: int, out: Path) -> list[Job]:
        home = out / re.sub(r"[^\w.,=()+-]", "_", self.label)
        each = [self.config.model_copy(update={"seed": self.config.seed + k}) for k in range(seeds)]
        return [Job(config, home / f"seed-{config.seed}") for config in each]


class Source(Protocol):
    """Where points come from: a grid, or a search."""

    points: dict[str, Point]  # those so far, by label

    def more(self) -> list[Point]:
        """The next points; none when there is nothing left to start."""

    def tell(self, point: Point) -> None:
        """A point whose runs have all ended."""


class Grid:
    """All points, in their order."""

    def __init__(self, points: list[Point], seeds: int, out: Path) -> None:
        self.points = {p.label: p for p in points}  # two that differ in nothing are one
        self.waiting = list(self.points.values())
        for job in (job for p in self.waiting for job in p.jobs(seeds, out)):
            job.check()

    def more(self) -> list[Point]:
        now, self.waiting = self.waiting, []
        return now

    def tell(self, point: Point) -> None:
        """A grid learns nothing."""


Tick = Callable[[int, int], None]  # rounds done in all, and of them those that were there before


def sweep(source: Source, seeds: int, out: Path, places: list[Place], tick: Tick,
          judged: Callable[[Point], None]) -> None:  # fmt: skip
    """Run all points of a source, and fill in their results; `judged` is told of each that is complete."""
    waiting: deque[tuple[Point, Job]] = deque()
    whose: dict[Path, Point] = {}
    done, before = 0, 0

    def over(point: Point, job: Job, trouble: str | None) -> None:
        seed = job.config.seed
        if trouble is None:
            point.results[seed] = result(job.where)
        else:
            point.failed[seed] = trouble
            log.warning(f"{point.label}, seed {seed}: failed: {trouble}")
        if len(point.results) + len(point.failed) == seeds:
            source.tell(point)
            judged(point)

    with alone(out) as lock:
        pool = Pool(places, lock)
        try:
            while True:
                if not waiting and pool.free:
                    waiting.extend((point, job) for point in source.more() for job in point.jobs(seeds, out))
                if not waiting and not pool.running:
                    return
                while waiting and pool.free:
                    point, job = waiting.popleft()
                    job.prepare()
                    if job.finished:
                        done, before = done + job.config.rounds, before + job.config.rounds
                        over(point, job, None)
                    else:
                        before += job.rounds()
                        whose[job.where] = point
                        pool.start(job)
                ended = pool.ended()
                done += sum(job.config.rounds for job, _ in ended)
                tick(done + sum(job.rounds() for job, _ in pool.running.values()), before)
                for job, trouble in ended:
                    over(whose[job.where], job, trouble)
                if pool.running:
                    time.sleep(POLL)
        finally:
            pool.stop()


def result(where: Path) -> dict[str, Any]:
    """A finished run's summary, with the validation accuracy of the model that was judged, where there is one."""
    folder = RunFolder(where)
    summary, key = folder.read("result.json"), f"validation_{folder.metric.name}"
    found = [r[key] for r in folder.history if key in r and r["round"] <= summary["model_of_round"]]
    return summary | ({"validation": found[-1]} if found else {})


def chosen_by(points: list[Point]) -> str:
    """`validation` where every finished run has it, otherwise `last`: the test accuracy of the final model."""
    results = [r for p in points for r in p.results.values()]
    return "validation" if results and all("validation" in r for r in results) else "last"


def best(points: list[Point]) -> Point | None:
    """The point with the highest mean; one with a failed run is chosen only if all have one."""
    measure = chosen_by(points)
    whole = [p for p in points if p.results and not p.failed] or [p for p in points if p.results]
    return max(whole, key=lambda p: sum(r[measure] for r in p.results.values()) / len(p.results), default=None)
