"""Client states between rounds. A state exists only for clients that have taken part.

Both stores give back rows by client and take them by client, and know one checkpoint: `commit` makes what
was written the state to come back to.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.algorithm import States

Fresh = Callable[[], States]


class TornError(Exception):
    """A saved row is not what was written; the text says whose."""


class MemoryStore:
    """Rows in memory; a checkpoint contains them all."""

    def __init__(self, fresh: Fresh) -> None:
        self.fresh, self.rows = fresh, dict[int, States]()

    def gather(self, ids: Sequence[int]) -> list[States]:
        return [self.rows[i] if i in self.rows else self.fresh() for i in ids]

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        # Copies, because a view would keep the whole round alive, and because matrix products may differ in the
        # last bit with the place of a row in memory: a resumed run must find its rows as this one does.
        self.rows.update(zip(ids, tree_map(torch.clone, list(states)), strict=True))

    def known(self) -> list[int]:
        return sorted(self.rows)

    def everyone(self, part: str, name: str) -> Tensor:
        return torch.stack([self.rows[i][part][name] for i in self.known()])

    def commit(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a checkpoint must hold: notes for its manifest, and tensors."""
        return {}, {f"{i}/{k}": v for i, row in self.rows.items() for k, v in flat(row).items()}

    def restore(self, notes: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.rows = {}
        for name, value in tensors.items():
            client, part, state = name.split("/", 2)
            row = self.rows.setdefault(int(client), {p: {} for p in self.fresh()})
            row[part][state] = value.clone()

    def spare(self, notes: dict[str, Any]) -> None:
        """Nothing to do: an older checkpoint's rows are in its own files."""


class DiskStore:
    """Rows in one sparse, memory-mapped file with three slots a client.

    Writes go to a slot that neither of the last two checkpoints uses, so a crash at any moment leaves their
    rows whole; the file grows only by rows that exist. A checkpoint holds each row's slot and checksum.
    """

    SLOTS = 3

    def __init__(self, fresh: Fresh, path: Path, clients: int) -> None:
        self.fresh, self.clients, self.path = fresh, clients, path
        self.shapes = {k: (tuple(v.shape), v.dtype) for k, v in flat(fresh()).items()}
        self.width = sum(_bytes(s, d) for s, d in self.shapes.values())
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a+b")
        self.file.truncate(max(1, self.SLOTS * clients * self.width))
        self.map = mmap.mmap(self.file.fileno(), 0)
        self.current = np.full(clients, -1, dtype=np.int8)  # -1: no state yet
        self.committed = self.before = self.current.copy()  # the slots of the last two checkpoints
        self.sums = dict[int, int]()

    def gather(self, ids: Sequence[int]) -> list[States]:
        return [self._read(i) if self.current[i] >= 0 else self.fresh() for i in ids]

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        for i, state in zip(ids, states, strict=True):
            slot = next(k for k in range(self.SLOTS) if k not in (self.committed[i], self.before[i]))
            raw = b"".join(v.detach().cpu().contiguous().numpy().tobytes() for v in flat(state).values())
            at = (self.SLOTS * i + slot) * self.width
            self.map[at : at + self.width] = raw
            self.current[i], self.sums[i] = slot, zlib.crc32(raw)

    def _raw(self, client: int) -> bytearray:
        at = (self.SLOTS * client + int(self.current[client])) * self.width
        return bytearray(self.map[at : at + self.width])

    def _read(self, client: int) -> States:
        raw, at = self._raw(client), 0
        row: States = {part: {} for part in self.fresh()}
        for name, (shape, dtype) in self.shapes.items():
            size = _bytes(shape, dtype)
            part, state = name.split("/", 1)
            value = torch.frombuffer(raw, dtype=dtype, count=size // dtype.itemsize, offset=at).view(shape)
            row[part][state] = value.clone()
            at += size
        return row

    def known(self) -> list[int]:
        return np.flatnonzero(self.current >= 0).tolist()

    def everyone(self, part: str, name: str) -> Tensor:
        return torch.stack([self._read(i)[part][name] for i in self.known()])

    def commit(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        self.map.flush()
        self.before, self.committed = self.committed, self.current.copy()
        return {"rows": {str(i): [int(self.current[i]), self.sums[i]] for i in self.known()}}, {}

    def restore(self, notes: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.current[:] = -1
        for client, (slot, total) in notes["rows"].items():
            self.current[int(client)], self.sums[int(client)] = slot, total
            if zlib.crc32(self._raw(int(client))) != total:
                raise TornError(f"the state of client {client} in {self.path.name} is not what was written there")
        self.before, self.committed = self.committed, self.current.copy()

    def spare(self, notes: dict[str, Any]) -> None:
        """Keep the slots of an older checkpoint, the one to fall back on."""
        self.before = np.full(self.clients, -1, dtype=np.int8)
        for client, (slot, _) in notes["rows"].items():
            self.before[int(client)] = slot


Store = MemoryStore | DiskStore


def flat(states: States) -> dict[str, Tensor]:
    return {f"{part}/{name}": value for part, tensors in states.items() for name, value in tensors.items()}


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
