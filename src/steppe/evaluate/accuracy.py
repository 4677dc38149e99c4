"""Loss and metric of a model on a set of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.inputs import Inputs, each_tensor, take
from steppe.core.keyed import key, permutation
from steppe.core.layout import Tensors
from steppe.core.task import Task


@dataclass(frozen=True)
class Score:
    """Loss and metric on a set of samples."""

    loss: float
    metric: float
    by_class: tuple[float, ...] = ()  # the metric on the samples of each class; nan if there are none


def score(task: Task, w: Tensor, buffers: Tensors, inputs: Inputs, targets: Tensor,
          plain: Callable[[Inputs], Inputs], classes: int | None = None, learning: bool = False) -> Score:  # fmt: skip
    """Compute mean loss and metric over all samples. `plain` normalises a batch of raw inputs.

    `learning` runs the model in training mode, for batch norm whose running statistics are local to the clients.
    """
    order = None
    if task.uses_batch_statistics:  # a test set sorted by class would give batches of a single class
        order = permutation(key(0), len(targets)).to(targets.device)
    losses, metrics = [], []
    batch = 2500 if targets.is_cuda else 1000
    with torch.no_grad():
        for begun in range(0, len(targets), batch):
            part = slice(begun, begun + batch) if order is None else order[begun : begun + batch]
            x, y = each_tensor(_channels_last, plain(take(inputs, part))), targets[part]
            logits = task.forward(w, x, buffers, learning=learning).logits
            losses.append(_one_each(task.loss_each(logits, y)))
            metrics.append(_one_each(task.metric_each(logits, y)))
    loss, metric = torch.cat(losses), torch.cat(metrics)
    by_class: tuple[float, ...] = ()
    if classes is not None:
        labels = targets if order is None else targets[order]
        count = torch.bincount(labels, minlength=classes).double()
        by_class = tuple((torch.bincount(labels, metric.double(), minlength=classes) / count).tolist())
    return Score(float(loss.double().mean()), float(metric.double().mean()), by_class)


def recalibrated(task: Task, w: Tensor, buffers: Tensors, batches: list[Inputs]) -> Tensors:
    """Measure running statistics again for w: the mean over these batches, with equal weights."""
    total = {k: torch.zeros_like(b) for k, b in buffers.items()}
    with torch.no_grad():
        for x in batches:
            # One pass moves a statistic from `before` to (1−m)·before + m·batch. Passes from 0 and 1 give m and batch.
            zero = task.forward(w, x, {k: torch.zeros_like(b) for k, b in buffers.items()}).buffers
            one = task.forward(w, x, {k: torch.ones_like(b) for k, b in buffers.items()}).buffers
            total = {k: total[k] + zero[k] / (1 - (one[k] - zero[k])) / len(batches) for k in buffers}
    return total


def _channels_last(x: Tensor) -> Tensor:
    """Return images as convolution weights are stored."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _one_each(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.ndim > 1 else values
