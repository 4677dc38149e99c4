"""Several algorithms under one protocol, over several seeds."""

from __future__ import annotations

from pathlib import Path

from steppe.config import Config
from steppe.engine.build import build_experiment
from steppe.jobs.places import Here
from steppe.jobs.points import Point, run_points
from steppe.jobs.queue import Queue


def compare(configs: dict[str, Config], seeds: int, out: Path, queue: Queue | None = None) -> list[Point]:
    """Run every configuration with every seed, each in its own folder; by default in this process."""
    build_experiment(next(iter(configs.values())))  # find common errors before anything is written
    points = [Point(label, config) for label, config in configs.items()]
    run_points(points, seeds, out, queue or Queue([Here]))
    return points
