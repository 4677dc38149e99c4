"""Points: choices of settings, each run with several seeds; of a comparison, a grid or a search.

Each run has its folder, POINT/seed-N.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from steppe.config import Config
from steppe.core.errors import RunFailed
from steppe.core.metric import Metric
from steppe.engine.progress import ACCURACY
from steppe.engine.result import check_converged
from steppe.jobs.job import Job, Own
from steppe.jobs.queue import Ended, Queue
from steppe.runs.folder import RunFolder
from steppe.runs.records import Record, describe_score


@dataclass
class Point:
    """One choice of settings, and the outcome of its runs."""

    label: str
    config: Config = field(repr=False)
    settings: dict[str, Any] = field(default_factory=dict)  # what this point varies
    results: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)  # summaries by seed
    failed: dict[int, str] = field(default_factory=dict)
    metric: Metric = field(default=ACCURACY, repr=False)
    others: list[Metric] = field(default_factory=list, repr=False)  # the further metrics of its runs
    folder: Path = Path()
    own: Own = field(default_factory=dict, repr=False)  # the user's own objects

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return name_folder(self.label)

    def run(self, seed: int) -> RunFolder:
        return RunFolder(self.folder / f"seed-{seed}")

    def jobs(self, seeds: int, out: Path) -> list[Job]:
        """Return its runs. All that is random follows from the seed, unless the user chose otherwise."""
        self.folder, self.config = out / self.name, vary_all(self.config)
        return [Job(self.config.model_copy(update={"seed": seed}), f"{self.label}, seed {seed}", self.run(seed).path,
                    own=self.own) for seed in range(self.config.seed, self.config.seed + seeds)]  # fmt: skip

    def note(self, ended: Ended) -> None:
        """Keep a run's summary, with the validation metric of its final model, or its error."""
        seed = ended.job.config.seed
        if ended.error:
            self.failed[seed] = ended.error
            return
        run = self.run(seed)
        self.metric, *self.others = run.metrics
        summary, key = run.read("result.json"), f"validation_{self.metric.name}"
        try:
            check_converged(summary)
        except RunFailed as error:
            self.failed[seed] = str(error)
            return
        found = [r[key] for r in run.history if key in r and r["round"] <= summary["model_of_round"]]
        if summary["last"] is None or None in found[-1:]:
            score = describe_score(summary, self.metric) if summary["last"] is None else f"{key} not finite"
            self.failed[seed] = f"{score}, so there is nothing to compare"
            return
        self.results[seed] = summary | ({"validation": found[-1]} if found else {})

    def mean(self, measure: str) -> float:
        return fmean(r[measure] for r in self.results.values())

    @property
    def histories(self) -> list[list[Record]]:
        return [self.run(seed).history for seed in sorted(self.results)]

    @property
    def abouts(self) -> list[dict[str, Any]]:
        """Return what the finished runs recorded about themselves."""
        return [self.run(seed).about for seed in sorted(self.results)]

    @property
    def cost(self) -> dict[str, Any]:
        return dict(self.run(min(self.results)).about["cost"])


def name_folder(label: str, windows: bool = os.name == "nt") -> str:
    """Return the label without what file names cannot contain.

    >>> name_folder("fedsam:rho=0.1+a/b.py:B"), name_folder("fedsam:rho=0.1", windows=True)
    ('fedsam:rho=0.1+a_b.py:B', 'fedsam_rho=0.1')
    """
    return re.sub(r"[^\w.,=()+-]" if windows else r"[^\w.,:=()+-]", "_", label)


def vary_all(config: Config) -> Config:
    """Return the configuration of one run among several seeds."""
    return config if config.vary else config.model_copy(update={"vary": "all"})


def run_points(points: Iterable[Point], seeds: int, out: Path, queue: Queue,
               tell: Callable[[Point], None] | None = None) -> None:  # fmt: skip
    """Run every point with every seed, and fill in the results.

    With `tell`, the points depend on earlier ones: each is taken when a place is free, and handed to `tell` at its end.
    """
    ahead, of = iter(points), dict[Path | None, Point]()

    def add_points() -> None:
        while queue.idle and (several := list(ahead if tell is None else islice(ahead, 1))):
            jobs = [(job, point) for point in several for job in point.jobs(seeds, out)]
            of.update({job.where: point for job, point in jobs})
            queue.add(job for job, _ in jobs)

    with RunFolder(out).lock(), queue:
        add_points()
        for ended in queue:
            point = of[ended.job.where]
            point.note(ended)
            if tell and len(point.results) + len(point.failed) == seeds:
                tell(point)
            add_points()


def find_metric(points: Sequence[Point]) -> Metric:
    """Return the main metric of the finished runs."""
    return next((p.metric for p in points if p.results), points[0].metric)


def find_others(points: Iterable[Point]) -> list[Metric]:
    """Return the metrics that all finished runs have, without the main one."""
    each = [{m.name: m for m in p.others} for p in points if p.results]
    return [m for name, m in each[0].items() if all(name in one for one in each)] if each else []


def choose_measure(points: Iterable[Point]) -> str:
    """Return `validation` where every finished run has it, otherwise `last`: the test metric of the final model."""
    results = [r for p in points for r in p.results.values()]
    return "validation" if results and all("validation" in r for r in results) else "last"


def find_best(points: list[Point]) -> Point | None:
    """Return the point with the best mean; one with a failed run only if all have one."""
    measure = choose_measure(points)
    whole = [p for p in points if p.results and not p.failed] or [p for p in points if p.results]
    return max(whole, key=lambda p: -p.mean(measure) if p.metric.lower else p.mean(measure), default=None)
