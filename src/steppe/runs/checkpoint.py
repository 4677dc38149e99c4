"""Checkpoints: safetensors files and a JSON manifest with their digests, written aside and renamed.

A checkpoint is a folder `round-000123`. Digests, including one of the manifest, reveal a damaged or edited checkpoint.
Two checkpoints are kept, so that the earlier one can be used instead.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from steppe.core.atomic_write import sync_to_disk
from steppe.core.errors import SteppeError
from steppe.core.ordinary_files import check_ordinary
from steppe.core.server import Server
from steppe.core.wire import flatten_states
from steppe.runs.client_store import DiskStore, Store, TornError
from steppe.runs.tensor_files import save_file

KEPT = 2
FORMAT, READ = 3, (2, 3)  # 2: client states on disk had a row for every client
CLIENTS = "clients.safetensors"


@dataclass
class Checkpoint:
    """The state of a run after a round, apart from the client states, which are in the store."""

    round: int  # finished rounds
    server: Server
    notes: dict[str, Any]  # further state of the round loop


def save(folder: Path, round_: int, server: Server, store: Store, notes: dict[str, Any]) -> None:
    """Write the checkpoint of `round_` finished rounds. Its final name never holds an incomplete checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    aside, final = folder / f".round-{round_:06d}", folder / f"round-{round_:06d}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    rows = store.commit()
    held = {"x": server.x, **{f"state/{k}": v for k, v in flatten_states(server.state).items()},
            **{f"buffer/{k}": v for k, v in server.buffers.items()}}  # fmt: skip
    files = {"server.safetensors": held, CLIENTS: rows}
    digests = {}
    for name, tensors in files.items():
        save_file(tensors, aside / name)
        digests[name] = _hash_file(aside / name)
    parts = {p: list(t) for p, t in server.state.items()}
    manifest = {"format": FORMAT, "round": round_, "parts": parts, "files": digests, "notes": notes}
    (aside / "manifest.json").write_text(json.dumps({**manifest, "digest": _hash_manifest(manifest)}))
    for path in aside.iterdir():
        sync_to_disk(path)
    shutil.rmtree(final, ignore_errors=True)
    aside.rename(final)
    sync_to_disk(folder)
    for old in sorted(folder.glob("round-*"))[:-KEPT]:
        shutil.rmtree(old)


def load(folder: Path, store: Store) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint, or None, and a message for each newer one that is damaged.

    The store is restored to the state of that checkpoint.
    """
    complaints = []
    paths = sorted(folder.glob("round-*"), reverse=True)
    for place, path in enumerate(paths):
        try:
            found = _read(path, store)
        except SteppeError as error:
            complaints.append(str(error))
            aside = path.with_name(f"damaged-{path.name}")  # out of the way of later checkpoints
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            continue
        if isinstance(store, DiskStore):  # keep the earlier checkpoint usable until the next one is written
            with suppress(SteppeError, IndexError, OSError, KeyError, SafetensorError):
                _read_manifest(paths[place + 1])
                store.protect(load_file(paths[place + 1] / CLIENTS))
        return found, complaints
    return None, complaints


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(check_ordinary(path / "manifest.json").read_text())
        if manifest["format"] not in READ:
            raise SteppeError(f"The checkpoint {path} has format {manifest['format']}; this version reads "
                              f"{' and '.join(map(str, READ))}.")  # fmt: skip
        if manifest.pop("digest") != _hash_manifest(manifest) or path.name != f"round-{manifest['round']:06d}":
            raise SteppeError(f"The checkpoint {path} is damaged: its manifest was changed.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SteppeError(f"The checkpoint {path} is damaged or incomplete: its manifest cannot be read "
                          f"({error}).") from error  # fmt: skip
    return dict(manifest)


def _read(path: Path, store: Store) -> Checkpoint:
    manifest = _read_manifest(path)
    try:
        for name, digest in manifest["files"].items():
            if _hash_file(path / name) != digest:
                raise SteppeError(f"The checkpoint {path} is damaged: {name} does not match its manifest.")
        # Cloned into torch's own memory: the last bit of a matrix product can depend on its operands' alignment.
        held = {k: v.clone() for k, v in load_file(path / "server.safetensors").items()}
        rows = load_file(path / CLIENTS)
        state = {part: {k: held[f"state/{part}/{k}"] for k in names} for part, names in manifest["parts"].items()}
        buffers = {k.removeprefix("buffer/"): v for k, v in held.items() if k.startswith("buffer/")}
        server = Server(held["x"], state, buffers)
        store.restore(rows)
        return Checkpoint(manifest["round"], server, manifest["notes"])
    except TornError as error:
        raise SteppeError(f"The checkpoint {path} cannot be used: {error}.") from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise SteppeError(f"The checkpoint {path} is damaged or incomplete ({error}).") from error


def _hash_file(path: Path) -> str:
    with check_ordinary(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_manifest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
