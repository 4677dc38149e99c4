"""One round over several ranks: who trains whom, where client states live, how replies come together.

Every rank holds the server and knows the whole round; each trains its share of the clients. Then either the ranks
add up their partial sums, one all-reduce for each vector, or every rank gets all replies in the clients' order and
aggregates them exactly as one process does. With one process nothing travels.
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
from steppe.distributed.torchrun import listening, travels
from steppe.runs.client_store import Fresh, MemoryStore, Store, packed, unpacked, width


def placed(work: Sequence[float], ranks: int, homes: Sequence[int | None]) -> list[int]:
    """A rank for each client: longest first, each to the rank with the least to do; its state's, if that is one.

    >>> placed([1, 5, 2, 3], 2, [None] * 4), placed([2, 2], 2, [1, 0])
    ([0, 0, 1, 1], [1, 0])
    """
    load, owners = [0.0] * ranks, [0] * len(work)
    for k in sorted(range(len(work)), key=lambda k: -work[k]):
        least, home = min(load), homes[k]
        owners[k] = home if home is not None and load[home] == least else load.index(least)
        load[owners[k]] += work[k]
    return owners


class Ranks:
    """This process among the others.

    A client's state is kept by the rank that trained it last, and moves when another is to train it. States on disk
    are rank 0's, which alone writes: they come from it before training and go back to it afterwards.
    """

    def __init__(self, fresh: Fresh, on_disk: bool, group: Any = None) -> None:
        self.on, self.group = dist.is_initialized(), group  # None: all ranks; or else the first few of them
        self.rank, self.size = (dist.get_rank(group), dist.get_world_size(group)) if self.on else (0, 1)
        self.fresh, self.on_disk = fresh, on_disk
        self.home: dict[int, int] = {}  # where the state of each client is that ever took part; the same on all ranks

    def owners(self, ids: Sequence[int], work: Sequence[float]) -> list[int]:
        return placed(work, self.size, [self.home.get(i) for i in ids])

    def mine(self, owners: Sequence[int]) -> list[int]:
        """The places in the round of the clients that this rank trains."""
        return [k for k, owner in enumerate(owners) if owner == self.rank]

    # ------------------------------------------------------------------------------------------- client states
    def fetch(self, store: Store, ids: Sequence[int], owners: Sequence[int]) -> list[States]:
        """The states of this rank's clients, from wherever they are."""
        moves = [(i, self.home[i], to) for i, to in zip(ids, owners, strict=True) if self.home.get(i, to) != to]
        arrived = self._moved(store, moves)
        store.scatter(list(arrived), list(arrived.values()))
        if isinstance(store, MemoryStore) and not self.on_disk:
            store.drop([i for i, source, _ in moves if source == self.rank])
            self.home.update({i: to for i, _, to in moves})
        return store.gather([ids[k] for k in self.mine(owners)])

    def keep(self, store: Store, ids: Sequence[int], owners: Sequence[int], states: Sequence[States]) -> None:
        """The new states of the round's clients; `states` are those of this rank's."""
        store.scatter([ids[k] for k in self.mine(owners)], states)
        if self.on_disk:
            arrived = self._moved(store, [(i, owner, 0) for i, owner in zip(ids, owners, strict=True) if owner])
            store.scatter(list(arrived), list(arrived.values()))
            if isinstance(store, MemoryStore):
                store.drop(store.known())
        self.home.update(dict.fromkeys(ids, 0) if self.on_disk else zip(ids, owners, strict=True))

    def everyone(self, store: Store, part: str, name: str) -> Tensor:
        """One state of all clients that ever took part, in their order."""
        if not self.on:
            return store.everyone(part, name)
        known = sorted(self.home)
        own = [i for i in known if self.home[i] == self.rank]
        rows = [store.gather([i])[0][part][name] for i in own]
        like = self.fresh()[part][name]
        together = torch.stack(rows) if rows else no_rows(like)
        found: Tensor = self.gathered(together, [self.home[i] for i in known])
        return found

    def whole(self, store: Store) -> Store:
        """On rank 0, a store with the states of all ranks, for a checkpoint; all ranks must ask."""
        if self.size == 1 or not isinstance(store, MemoryStore) or self.on_disk:
            return store
        together = MemoryStore(self.fresh)
        arrived = self._moved(store, [(i, source, 0) for i, source in sorted(self.home.items()) if source])
        together.rows = {**store.rows, **arrived}
        return together

    def _moved(self, store: Store, moves: Sequence[tuple[int, int, int]]) -> dict[int, States]:
        """States on their way (client, from, to), one message for each pair of ranks; returns what arrives here."""
        pairs: dict[tuple[int, int], list[int]] = {}
        for client, source, target in moves:
            pairs.setdefault((source, target), []).append(client)
        like = self.fresh()
        if not (size := width(like)):
            return {i: like for i, _, target in moves if target == self.rank}
        waiting, boxes = [], []
        with listening():
            for (source, target), clients in pairs.items():
                if self.rank not in (source, target):
                    continue
                box = torch.empty(len(clients), size, dtype=torch.uint8)
                boxes.append((clients, box, target == self.rank))
                if target == self.rank:
                    waiting.append(dist.irecv(box, source, self.group))
                    continue
                for i, line in zip(clients, box, strict=True):  # one after the other: they may be many
                    line.copy_(torch.frombuffer(bytearray(packed(*store.gather([i]))), dtype=torch.uint8))
                waiting.append(dist.isend(box, target, self.group))
            for message in waiting:
                message.wait()  # type: ignore[union-attr]
        return {i: unpacked(line.numpy(), like) for clients, box, arrives in boxes if arrives
                for i, line in zip(clients, box, strict=True)}  # fmt: skip

    # ------------------------------------------------------------------------------------------------- replies
    def summed(self, v: Tensor) -> Tensor:
        """Over all ranks."""
        if not self.on:
            return v
        together = travels(v)
        together = together.clone() if together is v else together
        with listening():
            dist.all_reduce(together, group=self.group)
        return together.to(v.device)

    def gathered(self, tree: Any, owners: Sequence[int]) -> Any:
        """The rows of all ranks, in the clients' order; each rank gives those of its own clients, in that order."""
        if not self.on or not len(owners):
            return tree
        counts = [sum(owner == r for owner in owners) for r in range(self.size)]
        order = torch.tensor([k for r in range(self.size) for k, owner in enumerate(owners) if owner == r])
        back = torch.argsort(order)

        def one(rows: Tensor) -> Tensor:
            padded = rows.new_zeros((max(counts), *rows.shape[1:]))
            padded[: len(rows)] = rows
            padded = travels(padded)
            boxes = [torch.empty_like(padded) for _ in counts]
            with listening():
                dist.all_gather(boxes, padded, self.group)
            together = torch.cat([box[:n] for box, n in zip(boxes, counts, strict=True)])
            return together.to(rows.device)[back.to(rows.device)]

        return tree_map(one, tree)

    def listed(self, own: Sequence[Any], owners: Sequence[int]) -> list[Any]:
        """Small things of all clients in their order; each rank gives those of its own."""
        if not self.on:
            return list(own)
        boxes: list[Any] = [None] * self.size
        with listening():
            dist.all_gather_object(boxes, own, self.group)
        each = [iter(box) for box in boxes]
        return [next(each[owner]) for owner in owners]

    def check_same(self, x: Tensor) -> None:
        """Ranks go on from one global model, to the bit; machines that compute differently would drift apart."""
        if self.size == 1:
            return
        total = x.detach().view(torch.int32 if x.element_size() == 4 else torch.int64).sum().cpu()
        each = self.gathered(total[None], range(self.size))
        if not bool((each == total).all()):
            raise RunFailed("The ranks have come to different global models, because their machines or libraries "
                            "compute differently: launch on machines of one kind.")  # fmt: skip


def no_rows(like: Any) -> Any:
    """A stacked tree of no clients, from that of one."""
    return tree_map(lambda v: v.new_empty((0, *v.shape)), like)
