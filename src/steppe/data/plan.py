"""The batches of a round as indices and masks: a function of (seed, round, client)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from steppe.core.keyed import bits, key

ORDER, AUGMENT = 1, 2  # separates the uses of (seed, round, client)
LAST = (1 << 63) - 1  # sorts after every sample


@dataclass(frozen=True)
class Plan:
    """Batches of several clients, padded to the longest client and to the full batch size."""

    index: Tensor  # (C, T, B) into the training set; padding repeats a sample of the same client
    mask: Tensor  # (C, T, B) True for a real sample
    keys: Tensor  # (C, T) for the augmentation of each batch
    steps: tuple[int, ...]  # local steps of each client; T counts batches, so T = max(steps) · batches_per_step


def size_batches(samples: int, batch: int, last: str = "keep") -> list[int]:
    """Return the sizes of an epoch's batches; a short last one is kept, dropped, or joined to the one before.

    >>> size_batches(9, 4), size_batches(9, 4, "drop"), size_batches(9, 4, "join"), size_batches(3, 4, "drop")
    ([4, 4, 1], [4, 4], [4, 5], [3])
    """
    full, rest = divmod(samples, batch)
    if last == "keep" or not full:
        return [batch] * full + [rest] * (rest > 0)
    return [batch] * (full - 1) + [batch + (rest if last == "join" else 0)]


def plan(samples: Tensor, sizes: Sequence[int], ids: Sequence[int], steps: Sequence[int], round_: int, seed: int,
         batch: int, batches_per_step: int = 1, last: str = "keep") -> Plan:  # fmt: skip
    """Plan a round: a new order every epoch, and as many epochs as the steps need; see `size_batches` for the last.

    samples (C, n) holds each client's samples in its first `sizes` columns. Random numbers are drawn on its device, and
    a client's plan does not depend on the other clients.
    """
    device, width = samples.device, samples.shape[1]
    batches = [s * batches_per_step for s in steps]
    a_epoch = [len(size_batches(n, batch, last)) for n in sizes]
    epochs = max(ceil(b / a) for b, a in zip(batches, a_epoch, strict=True))
    table = torch.tensor([sizes, ids, batches, a_epoch]).to(device, non_blocking=True)
    n, client, total, per_epoch = table[:, :, None]  # (C, 1) each
    t = torch.arange(max(batches), device=device)
    draws = bits(key(seed, round_, client, torch.arange(epochs, device=device), ORDER), width)  # (C, E, n)
    order = torch.where(torch.arange(width, device=device) < n[..., None], draws, LAST).argsort(dim=-1, stable=True)
    epoch = (t // per_epoch).clamp(max=max(epochs - 1, 0))
    column = torch.arange(batch if last != "join" else 2 * batch - 1, device=device)
    place = (t % per_epoch * batch)[..., None] + column  # (C, T, B)
    mask = (place < n[..., None]) & (t < total)[..., None]
    if last == "join":  # only the last batch of an epoch has more than the usual size
        mask &= (column < batch) | (t % per_epoch == per_epoch - 1)[..., None]
    at = (epoch[..., None] * width + place.clamp(max=width - 1)).flatten(1)
    chosen = samples.gather(1, order.flatten(1).gather(1, at)).view(place.shape) if epochs else place
    # Padded with the client's own first sample, so that an invalid sample (inf, nan) can only harm its own client.
    index = torch.where(mask, chosen, samples[:, :1, None])
    return Plan(index, mask, key(seed, round_, client, t, AUGMENT), tuple(steps))
