"""A few places to run, each with one child process at a time: `python -m steppe run`, as a user would type it.

A place is a GPU, or a share of the cores. A run's folder holds its configuration before it starts, so the child's
command is always the same: go on with what is in the folder. Its words go to log.txt there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.engine.devices import CORES, count_cores
from steppe.runs.folder import RunFolder

LOG = "log.txt"
PATIENCE = 10.0  # seconds that a child gets to end by itself


@dataclass(frozen=True)
class Job:
    """One run: a configuration, seed included, and its folder."""

    config: Config
    where: Path

    @property
    def finished(self) -> bool:
        """Whether it needs no running: all its rounds are there."""
        folder = RunFolder(self.where)
        return folder.finished and folder.stored["rounds"] == self.config.rounds

    def check(self) -> None:
        """Refuse a folder with another run in it."""
        folder = RunFolder(self.where)
        if folder.exists and (changed := folder.differences(self.config)):
            raise SteppeError(f"{self.where} holds a run with other settings: {', '.join(changed)}. "
                              "Choose another --out.")  # fmt: skip

    def prepare(self) -> None:
        """Put the configuration where the child will look for it."""
        self.check()
        if not RunFolder(self.where).exists:
            self.where.mkdir(parents=True, exist_ok=True)
            RunFolder(self.where).write("config.json", self.config.model_dump(mode="json"))

    def rounds(self) -> int:
        """How far it is."""
        return min(RunFolder(self.where).rounds_done, self.config.rounds)


Place = dict[str, str]  # where a child runs, said by its environment


def places(jobs: int | None, device: str) -> list[Place]:
    """A place for each GPU, or for each core; with `jobs`, so many, which share them."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = [g.strip() for g in visible.split(",") if g.strip()] or list(map(str, range(torch.cuda.device_count())))
        return [{"CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} for k in range(jobs or len(gpus))]
    if device.startswith("cuda"):  # a GPU was named
        return [{}] * (jobs or 1)
    count = jobs or count_cores()
    share = str(max(1, count_cores() // count))
    return [{CORES: share, "OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}] * count


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", "steppe", "run", "--resume", "--json", "--rounds", str(job.config.rounds),
            "--out", str(job.where)]  # fmt: skip


class Pool:
    """Children at their places. They hold `lock`, so that nobody else takes up a folder that one still writes to."""

    def __init__(self, free: list[Place], lock: int) -> None:
        self.free, self.lock = list(free), lock
        self.running: dict[subprocess.Popen[bytes], tuple[Job, Place]] = {}

    def start(self, job: Job) -> None:
        place = self.free.pop(0)
        with (job.where / LOG).open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then ends its children in good order.
            child = subprocess.Popen(command(job), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                     env={**os.environ, **place}, start_new_session=True,
                                     pass_fds=(self.lock,))  # fmt: skip
        self.running[child] = (job, place)

    def ended(self) -> list[tuple[Job, str | None]]:
        """Those that have ended since, each with what went wrong, if anything."""
        over = []
        for child in [c for c in self.running if c.poll() is not None]:
            job, place = self.running.pop(child)
            self.free.append(place)
            over.append((job, None if child.returncode == 0 else _last_words(job, child.returncode)))
        return over

    def stop(self) -> None:
        """End all children; what their checkpoints hold is kept."""
        try:
            for child in self.running:
                child.send_signal(signal.SIGINT)
            until = time.monotonic() + PATIENCE
            while any(c.poll() is None for c in self.running) and time.monotonic() < until:
                time.sleep(0.05)
        finally:  # also when the user is impatient
            for child in self.running:
                child.kill()
                child.wait()
            self.running = {}


def _last_words(job: Job, code: int) -> str:
    """The sentence with which a child ended."""
    said = [line.strip() for line in (job.where / LOG).read_text(errors="replace").splitlines() if line.strip()]
    told = next((line for line in reversed(said) if line.startswith("error: ")), said[-1] if said else "")
    if code < 0:
        return f"it was ended by signal {-code}" + (", perhaps for lack of memory" if code == -signal.SIGKILL else "")
    return told.removeprefix("error: ") or f"it ended with code {code} and no word"


@contextmanager
def alone(out: Path) -> Iterator[int]:
    """Hold a folder for one sweep, and for its children even if the sweep is killed."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "sweep.lock").open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such thing on this system
            pass
        except BlockingIOError:
            raise SteppeError(f"A sweep, or a run that it started, is still at work in {out}: wait until it has "
                              "ended, or choose another --out.") from None  # fmt: skip
        yield file.fileno()
