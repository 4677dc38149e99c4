"""How much memory there is, and a sentence where it is not enough."""

from __future__ import annotations

from math import inf
from pathlib import Path

import torch

from steppe.core.errors import SteppeError

_UNKNOWN = 4 << 30  # what to count on where the system does not say


def free(device: torch.device) -> int:
    """Bytes that can still be taken."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")
    if device.type == "cpu" and table.exists():
        lines = dict(line.split(":") for line in table.read_text().splitlines())
        return int(min(int(lines["MemAvailable"].split()[0]) * 1024, in_container(Path("/sys/fs/cgroup"))))
    return _UNKNOWN


def in_container(group: Path) -> float:
    """What a container may still take, where it has a limit: who goes beyond it is killed without a word."""
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - int(used) + int(stat["inactive_file"])  # cached files make way
    except (OSError, ValueError, KeyError):  # no such system, or `max`: no limit
        return inf


def require(size: int, device: torch.device, what: str, instead: str) -> None:
    """Refuse, before anything is allocated, what would not fit."""
    if size > (there := free(device)):
        raise SteppeError(f"{what} needs {size / 2**30:.1f} GiB, but {there / 2**30:.1f} GiB are free: {instead}.")
