"""Where jobs run. A place starts a child that trains what it is sent: a process on this machine, or this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch

from steppe.engine.devices import CORES, count_cores
from steppe.jobs.worker import Emit, pack_own, perform

COMMAND = (sys.executable, "-m", "steppe.jobs.worker")


class Child(Protocol):
    """A child that trains one job at a time and emits its events (see `worker`); at its end, it emits `gone`."""

    def send(self, request: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Ask the child to end; a run in progress ends cleanly."""

    def join(self, seconds: float) -> None:
        """Wait for the child to end, and end it by force after this time."""


Place = Callable[[Emit], Child]  # starts a child that hands its events to this function


class Here:
    """This process: a job is done when `send` returns."""

    def __init__(self, emit: Emit) -> None:
        self.send = partial(perform, emit=emit)

    def close(self) -> None: ...

    def join(self, seconds: float) -> None: ...


class Worker:
    """A worker process with these environment variables. Its events arrive in a separate thread."""

    def __init__(self, emit: Emit, environment: dict[str, str]) -> None:
        # In its own session: Ctrl-C reaches only this process, which then ends its children cleanly.
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
                                        env={**os.environ, **environment}, start_new_session=True)  # fmt: skip
        threading.Thread(target=self._listen, args=(emit,), daemon=True).start()

    def _listen(self, emit: Emit) -> None:
        for line in self.process.stdout or ():
            with suppress(ValueError):  # an incomplete line of a killed process
                emit(json.loads(line))
        code = self.process.wait()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        emit({"gone": f"its process {ended}" + (", perhaps because it ran out of memory" if code == -9 else "")})

    def send(self, request: dict[str, Any]) -> None:
        with suppress(OSError):  # it has ended, which the other thread reports
            print(json.dumps(pack_own(request)), file=self.process.stdin, flush=True)

    def close(self) -> None:
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]

    def join(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def find_places(jobs: int | None, device: str) -> list[Place]:
    """Return `jobs` places that share this machine; by default one per GPU, or one per core if there is no GPU.

    With `jobs` = 1 the place is this process.
    """
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
    share = str(max(1, count_cores() // count))
    cores = {CORES: share, "OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}
    return [partial(Worker, environment={**cards[k % len(cards)], **cores}) for k in range(count)]
