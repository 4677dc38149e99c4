"""Checkpoints: safetensors and a JSON manifest with their digests, written aside and renamed.

A checkpoint is a folder `round-000123`. Two are kept, so that a torn or edited one is noticed by its
digests and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from steppe.core.server import Server
from steppe.errors import SteppeError
from steppe.simulate.store import Store, flat

KEPT = 2
FORMAT = 1


@dataclass
class Checkpoint:
    round: int  # finished rounds
    server: Server
    notes: dict[str, Any]  # of the round loop


def save(folder: Path, round_: int, server: Server, store: Store, notes: dict[str, Any]) -> None:
    """Write the checkpoint of `round_` finished rounds; nothing half-written is ever under its final name."""
    folder.mkdir(parents=True, exist_ok=True)
    aside, final = folder / f".round-{round_:06d}", folder / f"round-{round_:06d}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    kept, rows = store.commit()
    held = {"x": server.x, **{f"state/{k}": v for k, v in flat(server.state).items()},
            **{f"buffer/{k}": v for k, v in server.buffers.items()}}  # fmt: skip
    files = {"server.safetensors": held, "clients.safetensors": rows}
    digests = {}
    for name, tensors in files.items():
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, aside / name)
        digests[name] = _digest(aside / name)
    manifest = {"format": FORMAT, "round": round_, "parts": list(server.state), "files": digests, "notes": notes,
                "store": kept}  # fmt: skip
    (aside / "manifest.json").write_text(json.dumps(manifest))
    for path in aside.iterdir():
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    aside.rename(final)
    _sync(folder)
    for old in sorted(folder.glob("round-*"))[:-KEPT]:
        shutil.rmtree(old)


def load(folder: Path, store: Store) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint (None: there is none), and a sentence for each newer one that is damaged.

    The store is brought back to it.
    """
    complaints = []
    for path in sorted(folder.glob("round-*"), reverse=True):
        try:
            return _read(path, store), complaints
        except SteppeError as error:
            complaints.append(str(error))
    return None, complaints


def _read(path: Path, store: Store) -> Checkpoint:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise SteppeError(f"The checkpoint {path} has format {manifest['format']}; this version reads {FORMAT}.")
        for name, digest in manifest["files"].items():
            if _digest(path / name) != digest:
                raise SteppeError(f"The checkpoint {path} is damaged: {name} is not what its manifest says.")
        held, rows = load_file(path / "server.safetensors"), load_file(path / "clients.safetensors")
        state: dict[str, dict[str, Tensor]] = {part: {} for part in manifest["parts"]}
        buffers = {}
        for name, value in held.items():
            kind, _, rest = name.partition("/")
            if kind == "state":
                part, entry = rest.split("/")
                state[part][entry] = value
            elif kind == "buffer":
                buffers[rest] = value
        server = Server(held["x"], state, buffers)
        store.restore(manifest["store"], rows)
        return Checkpoint(manifest["round"], server, manifest["notes"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise SteppeError(f"The checkpoint {path} is damaged or incomplete ({error}).") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
