"""Training data on a device, divided among clients, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from steppe.core.errors import SteppeError
from steppe.core.inputs import Inputs, map_tensors, take
from steppe.core.widest_float import find_widest
from steppe.data.augment import Augmentation, normalise
from steppe.data.dataset import Data
from steppe.data.draw_clients import DrawnClients
from steppe.data.partition import Partition
from steppe.data.plan import Plan, plan, size_batches

TABLE = 1 << 25  # entries up to which one table holds all clients' samples: 256 MiB


@dataclass(frozen=True, eq=False)
class Federation:
    """Training data with its partition and the local recipe: batch size, epochs, augmentation."""

    data: Data
    partition: Partition | None  # None on the server of a real federation, whose nodes hold the data
    batch_size: int
    epochs: int
    augmentation: Augmentation
    seed: int
    dtype: torch.dtype = torch.float32
    max_steps: int | None = None
    last_batch: str = "keep"  # an epoch's last batch if it is short: keep, drop or join

    def __post_init__(self) -> None:
        images = any(t.dtype == torch.uint8 for t in tree_leaves(self.data.train_inputs))
        if self.augmentation != Augmentation() and not images:
            raise SteppeError("Augmentation needs uint8 images; for other inputs use augmentation 'none'.")

    def to(self, device: torch.device | str) -> Federation:
        """Return the same federation on a device."""
        return replace(self, data=self.data.to(device))

    @cached_property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.sizes)

    @cached_property
    def sizes(self) -> list[int]:
        """Return the number of training samples of each client."""
        return self.partition.sizes.tolist() if self.partition is not None else []

    @property
    def indices(self) -> Sequence[np.ndarray]:
        """Return the indices of each client's training samples."""
        return self.partition.clients if self.partition is not None else ()

    @cached_property
    def samples(self) -> int:
        """Return the number of training samples of all clients together."""
        return sum(self.sizes)

    @cached_property
    def _constants(self) -> tuple[Tensor, Tensor]:
        device = self.data.device
        exact = find_widest(device)  # converted to the precision of the computation when used
        return (torch.tensor(self.data.mean, dtype=exact, device=device),
                torch.tensor(self.data.std, dtype=exact, device=device))  # fmt: skip

    def steps(self, client: int, local_steps: Callable[[int, int], int]) -> int:
        """Return the number of local steps of a client per round; `local_steps` maps (epochs, batches per epoch)."""
        return self.steps_over(self.sizes[client], local_steps)

    def size_batches(self, samples: int) -> list[int]:
        """Return the sizes of an epoch's batches of a client with this many samples."""
        return size_batches(samples, self.batch_size, self.last_batch)

    def steps_over(self, samples: int, local_steps: Callable[[int, int], int]) -> int:
        """Return the number of local steps per round of a client with this many samples."""
        count = local_steps(self.epochs, len(self.size_batches(samples))) if self.epochs else 0
        return count if self.max_steps is None else min(count, self.max_steps)

    def plan(self, ids: Sequence[int], round_: int, local_steps: Callable[[int, int], int],
             batches_per_step: int) -> Plan:  # fmt: skip
        """Plan the batches of these clients for a round."""
        sizes = [self.sizes[i] for i in ids]
        if len(ids) == 1:
            samples = self._find_own(ids[0])[None]
        elif self._in_table:
            samples = self._samples[torch.as_tensor(ids)][:, : max(sizes)]
        else:
            samples = _pad([self.indices[i] for i in ids]).to(self.data.device)
        steps = [self.steps(i, local_steps) for i in ids]
        return plan(samples, sizes, ids, steps, round_, self.seed, self.batch_size, batches_per_step,
                    self.last_batch)  # fmt: skip

    def _find_own(self, client: int) -> Tensor:
        return torch.as_tensor(self.indices[client], device=self.data.device)

    @cached_property
    def _in_table(self) -> bool:
        return self.clients * max(self.sizes) <= TABLE and not isinstance(self.indices, DrawnClients)

    @cached_property
    def _samples(self) -> Tensor:
        """Return all clients' samples on the device, one padded row per client."""
        return _pad(self.indices).to(self.data.device)

    def batch(self, index: Tensor, keys: Tensor) -> dict[str, Any]:
        """Return augmented inputs and targets at index (*lead, B) with keys (*lead)."""
        return {"x": self.augmented(take(self.data.train_inputs, index), keys),
                "y": self.targets(self.data.train_targets[index])}  # fmt: skip

    def augmented(self, inputs: Inputs, keys: Tensor) -> Any:
        """Return inputs as used in training: normalised, and images augmented, several of one example alike."""

        def one(t: Tensor) -> Tensor:
            if t.dtype != torch.uint8:
                return normalise(t, *self._constants, self.dtype)
            return self.augmentation(t, keys, *self._constants, self.dtype)

        return map_tensors(one, inputs)

    def targets(self, given: Tensor) -> Tensor:
        """Return targets as used by the loss: regression targets in the precision of the computation."""
        return given.to(self.dtype) if given.is_floating_point() else given

    def plain(self, inputs: Inputs) -> Any:
        """Return inputs as used in evaluation: normalised, not augmented."""
        return map_tensors(lambda t: normalise(t, *self._constants, self.dtype), inputs)


def _pad(rows: Sequence[np.ndarray]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)
