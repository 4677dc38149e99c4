"""The device, the number of cores and the precision of a run."""

from __future__ import annotations

import os

import torch

from steppe.config import Config, check_device
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.distributed import torchrun
from steppe.parts.proximal_ascent import ProximalAscent

CORES = "STEPPE_CORES"  # environment variable: the number of cores of one run, if several runs share a machine


def count_cores() -> int:
    """Return the number of cores that a run may use."""
    if os.environ.get(CORES, "").isdecimal():
        return int(os.environ[CORES])
    return count_machine_cores()


def limit_cores(count: int) -> dict[str, str]:
    """Return the environment variables that give a process so many cores, but at least one."""
    cores = str(max(1, count))
    return {CORES: cores, "OMP_NUM_THREADS": cores, "MKL_NUM_THREADS": cores}


def count_machine_cores() -> int:
    """Return the number of cores that the system gives to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(name: str) -> torch.device:
    """Return the device of this name; under torchrun, each rank gets its own GPU."""
    check_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SteppeError(f"device is {name!r}, but PyTorch sees no GPU here: use cpu or auto.")
    if (device.index or 0) >= (torch.cuda.device_count() if device.type == "cuda" else 1):
        raise SteppeError(f"device is {name!r}, but PyTorch sees only {torch.cuda.device_count()} GPUs here.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise SteppeError(f"device is {name!r}, but PyTorch sees no Apple GPU here: use cpu or auto.")
    if device.type == "cuda" and device.index is None and torchrun.is_launched():
        return torch.device("cuda", torchrun.find_local_gpu())
    return device


def set_precision(config: Config, algorithm: Algorithm, task: Task) -> list[str]:
    """Set the precision, and return notes. TF32 is avoided where an algorithm normalises a gradient close to zero."""
    notes = []
    cuda, sensitive = task.x0.is_cuda, any(isinstance(p, ProximalAscent) and p.sensitive for p in algorithm.parts)
    chosen = config.precision
    if chosen == "auto":
        chosen = "tf32" if cuda and not sensitive and config.dtype == "float32" else "fp32"
    if chosen == "tf32" and sensitive:
        notes.append(f"{algorithm.name} normalises a gradient that may be pure rounding error, which TF32 makes "
                     "larger: fp32 is safer, or bf16, which computes that gradient in full precision")  # fmt: skip
    if chosen == "bf16":
        if task.buffers:
            raise SteppeError("precision = bf16 does not support running statistics (batch norm): use group norm.")
        task.hasten(torch.bfloat16)
    if cuda:
        # bf16 leaves some passes, such as a teacher's, in float32.
        allowed = chosen == "tf32" or (chosen == "bf16" and not sensitive)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    return notes
