"""Many runs in one folder, with progress: of a comparison, a grid or a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from steppe.core.errors import SettingError
from steppe.core.named_metrics import USUAL
from steppe.jobs.job import build_own
from steppe.jobs.places import find_places
from steppe.jobs.points import Point, run_points
from steppe.jobs.queue import Queue
from steppe.jobs.queue_progress import QueueProgress
from steppe.jobs.search import Range, Search

Make = Callable[[dict[str, Any]], Point]  # a point from the values that it varies


def make_points(make: Make, choices: Mapping[str, Sequence[Any]], ranges: Mapping[str, Range]) -> list[Point]:
    """Make every point of a grid and, of ranges, those at their ends; equal points are one."""
    ends = {**choices, **{key: [r.tidy(r.low), r.tidy(r.high)] for key, r in ranges.items()}}
    points = [make(dict(zip(ends, values, strict=True))) for values in product(*ends.values())]
    return list({p.label: p for p in points}.values())


def _check_same_metric(points: Sequence[Point]) -> None:
    """Refuse points that are evaluated by different numbers, of which none is the best."""
    known = {(p.config.judged_on, _find_metric_name(p)) for p in points}
    if any(len(set(different) - {None}) > 1 for different in zip(*known, strict=True)):
        each = " and ".join(sorted(f"{judged_on} {name or 'the usual metric'}" for judged_on, name in known))
        raise SettingError(f"the runs are evaluated by {each}, which cannot be compared: set metrics and judged_on to "
                           "the same for all of them", "metrics")  # fmt: skip


def _find_metric_name(p: Point) -> str | None:
    """Return the name of a point's main metric, or None if it depends on data or objects that are not loaded yet."""
    data, loss = p.own.get("data"), p.config.loss
    if loss is None and data is not None:
        loss = "mse" if data.train_targets.is_floating_point() else "cross_entropy"
    return p.config.metrics[0] if p.config.metrics else USUAL.get((loss or "").partition(":")[0])


def run_all(points: list[Point], seeds: int, out: Path, jobs: int | None = 1, on: str | None = None,
            quiet: bool = False, search: Search | None = None) -> list[Point]:  # fmt: skip
    """Run the points, or those that a search suggests, with every seed, each in its own folder; return them."""
    first = points[0]
    if any(p.config.rounds == 0 for p in points):
        raise SettingError("rounds is 0, so nothing would be trained: set at least 1 (steppe run evaluates an initial "
                           "model)", "rounds")  # fmt: skip
    _check_same_metric(points)
    build_own(first.config, first.own)  # what is wrong with all of them is found before anything is written
    with QueueProgress(quiet) as progress:
        expected = seeds * (search.trials if search else len(points))
        queue = Queue(find_places(jobs, first.config.device, on), progress, expected=expected)
        run_points(search or points, seeds, out, queue, search.tell if search else None)
    return list(search.points.values()) if search else points
