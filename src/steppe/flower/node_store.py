"""What the server of a federation keeps of its clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steppe.core.algorithm import States
from steppe.core.wire import flatten_states
from steppe.runs.client_store import MemoryStore


class NodeStore(MemoryStore):
    """Clients' states are on their nodes. This keeps the last counted round of each and, if needed, a copy of it."""

    def __init__(self, fresh: Callable[[], States]) -> None:
        super().__init__(fresh)
        self.counted: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.round = -1  # the current round

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        self.counted.update(dict.fromkeys(ids, self.round))
        if any(flatten_states(s) for s in states):
            super().scatter(ids, states)

    def reset(self) -> None:
        super().reset()
        self.counted.clear()

    def commit(self) -> dict[str, Tensor]:
        return {**super().commit(), "counted": _make_table(self.counted), "sizes": _make_table(self.sizes)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        rows = dict(tensors)
        counted, sizes = (dict(rows.pop(name).tolist()) for name in ("counted", "sizes"))
        super().restore(rows)
        self.counted, self.sizes = counted, sizes | self.sizes


def _make_table(numbers: dict[int, int]) -> Tensor:
    return torch.tensor(list(numbers.items()), dtype=torch.int64).reshape(-1, 2)
