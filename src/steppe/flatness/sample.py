"""The fixed, un-augmented samples that measures are taken on. Every result names the one it was taken on.

Flatness depends strongly on the data that it is measured on, so runs are only comparable on one sample: it is a
function of the data set, a size and a seed, never of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.keyed import key, permutation
from steppe.data.federation import Federation
from steppe.flatness.draws import SAMPLE


@dataclass(frozen=True, eq=False)
class Sample:
    """Raw inputs with their targets; `plain` normalises a batch of them, as for a test."""

    name: str
    inputs: Tensor
    targets: Tensor
    plain: Callable[[Tensor], Tensor] = lambda inputs: inputs

    def __post_init__(self) -> None:
        if len(self.inputs) == 0:
            raise SteppeError(f"The sample '{self.name}' is empty; a measure needs at least one example.")
        if len(self.inputs) != len(self.targets):
            raise SteppeError(f"The sample '{self.name}' has {len(self.inputs)} inputs, {len(self.targets)} targets.")

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> Sample:
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


def of_training_data(federation: Federation, count: int = 5000, seed: int = 0) -> Sample:
    """The global loss: as many training examples of every class as there are, up to `count` in all."""
    data = federation.data
    index = balanced(data.train_targets, count, seed, data.classes)
    how = "class-balanced" if data.classes else "random"
    told = f"all {len(index)}" if len(index) == len(data.train_targets) else f"{len(index)} {how}, seed {seed}"
    return _taken(federation, f"{data.name}/train, {told}", index)


def of_client(federation: Federation, client: int, count: int | None = None, seed: int = 0) -> Sample:
    """One client's loss: all of its training examples, or a random part of them with the mix of classes it has."""
    if not 0 <= client < federation.clients:
        raise SteppeError(f"There is no client {client}: the clients are 0 to {federation.clients - 1}.")
    mine = torch.as_tensor(federation.indices[client])
    take = len(mine) if count is None else min(count, len(mine))
    index = mine[permutation(key(seed, SAMPLE, client), len(mine))[:take]]
    told = f"all {take}" if take == len(mine) else f"{take} of {len(mine)}, seed {seed}"
    return _taken(federation, f"{federation.data.name}/train, client {client}, {told}", index)


def balanced(targets: Tensor, count: int, seed: int, classes: int | None) -> Tensor:
    """Indices in random order, equally many of every class as far as there are enough; any, if there are no classes.

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    >>> labels[balanced(labels, 6, seed=0, classes=2)].bincount().tolist()
    [4, 2]
    """
    count = min(count, len(targets))
    if classes is None:
        return permutation(key(seed, SAMPLE), len(targets))[:count]
    labels = targets.cpu()
    sizes = torch.bincount(labels, minlength=classes)
    quota = torch.zeros_like(sizes)
    while (left := count - int(quota.sum())) > 0:  # classes that have run out leave their part to the others
        unfilled = torch.nonzero(quota < sizes).flatten()
        share = torch.full_like(unfilled, left // len(unfilled))
        share[: left % len(unfilled)] += 1
        quota[unfilled] = torch.minimum(quota[unfilled] + share, sizes[unfilled])
    chosen = []
    for label, take in enumerate(quota.tolist()):
        members = torch.nonzero(labels == label).flatten()
        chosen.append(members[permutation(key(seed, SAMPLE, label), len(members))[:take]])
    index = torch.cat(chosen)
    return index[permutation(key(seed, SAMPLE, classes), len(index))]  # mixed: chunks may share batch statistics


def _taken(federation: Federation, name: str, index: Tensor) -> Sample:
    data = federation.data
    index = index.to(data.train_inputs.device)
    return Sample(name, data.train_inputs[index], data.train_targets[index], federation.plain)
