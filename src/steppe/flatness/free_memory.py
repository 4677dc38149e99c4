"""Free memory of a device, and an error if it is not enough."""

from __future__ import annotations

from math import inf
from pathlib import Path

import torch

from steppe.core.errors import SteppeError

_UNKNOWN = 4 << 30  # assumed if the system does not report it


def find_free_memory(device: torch.device) -> int:
    """Return the number of bytes that can still be allocated."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")
    if device.type == "cpu" and table.exists():
        lines = dict(line.split(":") for line in table.read_text().splitlines())
        return int(min(int(lines["MemAvailable"].split()[0]) * 1024, find_free_in_container(Path("/sys/fs/cgroup"))))
    return _UNKNOWN


def find_free_in_container(group: Path) -> float:
    """Return the bytes left below a container's memory limit; a process above it is killed without a message."""
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - int(used) + int(stat["inactive_file"])  # cached files can be evicted
    except (OSError, ValueError, KeyError):  # no cgroup, or `max`: no limit
        return inf


def require(size: int, device: torch.device, what: str, instead: str) -> None:
    """Refuse an allocation that would not fit, before anything is allocated."""
    if size > (there := find_free_memory(device)):
        raise SteppeError(f"{what} needs {size / 2**30:.1f} GiB, but {there / 2**30:.1f} GiB are free: {instead}.")
