"""Client states between rounds. A state exists only for clients that have taken part.

Both stores read and write one row per client. `commit` makes the rows written so far part of a checkpoint, and
`restore` returns to it.
"""

from __future__ import annotations

import mmap
import os
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
    """A saved row is damaged; the text names the client."""


class MemoryStore:
    """A store in memory; a checkpoint contains all rows."""

    def __init__(self, fresh: Fresh) -> None:
        self.fresh, self.rows = fresh, dict[int, States]()

    def reset(self) -> None:
        """Delete all states."""
        self.rows.clear()

    def gather(self, ids: Sequence[int]) -> list[States]:
        """Return the states of these clients; a client without one gets a fresh state."""
        return [self.rows[i] if i in self.rows else self.fresh() for i in ids]

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        """Store the states of these clients."""
        # Copies, because a view would keep the whole round in memory, and because the last bit of a matrix product may
        # depend on the alignment of a row: a resumed run must find its rows aligned as they were here.
        self.rows.update(zip(ids, tree_map(torch.clone, list(states)), strict=True))

    def known(self) -> list[int]:
        """Return the clients that have a state."""
        return sorted(self.rows)

    def gather_state(self, part: str, name: str) -> Tensor:
        """Return one state of all clients that have one, stacked."""
        return torch.stack([self.rows[i][part][name] for i in self.known()])

    def commit(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        return {f"{i}/{k}": v for i, row in self.rows.items() for k, v in flatten_states(row).items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the rows of a checkpoint."""
        self.rows, like = {}, self.fresh()
        for name, value in tensors.items():
            client, part, state = name.split("/", 2)
            row = self.rows.setdefault(int(client), {p: {} for p in like})
            row[part][state] = value.to(like[part][state].device, copy=True)  # aligned as rows of later rounds

    def drop(self, ids: Sequence[int]) -> None:
        """Delete the states of these clients, which have moved to another rank."""
        for i in ids:
            del self.rows[i]


class DiskStore:
    """A store in one sparse, memory-mapped file with three slots per client.

    Writes go to a slot that neither of the last two checkpoints uses, so a crash at any moment leaves their rows
    intact. The file occupies disk space only for rows that exist. A checkpoint holds each row's slot and checksum.
    """

    SLOTS = 3

    def __init__(self, fresh: Fresh, path: Path, clients: int) -> None:
        self.fresh, self.clients, self.path = fresh, clients, path
        self.like = fresh()
        self.width = count_bytes(self.like)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.file = path.open("r+b")  # not append mode, which would write every row at the end
        self.file.truncate(max(1, self.SLOTS * clients * self.width))
        self.map = mmap.mmap(self.file.fileno(), 0)
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self.current = np.full(self.clients, -1, dtype=np.int8)  # -1: no state yet
        self.committed = self.before = self.current.copy()  # the slots of the last two checkpoints
        self.sums = np.zeros(self.clients, dtype=np.int64)

    def gather(self, ids: Sequence[int]) -> list[States]:
        """Return the states of these clients; a client without one gets a fresh state."""
        rows = [unpack(self._raw(i), self.like) if self.current[i] >= 0 else self.fresh() for i in ids]
        self._forget()
        return rows

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        """Write the states of these clients to free slots."""
        for i, state in zip(ids, states, strict=True):
            slot = next(k for k in range(self.SLOTS) if k not in (self.committed[i], self.before[i]))
            raw = pack(state)
            self._write(raw, (self.SLOTS * i + slot) * self.width)
            self.current[i], self.sums[i] = slot, zlib.crc32(raw)
        self._forget()

    def _write(self, raw: bytes, at: int) -> None:
        """Write through the file: a full disk then raises an error. With mapped memory it would kill the process."""
        while raw:
            done = os.pwrite(self.file.fileno(), raw, at)
            raw, at = raw[done:], at + done

    def _forget(self) -> None:
        """Release mapped pages, because the process would otherwise grow by every row that it ever touched."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)  # the mapping is shared, so written data stay in the file

    def _raw(self, client: int) -> bytearray:
        at = (self.SLOTS * client + int(self.current[client])) * self.width
        return bytearray(self.map[at : at + self.width])

    def known(self) -> list[int]:
        """Return the clients that have a state."""
        return np.flatnonzero(self.current >= 0).tolist()

    def gather_state(self, part: str, name: str) -> Tensor:
        """Return one state of all clients that have one, stacked."""
        return torch.stack([self.gather([i])[0][part][name] for i in self.known()])

    def commit(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold; from now on its slots are not overwritten."""
        os.fsync(self.file.fileno())
        self.before, self.committed = self.committed, self.current.copy()
        return {"slots": torch.from_numpy(self.current.copy()), "sums": torch.from_numpy(self.sums.copy())}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the slots of a checkpoint, and check every row's checksum."""
        self.current[:], self.sums[:] = tensors["slots"].numpy(), tensors["sums"].numpy()
        for client in self.known():
            if zlib.crc32(self._raw(client)) != self.sums[client]:
                raise TornError(f"the state of client {client} in {self.path.name} does not match its checksum")
        self._forget()
        self.before, self.committed = self.committed, self.current.copy()

    def spare(self, tensors: dict[str, Tensor]) -> None:
        """Protect the slots of the earlier checkpoint."""
        self.before = tensors["slots"].numpy().copy()


Store = MemoryStore | DiskStore


def flatten_states(states: States) -> dict[str, Tensor]:
    """Return the states with keys `part/name`."""
    return {f"{part}/{name}": value for part, tensors in states.items() for name, value in tensors.items()}


def count_bytes(states: States) -> int:
    """Return the number of bytes of a packed row."""
    return sum(v.numel() * v.element_size() for v in flatten_states(states).values())


def pack(states: States) -> bytes:
    """Return a row as bytes, one tensor after the other."""
    return b"".join(v.detach().cpu().contiguous().numpy().tobytes() for v in flatten_states(states).values())


def unpack(raw: Any, like: States) -> States:
    """Return the states of a packed row, given the shapes of `like`."""
    at, row = 0, States()
    for part, tensors in like.items():
        row[part] = {}
        for name, v in tensors.items():
            value = torch.frombuffer(raw, dtype=v.dtype, count=v.numel(), offset=at).view(v.shape)
            row[part][name] = value.clone()
            at += v.numel() * v.element_size()
    return row
