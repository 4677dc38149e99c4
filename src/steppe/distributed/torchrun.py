"""The processes of a torchrun launch: joining, agreeing on results, and the error if one of them is lost.

Without torchrun there is one process, and all of this does nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist

from steppe.core.errors import RunFailed, SteppeError, take_first_line

T = TypeVar("T")
PATIENCE = timedelta(hours=2)  # the longest wait for another rank, which may be measuring or loading
CPU = torch.device("cpu")


class RankProcess(NamedTuple):
    """The process of one rank."""

    host: str
    process: int
    own_gpu: bool


processes: list[RankProcess] = []  # all ranks, after `join`


def is_launched() -> bool:
    """Return whether this process belongs to a torchrun launch."""
    return "TORCHELASTIC_RUN_ID" in os.environ or dist.is_initialized()


def is_first() -> bool:
    """Return whether this is rank 0, which writes files and messages; a single process always is."""
    return dist.get_rank() == 0 if dist.is_initialized() else os.environ.get("RANK", "0") == "0" or not is_launched()


def count_ranks() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def find_local_gpu() -> int:
    """Return this rank's GPU; if there are more ranks than GPUs, they share them."""
    return int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()


def join() -> None:
    """Join the process group. Tensors on a GPU are sent by NCCL, all others by gloo."""
    if not is_launched() or processes:
        return
    if not dist.is_initialized():
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"] and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # on one machine, do not depend on name resolution
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        if cuda:
            torch.cuda.set_device(find_local_gpu())
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
        atexit.register(_leave)
    own_gpu = 0 < int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= torch.cuda.device_count()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, RankProcess(socket.gethostname(), os.getpid(), own_gpu))
    processes[:] = everyone
    if not is_first():
        logging.getLogger("steppe").setLevel(logging.CRITICAL)  # only rank 0 logs
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: _report_loss("it was asked to stop"))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def make_sendable(v: torch.Tensor) -> torch.Tensor:
    """Return the tensor on a device it can be sent from: NCCL needs one GPU per rank; otherwise use the CPU."""
    return v.contiguous() if all(p.own_gpu for p in processes) else v.cpu().contiguous()


def run_on_first(make: Callable[[], T]) -> T:
    """Return on every rank what `make` returns on rank 0, or raise the error that it raises there."""
    if not dist.is_initialized():
        return make()
    box: list[Any] = [None]
    if is_first():
        try:
            box = [make()]
        except SteppeError as error:
            box = [error]
    with name_lost_ranks():
        dist.broadcast_object_list(box, 0, device=CPU)
    if isinstance(box[0], SteppeError):
        raise box[0]
    made: T = box[0]
    return made


@contextmanager
def name_lost_ranks() -> Iterator[None]:
    """Wrap everything that waits for other ranks; if a rank is lost, raise an error that names it."""
    try:
        yield
    except RuntimeError as error:  # what torch.distributed raises
        _report_loss(take_first_line(error))


def _report_loss(why: str) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun terminates the other ranks; this one must report first
    gone: list[int] = []
    for _ in range(40):  # a killed process closes its connections before it disappears
        if gone := [r for r, p in enumerate(processes) if p.host == socket.gethostname() and not _is_alive(p.process)]:
            break
        time.sleep(0.05)
    whom = " and ".join(f"rank {r} (process {processes[r].process} on {processes[r].host})" for r in gone)
    if not gone:
        others = sorted({p.host for p in processes} - {socket.gethostname()})
        whom = f"a rank on another machine ({', '.join(others)})" if others else ""
    if not whom:
        raise RunFailed(f"The run was stopped: {why}. Continue from its last checkpoint with --resume.")
    raise RunFailed(f"{whom[0].upper()}{whom[1:]} ended unexpectedly, so the run stops. It was killed, perhaps "
                    "because it ran out of memory, or it has printed its own error. Continue from the last checkpoint "
                    "with --resume, on the same number of ranks or fewer.")  # fmt: skip


def _is_alive(process: int) -> bool:
    table = Path("/proc")
    if not (table / "self").exists():  # not Linux
        try:
            os.kill(process, 0)
        except OSError:
            return False
        return True
    try:
        return (table / str(process) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def claim_report() -> bool:
    """Return whether this process may print its final error: only the first rank per machine that asks may."""
    if not dist.is_initialized():
        return is_first()
    try:
        store = dist.distributed_c10d._get_default_store()
        return bool(store.add(f"steppe/told/{socket.gethostname()}", 1) == 1)
    except (RuntimeError, ValueError):  # the store's machine is gone
        return True
