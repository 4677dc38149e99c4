"""Keep PyTorch's compiled code in a file for other machines of the same kind.

Loading the file may run the code in it, so load only files that you or your own machines have made.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from steppe.core.atomic_write import write_atomically
from steppe.core.errors import SteppeError

ENVIRONMENT = "STEPPE_COMPILE_CACHE"  # the key `compile_cache`, for all runs of a machine
FORMAT = 1


def describe_kind(device: torch.device) -> dict[str, str]:
    """Return what compiled code depends on: if any of these differs, PyTorch would compile again."""
    cuda = device.type == "cuda"
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "none"
    name = torch.cuda.get_device_name(device) if cuda else torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "triton": triton, "cuda": str(torch.version.cuda), "device": name}


def save_cache(path: Path, device: torch.device) -> int:
    """Write what this process has compiled so far, and return the number of bytes."""
    found = torch.compiler.save_cache_artifacts()
    if found is None:
        raise SteppeError("Nothing was compiled, so there is nothing to keep: the local step is compiled on a GPU "
                          "only, with compile = true and the batched executor.")  # fmt: skip
    head = {"format": FORMAT, "kind": describe_kind(device), "sha256": hashlib.sha256(found[0]).hexdigest()}
    write_atomically(path, lambda aside: aside.write_bytes(json.dumps(head).encode() + b"\n" + found[0]))
    return len(found[0])


def load_cache(path: Path, device: torch.device) -> str:
    """Load a file of `save_cache`. Return why it cannot be used here; empty if it can."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
        said: dict[str, Any] = json.loads(head)
        intact = said["format"] == FORMAT and said["sha256"] == hashlib.sha256(content).hexdigest()
        differs = {k: (v, said["kind"].get(k)) for k, v in describe_kind(device).items() if said["kind"].get(k) != v}
    except OSError as error:
        raise SteppeError(f"compile_cache is {path}, which cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SteppeError(f"compile_cache is {path}, which is not a file of steppe warm.") from error
    if not intact:
        raise SteppeError(f"compile_cache is {path}, which is damaged: create it again with steppe warm.")
    if differs:
        return (f"{path} was compiled for another machine, so this run compiles again: "
                + "; ".join(f"{k} {theirs}, here {ours}" for k, (ours, theirs) in differs.items()))  # fmt: skip
    torch.compiler.load_cache_artifacts(content)
    return ""
