"""Memory and disk space that a run needs: reported before it starts, and refused if there is too little."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from steppe.core.client import OWN_BUFFERS
from steppe.core.errors import SteppeError
from steppe.distributed import torchrun
from steppe.experiment import Experiment
from steppe.flatness.free_memory import find_free_memory
from steppe.runs.client_store import DiskStore, MemoryStore, Store, count_bytes
from steppe.runs.folder import RunFolder

GIB = 1 << 30
REWRITTEN = 256 << 20  # bytes of client states above which a checkpoint should not write all of them


class Needs(NamedTuple):
    """Needs in bytes, without activations: unless batches are large, they are small compared with a round's vectors."""

    states: int  # client states in memory
    round: int  # states and replies of a round's clients
    disk: int  # upper bound at the end of the run

    @property
    def memory(self) -> int:
        return 2 * self.states + self.round  # states exist twice while a checkpoint is written


def make_fresh_state(experiment: Experiment) -> Callable[[], Any]:
    """Return a function that makes the state of a client before its first round."""
    task = experiment.task

    def fresh() -> Any:
        state = experiment.algorithm.client_state(task.x0)
        own = task.buffers and experiment.config.buffers == "local"
        return {**state, OWN_BUFFERS: task.buffers} if own else state

    return fresh


def is_on_disk(experiment: Experiment, out: Path | None) -> bool:
    """Return whether client states are kept in a file. A resumed run must come to the same answer."""
    config = experiment.config
    if config.store != "auto":
        return config.store == "disk"
    some = estimate_needs(experiment, False)
    return out is not None and (some.states > REWRITTEN or some.memory > _find_limit(experiment))


def make_store(experiment: Experiment, out: Path | None) -> Store:
    """Create the store of client states, in memory or on disk."""
    fresh = make_fresh_state(experiment)
    if not is_on_disk(experiment, out):
        return MemoryStore(fresh)
    if out is None:
        raise SteppeError("store = disk needs a folder to write to: give the run an output folder.")
    return DiskStore(fresh, RunFolder(out).client_states)


def estimate_needs(experiment: Experiment, disk: bool) -> Needs:
    """Compute the needs at the end of the run, when most clients have a state, summed over all ranks."""
    config, cost, x = experiment.config, experiment.cost, experiment.task.x0
    row, vector = count_bytes(make_fresh_state(experiment)()), x.numel() * x.element_size()
    visits = config.rounds * config.per_round
    seen = min(config.clients, visits)
    # Replies exist twice while they are stacked; states exist before and after the round.
    a_round = config.per_round * (2 * (max(vector, cost.bytes_up) + row) + row)
    server = int(cost.server * vector)
    if disk:
        page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
        filed = min(DiskStore.SLOTS * config.clients, visits) * (row + page if row else 0)
        return Needs(0, a_round, filed + 3 * server)
    return Needs(seen * row, a_round, 3 * (seen * row + server))


def check_resources(experiment: Experiment, disk: bool, out: Path | None) -> str:
    """Return a line on what the run needs and what is free; refuse a run that does not fit."""
    config, device = experiment.config, experiment.task.x0.device
    need, there = estimate_needs(experiment, disk), find_free_memory(device)
    if config.reduction == "ordered":  # every rank holds all replies
        need = need._replace(round=need.round * torchrun.count_ranks())
    extra = need.memory if out else need.states + need.round
    detail = (f"the states of {config.clients:,} clients{'' if disk else ' ' + _format_size(need.states)}"
              f"{' on disk' if disk else ''}, a round's vectors {_format_size(need.round)}")  # fmt: skip
    remedy = "lower per_round or use a smaller model"
    if not disk and need.states > need.round:
        remedy = "keep them on disk (store = disk" + (")" if out else " and an output folder)")
    if extra > _find_limit(experiment):
        allowed = f"memory = {config.memory:g} allows {_format_size(_find_limit(experiment))}"
        raise SteppeError(f"This run needs {_format_size(extra)} of memory in addition to the program and its data "
                          f"({detail}), but {allowed}: {remedy}, or raise memory.")  # fmt: skip
    if extra > there:
        raise SteppeError(f"This run needs {_format_size(extra)} of memory in addition to the program and its data "
                          f"({detail}), but {_format_size(there)} are free: {remedy}.")  # fmt: skip
    line = f"memory: {_format_size(extra)} ({detail}), {_format_size(there)} free"
    if out is None:
        return line
    place = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    rest = shutil.disk_usage(place).free + _count_written(out)
    if need.disk > rest:
        raise SteppeError(f"This run needs up to {_format_size(need.disk)} of disk for client states and checkpoints, "
                          f"but {_format_size(rest)} are free at {place}: choose another --out, fewer clients or a "
                          "smaller model.")  # fmt: skip
    return f"{line}; disk: up to {_format_size(need.disk)}, {_format_size(rest)} free"


def _find_limit(experiment: Experiment) -> float:
    """Return the limit that the key `memory` sets, in bytes."""
    return float("inf") if experiment.config.memory is None else experiment.config.memory * GIB


def _count_written(out: Path) -> int:
    """Return the bytes that an earlier part of the run has already written."""
    folder = RunFolder(out)
    files = [folder.client_states, *folder.checkpoints.rglob("*.safetensors")]
    return sum(f.stat().st_blocks * 512 for f in files if f.exists())


def _format_size(count: float) -> str:
    """
    >>> _format_size(3 * 2**30), _format_size(5.2 * 2**20), _format_size(300 * 2**10), _format_size(0)
    ('3.0 GiB', '6 MiB', '300 KiB', '0 KiB')
    """
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{ceil(count / 2**20)} MiB" if count >= 2**20 else f"{ceil(count / 2**10)} KiB"
