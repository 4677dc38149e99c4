"""One round over several ranks: which rank trains which client, where client states are, how replies are combined.

Every rank has the server and the whole round's plan, and trains its share of the clients. Then either the ranks add
their partial sums, with one all-reduce per vector, or every rank gathers all replies in the clients' order and
aggregates them exactly as one process would. With one process, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.algorithm import States
from steppe.core.errors import RunFailed
from steppe.distributed.torchrun import make_sendable, name_lost_ranks
from steppe.runs.client_store import Fresh, MemoryStore, Store, count_bytes, pack, unpack


def assign_clients(work: Sequence[float], ranks: int, homes: Sequence[int | None]) -> list[int]:
    """Assign clients to ranks: longest first, each to the least loaded rank, preferably the one with its state.

    >>> assign_clients([1, 5, 2, 3], 2, [None] * 4), assign_clients([2, 2], 2, [1, 0])
    ([0, 0, 1, 1], [1, 0])
    """
    load, owners = [0.0] * ranks, [0] * len(work)
    for k in sorted(range(len(work)), key=lambda k: -work[k]):
        least, home = min(load), homes[k]
        owners[k] = home if home is not None and load[home] == least else load.index(least)
        load[owners[k]] += work[k]
    return owners


class Ranks:
    """This process among all ranks.

    The rank that trained a client last keeps the client's state, which moves when another rank trains the client.
    If states are on disk, only rank 0 reads and writes them: it sends them before training and receives them
    afterwards.
    """

    def __init__(self, fresh: Fresh, on_disk: bool, group: Any = None) -> None:
        self.on, self.group = dist.is_initialized(), group  # None: all ranks; otherwise a subset of them
        self.rank, self.size = (dist.get_rank(group), dist.get_world_size(group)) if self.on else (0, 1)
        self.fresh, self.on_disk = fresh, on_disk
        # The rank with the state of each client that has taken part; the same on all ranks.
        self.home: dict[int, int] = {}

    def assign(self, ids: Sequence[int], work: Sequence[float]) -> list[int]:
        """Return the rank that trains each client."""
        return assign_clients(work, self.size, [self.home.get(i) for i in ids])

    def find_own(self, owners: Sequence[int]) -> list[int]:
        """Return the positions in the round of the clients that this rank trains."""
        return [k for k, owner in enumerate(owners) if owner == self.rank]

    # ------------------------------------------------------------------------------------------- client states
    def fetch(self, store: Store, ids: Sequence[int], owners: Sequence[int]) -> list[States]:
        """Return the states of this rank's clients, and move them here if they are on other ranks."""
        moves = [(i, self.home[i], to) for i, to in zip(ids, owners, strict=True) if self.home.get(i, to) != to]
        arrived = self._move(store, moves)
        store.scatter(list(arrived), list(arrived.values()))
        if isinstance(store, MemoryStore) and not self.on_disk:
            store.drop([i for i, source, _ in moves if source == self.rank])
            self.home.update({i: to for i, _, to in moves})
        return store.gather([ids[k] for k in self.find_own(owners)])

    def keep(self, store: Store, ids: Sequence[int], owners: Sequence[int], states: Sequence[States]) -> None:
        """Store the new states of the round's clients; `states` are those of this rank's clients."""
        store.scatter([ids[k] for k in self.find_own(owners)], states)
        if self.on_disk:
            arrived = self._move(store, [(i, owner, 0) for i, owner in zip(ids, owners, strict=True) if owner])
            store.scatter(list(arrived), list(arrived.values()))
            if isinstance(store, MemoryStore):
                store.drop(store.list_known())
        self.home.update(dict.fromkeys(ids, 0) if self.on_disk else zip(ids, owners, strict=True))

    def gather_state(self, store: Store, part: str, name: str) -> Tensor:
        """Return one state of all clients that have taken part, in the order of their numbers."""
        if not self.on:
            return store.gather_state(part, name)
        known = sorted(self.home)
        own = [i for i in known if self.home[i] == self.rank]
        rows = [store.gather([i])[0][part][name] for i in own]
        like = self.fresh()[part][name]
        together = torch.stack(rows) if rows else make_no_rows(like)
        found: Tensor = self.gather(together, [self.home[i] for i in known])
        return found

    def merge_stores(self, store: Store) -> Store:
        """Return, on rank 0, a store with the states of all ranks, for a checkpoint; all ranks must call this."""
        if self.size == 1 or not isinstance(store, MemoryStore) or self.on_disk:
            return store
        together = MemoryStore(self.fresh)
        arrived = self._move(store, [(i, source, 0) for i, source in sorted(self.home.items()) if source])
        together.rows = {**store.rows, **arrived}
        return together

    def _move(self, store: Store, moves: Sequence[tuple[int, int, int]]) -> dict[int, States]:
        """Move states (client, from, to) with one message per pair of ranks; return those that arrive here."""
        pairs: dict[tuple[int, int], list[int]] = {}
        for client, source, target in moves:
            pairs.setdefault((source, target), []).append(client)
        like = self.fresh()
        if not (size := count_bytes(like)):
            return {i: like for i, _, target in moves if target == self.rank}
        waiting, boxes = [], []
        with name_lost_ranks():
            for (source, target), clients in pairs.items():
                if self.rank not in (source, target):
                    continue
                box = torch.empty(len(clients), size, dtype=torch.uint8)
                boxes.append((clients, box, target == self.rank))
                if target == self.rank:
                    waiting.append(dist.irecv(box, source, self.group))
                    continue
                for i, line in zip(clients, box, strict=True):  # one at a time, to save memory
                    line.copy_(torch.frombuffer(bytearray(pack(*store.gather([i]))), dtype=torch.uint8))
                waiting.append(dist.isend(box, target, self.group))
            for message in waiting:
                message.wait()  # type: ignore[union-attr]
        return {i: unpack(line.numpy(), like) for clients, box, arrives in boxes if arrives
                for i, line in zip(clients, box, strict=True)}  # fmt: skip

    # ------------------------------------------------------------------------------------------------- replies
    def sum(self, v: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        if not self.on:
            return v
        together = make_sendable(v)
        together = together.clone() if together is v else together
        with name_lost_ranks():
            dist.all_reduce(together, group=self.group)
        return together.to(v.device)

    def gather(self, tree: Any, owners: Sequence[int]) -> Any:
        """Return the rows of all ranks in the clients' order; each rank passes the rows of its own clients."""
        if not self.on or not len(owners):
            return tree
        counts = [sum(owner == r for owner in owners) for r in range(self.size)]
        order = torch.tensor([k for r in range(self.size) for k, owner in enumerate(owners) if owner == r])
        back = torch.argsort(order)

        def one(rows: Tensor) -> Tensor:
            padded = rows.new_zeros((max(counts), *rows.shape[1:]))
            padded[: len(rows)] = rows
            padded = make_sendable(padded)
            boxes = [torch.empty_like(padded) for _ in counts]
            with name_lost_ranks():
                dist.all_gather(boxes, padded, self.group)
            together = torch.cat([box[:n] for box, n in zip(boxes, counts, strict=True)])
            return together.to(rows.device)[back.to(rows.device)]

        return tree_map(one, tree)

    def gather_objects(self, own: Sequence[Any], owners: Sequence[int]) -> list[Any]:
        """Return small objects of all clients in their order; each rank passes those of its own clients."""
        if not self.on:
            return list(own)
        boxes: list[Any] = [None] * self.size
        with name_lost_ranks():
            dist.all_gather_object(boxes, own, self.group)
        each = [iter(box) for box in boxes]
        return [next(each[owner]) for owner in owners]

    def check_same(self, x: Tensor) -> None:
        """Check that all ranks have the same global model, to the bit; otherwise they would drift apart."""
        if self.size == 1:
            return
        total = x.detach().view(torch.int32 if x.element_size() == 4 else torch.int64).sum().cpu()
        each = self.gather(total[None], range(self.size))
        if not bool((each == total).all()):
            raise RunFailed("The ranks have different global models, because their machines or libraries compute "
                            "differently: use machines of one kind.")  # fmt: skip


def make_no_rows(like: Any) -> Any:
    """Return a stacked tree of no clients, given the tree of one client."""
    return tree_map(lambda v: v.new_empty((0, *v.shape)), like)
