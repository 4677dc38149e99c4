"""What a run needs of memory and disk: told before it starts, and refused with the numbers where it would not fit."""

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
from steppe.flatness.free_memory import free
from steppe.runs.client_store import DiskStore, MemoryStore, Store, width
from steppe.runs.folder import RunFolder

GIB = 1 << 30
REWRITTEN = 256 << 20  # bytes of client states above which a checkpoint should write only those that changed


class Needs(NamedTuple):
    """Bytes. Activations come on top, and are small beside a round's vectors unless batches are large."""

    states: int  # of clients, in memory
    round: int  # states and replies of a round's clients
    disk: int  # at most, at the end of the run

    @property
    def memory(self) -> int:
        return 2 * self.states + self.round  # twice while a checkpoint is written


def fresh_state(experiment: Experiment) -> Callable[[], Any]:
    """What a client has before it takes part for the first time."""
    task = experiment.task

    def fresh() -> Any:
        state = experiment.algorithm.client_state(task.x0)
        own = task.buffers and experiment.config.buffers == "local"
        return {**state, OWN_BUFFERS: task.buffers} if own else state

    return fresh


def on_disk(experiment: Experiment, out: Path | None) -> bool:
    """Whether client states are kept in a file. It depends on nothing that differs between a run and its resumption."""
    config = experiment.config
    if config.store != "auto":
        return config.store == "disk"
    some = needs(experiment, False)
    return out is not None and (some.states > REWRITTEN or some.memory > _allowed(experiment))


def client_store(experiment: Experiment, out: Path | None) -> Store:
    fresh = fresh_state(experiment)
    if not on_disk(experiment, out):
        return MemoryStore(fresh)
    if out is None:
        raise SteppeError("store = disk needs a folder to write to: give the run an output folder.")
    return DiskStore(fresh, RunFolder(out).client_states, experiment.config.clients)


def needs(experiment: Experiment, disk: bool) -> Needs:
    """At the end of the run, when most clients have a state; in one process, or in all those of a launch together."""
    config, cost, x = experiment.config, experiment.cost, experiment.task.x0
    row, vector = width(fresh_state(experiment)()), x.numel() * x.element_size()
    visits = config.rounds * config.per_round
    seen = min(config.clients, visits)
    # Replies exist twice while they are stacked, states before and after the round.
    a_round = config.per_round * (2 * (max(vector, cost.bytes_up) + row) + row)
    server = int(cost.server * vector)
    if disk:
        page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
        filed = min(DiskStore.SLOTS * config.clients, visits) * (row + page if row else 0)
        return Needs(0, a_round, filed + 3 * server)
    return Needs(seen * row, a_round, 3 * (seen * row + server))


def check(experiment: Experiment, disk: bool, out: Path | None) -> str:
    """A line about what the run needs and what there is; an error if that is too little."""
    config, device = experiment.config, experiment.task.x0.device
    need, there = needs(experiment, disk), free(device)
    if config.reduction == "ordered":  # every rank has all replies
        need = need._replace(round=need.round * torchrun.size())
    extra = need.memory if out else need.states + need.round
    told = (f"the states of {config.clients:,} clients{'' if disk else ' ' + _size(need.states)}"
            f"{' on disk' if disk else ''}, a round's vectors {_size(need.round)}")  # fmt: skip
    remedy = "lower per_round or take a smaller model"
    if not disk and need.states > need.round:
        remedy = "keep them on disk (store = disk" + (")" if out else " and an output folder)")
    if extra > _allowed(experiment):
        raise SteppeError(f"This run needs {_size(extra)} of memory beside the program and its data ({told}), and "
                          f"memory = {config.memory:g} allows {_size(_allowed(experiment))}: {remedy}, or raise "
                          "memory.")  # fmt: skip
    if extra > there:
        raise SteppeError(f"This run needs {_size(extra)} of memory beside the program and its data ({told}), but "
                          f"{_size(there)} are free: {remedy}.")  # fmt: skip
    line = f"memory: {_size(extra)} ({told}), {_size(there)} free"
    if out is None:
        return line
    place = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    rest = shutil.disk_usage(place).free + _written(out)
    if need.disk > rest:
        raise SteppeError(f"This run needs up to {_size(need.disk)} of disk for client states and checkpoints, but "
                          f"{_size(rest)} are free at {place}: choose another --out, fewer clients or a smaller "
                          "model.")  # fmt: skip
    return f"{line}; disk: up to {_size(need.disk)}, {_size(rest)} free"


def _allowed(experiment: Experiment) -> float:
    """Bytes; without the key, what is free is the only limit."""
    return float("inf") if experiment.config.memory is None else experiment.config.memory * GIB


def _written(out: Path) -> int:
    """What an earlier part of the run has written already."""
    folder = RunFolder(out)
    files = [folder.client_states, *folder.checkpoints.rglob("*.safetensors")]
    return sum(f.stat().st_blocks * 512 for f in files if f.exists())


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{ceil(count / 2**20):d} MiB"
