"""Who sees which samples when: a client's round as indices and masks, a function of (seed, round, client)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from steppe.core.keyed import key, permutation

ORDER, AUGMENT = 1, 2  # keeps the uses of one (seed, round, client) apart


@dataclass(frozen=True)
class Plan:
    """Batches of several clients: rows are padded to the longest client and to the full batch."""

    index: Tensor  # (C, T, B) into the training set; where padded, a sample of the client's own
    mask: Tensor  # (C, T, B) True for a real sample
    keys: Tensor  # (C, T) for the augmentation of each batch
    steps: tuple[int, ...]  # local steps of each client; T counts batches, so T = max(steps) · batches_per_step

    @staticmethod
    def stack(plans: Sequence[Plan]) -> Plan:
        """Plans of single clients side by side."""
        length = max(p.index.shape[1] for p in plans)

        def padded(rows: list[Tensor]) -> Tensor:
            return torch.cat([torch.cat([r, r.new_zeros(1, length - r.shape[1], *r.shape[2:])], 1) for r in rows])

        return Plan(padded([p.index for p in plans]), padded([p.mask for p in plans]),
                    padded([p.keys for p in plans]), tuple(s for p in plans for s in p.steps))  # fmt: skip


def plan(samples: np.ndarray, client: int, round_: int, seed: int, batch: int, steps: Callable[[int], int],
         batches_per_step: int = 1) -> Plan:  # fmt: skip
    """One client's round: a new order every epoch, the last batch of an epoch short, epochs until the steps are full.

    `steps` gives the local steps from the number of batches in an epoch.
    """
    n = len(samples)
    a_epoch = ceil(n / batch)
    count = steps(a_epoch)
    if count == 0:
        nothing = torch.zeros(1, 0, batch, dtype=torch.int64)
        return Plan(nothing, nothing.bool(), nothing[..., 0], (0,))
    epochs = ceil(count * batches_per_step / a_epoch)
    order = permutation(key(seed, round_, client, torch.arange(epochs), ORDER), n)  # (epochs, n)
    # Padded with its own first sample, so that a broken sample (an infinite one) can only harm the client that has it.
    index = torch.full((epochs, a_epoch * batch), int(samples[0]), dtype=torch.int64)
    index[:, :n] = torch.as_tensor(samples)[order]
    mask = (torch.arange(a_epoch * batch) < n).expand(epochs, -1)
    total = count * batches_per_step
    keys = key(seed, round_, client, torch.arange(total), AUGMENT)
    return Plan(index.view(1, -1, batch)[:, :total], mask.reshape(1, -1, batch)[:, :total], keys[None], (count,))
