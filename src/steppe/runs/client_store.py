"""Client states between rounds. A state exists only for clients that have taken part.

Both stores read and write one row per client. `commit` makes the rows written so far part of a checkpoint, and
`restore` returns to it.
"""

from __future__ import annotations

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
from steppe.core.wire import flatten_states

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

    def list_known(self) -> list[int]:
        """Return the clients that have a state."""
        return sorted(self.rows)

    def gather_state(self, part: str, name: str) -> Tensor:
        """Return one state of all clients that have one, stacked."""
        return torch.stack([self.rows[i][part][name] for i in self.list_known()])

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
    """A store in one file with three slots for each client that has taken part, in the order of their first time.

    Writes go to a slot that neither of the last two checkpoints uses, so a crash at any moment leaves their rows
    intact. The file is sparse: a slot that was never used takes no disk space. A checkpoint holds each row's client,
    place, slot and checksum. Nothing here grows with the clients that have never taken part.
    """

    SLOTS = 3

    def __init__(self, fresh: Fresh, path: Path) -> None:
        self.fresh, self.path = fresh, path
        self.like = fresh()
        self.width = count_bytes(self.like)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.file = path.open("r+b")  # not append mode, which would write every row at the end
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self.place: dict[int, int] = {}  # of each client that has a state
        self.ahead = 0  # the next free place
        self.current = np.empty(0, np.int8)  # the slot of each place; -1: none
        self.committed = self.before = self.current.copy()  # the slots of the last two checkpoints
        self.sums = np.empty(0, np.int64)

    def gather(self, ids: Sequence[int]) -> list[States]:
        """Return the states of these clients; a client without one gets a fresh state."""
        return [unpack(self._read_raw(i), self.like) if i in self.place else self.fresh() for i in ids]

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        """Write the states of these clients to free slots."""
        for i in ids:
            if i not in self.place:
                self.place[i], self.ahead = self.ahead, self.ahead + 1
        self._make_room(self.ahead)
        for i, state in zip(ids, states, strict=True):
            place = self.place[i]
            slot = next(k for k in range(self.SLOTS) if k not in (self.committed[place], self.before[place]))
            raw = pack(state)
            self._write(raw, (self.SLOTS * place + slot) * self.width)
            self.current[place], self.sums[place] = slot, zlib.crc32(raw)

    def _make_room(self, places: int) -> None:
        """Lengthen the tables; by doubling, so that a round costs what its clients cost."""
        if (more := places - len(self.current)) > 0:
            none = np.full(max(more, len(self.current)), -1)
            for name in ("current", "committed", "before", "sums"):
                table = getattr(self, name)
                setattr(self, name, np.concatenate([table, none.astype(table.dtype)]))

    def _write(self, raw: bytes, at: int) -> None:
        """Write to the file itself: a full disk then raises an error. With mapped memory it would kill the process."""
        while raw:
            done = os.pwrite(self.file.fileno(), raw, at)
            raw, at = raw[done:], at + done

    def _read_raw(self, client: int) -> bytearray:
        place = self.place[client]
        at, raw = (self.SLOTS * place + int(self.current[place])) * self.width, bytearray()
        while more := os.pread(self.file.fileno(), self.width - len(raw), at + len(raw)):
            raw += more
        return raw

    def list_known(self) -> list[int]:
        """Return the clients that have a state."""
        return sorted(self.place)

    def gather_state(self, part: str, name: str) -> Tensor:
        """Return one state of all clients that have one, stacked."""
        return torch.stack([self.gather([i])[0][part][name] for i in self.list_known()])

    def commit(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold; from now on its slots are not overwritten."""
        os.fsync(self.file.fileno())
        self.before, self.committed = self.committed, self.current.copy()
        places = np.fromiter(self.place.values(), np.int64, len(self.place))
        held = {"clients": np.fromiter(self.place, np.int64, len(self.place)), "places": places,
                "slots": self.current[places], "sums": self.sums[places]}  # fmt: skip
        return {name: torch.from_numpy(values) for name, values in held.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the slots of a checkpoint, and check every row's checksum."""
        clients, places, slots, sums = _read_tables(tensors)
        self.reset()
        self.place = dict(zip(clients.tolist(), places.tolist(), strict=True))
        self.ahead = int(places.max(initial=-1)) + 1
        self._make_room(self.ahead)
        self.current[places], self.sums[places] = slots, sums
        for client, place in self.place.items():
            if zlib.crc32(self._read_raw(client)) != self.sums[place]:
                raise TornError(f"the state of client {client} in {self.path.name} does not match its checksum")
        self.committed = self.current.copy()

    def protect(self, tensors: dict[str, Tensor]) -> None:
        """Protect the slots of the earlier checkpoint."""
        _, places, slots, _ = _read_tables(tensors)
        self._make_room(int(places.max(initial=-1)) + 1)
        self.before[:] = -1
        self.before[places] = slots


def _read_tables(tensors: dict[str, Tensor]) -> tuple[np.ndarray, ...]:
    """Return clients, places, slots and checksums. Earlier versions had a row for every client, at its own number."""
    held = {name: values.numpy() for name, values in tensors.items()}
    if "clients" not in held:
        seen = np.flatnonzero(held["slots"] >= 0)
        return seen, seen, held["slots"][seen], held["sums"][seen]
    return held["clients"], held["places"], held["slots"], held["sums"]


Store = MemoryStore | DiskStore


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
