"""Where jobs run. A place starts a child that trains what it is sent: this process, another, one in a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from steppe.engine.devices import count_cores, limit_cores
from steppe.jobs.child_process import Emit, Worker
from steppe.jobs.worker import perform


class Child(Protocol):
    """A child that trains one job at a time and emits its events (see `worker`).

    At its end it emits `gone`, and its job has failed; or `lost`, if its machine has, and its job is run again.
    """

    def send(self, request: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Ask the child to end; a run in progress ends cleanly."""

    def join(self, seconds: float) -> None:
        """Wait for the child to end, and end it by force after this time."""


Place = Callable[[Emit], Child]  # starts a child that hands its events to this function; see also `has_room`


def has_room(place: Place) -> bool:
    """Return whether a child can start now. A place in a cluster may have to wait for others, or for a new machine."""
    return getattr(place, "has_room", lambda: True)()


class Here:
    """This process: a job is done when `send` returns."""

    def __init__(self, emit: Emit) -> None:
        self.send = partial(perform, emit=emit)

    def close(self) -> None: ...

    def join(self, seconds: float) -> None: ...


def find_places(jobs: int | None, device: str, on: str | None = None) -> list[Place]:
    """Return `jobs` places that share this machine; by default one per GPU, or one per core if there is no GPU.

    With `jobs` = 1 the place is this process. `on` names a cluster instead, with as many places as it has room for.
    """
    if on is not None:
        from steppe.jobs.ray_places import find_remote_places

        return find_remote_places(on, jobs, device)
    if jobs == 1:
        return [Here]
    cards: list[dict[str, str]] = [{}]
    if device in ("auto", "cuda") and torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = [g.strip() for g in visible.split(",") if g.strip()] or map(str, range(torch.cuda.device_count()))
        cards = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus]
    elif not device.startswith("cuda"):  # cuda:1 names one GPU
        cards *= count_cores()
    count = jobs or len(cards)
    cores = limit_cores(count_cores() // count)
    return [partial(Worker, environment={**cards[k % len(cards)], **cores}) for k in range(count)]
