"""Choice of the executor. If the requested one cannot run the model, another is used and a note says why."""

from __future__ import annotations

import os
from pathlib import Path

from steppe.distributed import torchrun
from steppe.distributed.ranks import assign_clients
from steppe.engine.batching_problem import find_batching_problem
from steppe.engine.compile_cache import ENVIRONMENT, load_cache
from steppe.engine.devices import count_cores
from steppe.executors.batched import Batched
from steppe.executors.captured import Captured
from steppe.executors.executor import Executor
from steppe.executors.sequential import Sequential
from steppe.executors.timetable import choose_width
from steppe.executors.workers import CannotShareError, Workers
from steppe.experiment import Experiment

ROUNDS_AHEAD = 50  # rounds that are sampled to choose the number of lanes of a captured step


def choose_executor(experiment: Experiment) -> Executor:
    """Return the executor that the configuration asks for, or else one that can run this model."""
    c, cuda, notes = experiment.config, experiment.task.x0.is_cuda, experiment.notes
    algorithm, task, federation = experiment.algorithm, experiment.task, experiment.federation
    batched = c.executor == "batched" or (c.executor == "auto" and cuda)
    if batched and task.uses_batch_statistics:
        batched = False
        notes.append("this model's batch statistics would include padding, so clients are trained one after the "
                     "other; a model with group norm can be batched")  # fmt: skip
    if batched and (why := find_batching_problem(algorithm, task, federation)):
        batched = False
        notes.append(f"clients are trained one after the other, because vmap cannot run {why}")
    if batched and cuda and c.compile:
        if cache := c.compile_cache or os.environ.get(ENVIRONMENT):
            notes += [why] if (why := load_cache(Path(cache), task.x0.device)) else []
        ahead = [[experiment.steps(i) for i in experiment.sample(t)] for t in range(ROUNDS_AHEAD)]
        width = choose_width([_take_first_share(steps) for steps in ahead], c.chunk)
        return Captured(algorithm, task, federation, width, notes=notes)
    if batched:
        return Batched(algorithm, task, federation, c.chunk)
    count = 0 if cuda else _count_workers(experiment)
    if count:
        try:
            own_buffers = bool(task.buffers) and c.buffers == "local"
            return Workers(algorithm, task, federation, count, max(c.per_round, count), own_buffers)
        except CannotShareError as reason:
            notes.append(f"clients are trained in this process, because {reason}")
    return Sequential(algorithm, task, federation)


def _count_workers(experiment: Experiment) -> int:
    if torchrun.count_ranks() > 1:
        return 0  # the ranks are the workers
    if experiment.config.workers != "auto":
        return experiment.config.workers
    return min(count_cores(), experiment.config.per_round) if not experiment.small and count_cores() > 1 else 0


def _take_first_share(steps: list[int]) -> list[int]:
    """Return the steps of the clients that the first rank trains; other ranks get about as much work."""
    owners = assign_clients(steps, torchrun.count_ranks(), [None] * len(steps))
    return [n for n, owner in zip(steps, owners, strict=True) if owner == 0]
