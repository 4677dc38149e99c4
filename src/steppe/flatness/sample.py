"""The fixed, un-augmented samples on which measures are taken. Every result names its sample.

Flatness depends strongly on the data, so runs are comparable only on the same sample. The sample is a function of the
data set, a size and a seed, and does not depend on the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import Inputs, map_tensors, take
from steppe.core.inputs import count as count_examples
from steppe.core.keyed import key, permutation
from steppe.data.federation import Federation
from steppe.flatness.random_vectors import SAMPLE


@dataclass(frozen=True, eq=False)
class Sample:
    """Raw inputs with their targets; `plain` normalises a batch of inputs as in evaluation."""

    name: str  # says in records what was sampled
    inputs: Inputs  # one row per example
    targets: Tensor  # of the examples
    plain: Callable[[Inputs], Inputs] = lambda inputs: inputs  # normalises a batch of inputs

    def __post_init__(self) -> None:
        if count_examples(self.inputs) == 0:
            raise SteppeError(f"The sample '{self.name}' is empty; a measure needs at least one example.")
        if count_examples(self.inputs) != len(self.targets):
            raise SteppeError(
                f"The sample '{self.name}' has {count_examples(self.inputs)} inputs, {len(self.targets)} targets."
            )

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which: Any) -> Sample:
        """Return the examples at an index, a mask or a slice."""
        return replace(self, inputs=take(self.inputs, which), targets=self.targets[which])

    def to(self, device: torch.device | str) -> Sample:
        return replace(self, inputs=map_tensors(lambda t: t.to(device), self.inputs), targets=self.targets.to(device))


def of_training_data(federation: Federation, count: int = 5000, seed: int = 0) -> Sample:
    """Return the sample of the global loss: up to `count` training examples, equally many per class if possible."""
    data = federation.data
    index = balanced(data.train_targets, count, seed, data.classes)
    how = "class-balanced" if data.classes else "random"
    which = f"all {len(index)}" if len(index) == len(data.train_targets) else f"{len(index)} {how}, seed {seed}"
    return _take_sample(federation, f"{data.name}/train, {which}", index)


def of_client(federation: Federation, client: int, count: int | None = None, seed: int = 0) -> Sample:
    """Return the sample of one client's loss: all of its training examples, or `count` random ones."""
    if not 0 <= client < federation.clients:
        raise SteppeError(f"There is no client {client}: the clients are 0 to {federation.clients - 1}.")
    mine = torch.as_tensor(federation.indices[client])
    some = len(mine) if count is None else min(count, len(mine))
    index = mine[permutation(key(seed, SAMPLE, client), len(mine))[:some]]
    which = f"all {some}" if some == len(mine) else f"{some} of {len(mine)}, seed {seed}"
    return _take_sample(federation, f"{federation.data.name}/train, client {client}, {which}", index)


def balanced(targets: Tensor, count: int, seed: int, classes: int | None) -> Tensor:
    """Return indices in random order, equally many per class as far as possible; without classes, any.

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
    while (left := count - int(quota.sum())) > 0:  # the other classes take over the share of one that has run out
        unfilled = torch.nonzero(quota < sizes).flatten()
        share = torch.full_like(unfilled, left // len(unfilled))
        share[: left % len(unfilled)] += 1
        quota[unfilled] = torch.minimum(quota[unfilled] + share, sizes[unfilled])
    chosen = []
    for label, wanted in enumerate(quota.tolist()):
        members = torch.nonzero(labels == label).flatten()
        chosen.append(members[permutation(key(seed, SAMPLE, label), len(members))[:wanted]])
    index = torch.cat(chosen)
    shuffled = permutation(key(seed, SAMPLE, classes), len(index))  # because chunks may share batch statistics
    return index[shuffled]


def _take_sample(federation: Federation, name: str, index: Tensor) -> Sample:
    data = federation.data
    index = index.to(data.device)
    return Sample(name, take(data.train_inputs, index), data.train_targets[index], federation.plain)
