"""Loss and metrics of a model on a set of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from steppe.core.errors import SteppeError, quote
from steppe.core.inputs import Inputs, map_tensors, take
from steppe.core.keyed import key, permutation
from steppe.core.layout import Tensors
from steppe.core.losses import reduce_to_examples
from steppe.core.metric import Each, Metric
from steppe.core.task import Task
from steppe.core.widest_float import widen
from steppe.executors.captured_forward import find_forward

Batch = tuple[Tensor, Tensor]  # outputs, targets


@dataclass(frozen=True)
class Score:
    """Loss and metrics on a set of samples."""

    loss: float
    metric: float  # the main one
    by_class: tuple[float, ...] = ()  # the main metric on the samples of each class; nan if there are none
    metrics: dict[str, float] = field(default_factory=dict)  # all, by name


def score(task: Task, w: Tensor, buffers: Tensors, inputs: Inputs, targets: Tensor,
          plain: Callable[[Inputs], Inputs], classes: int | None = None, learning: bool = False) -> Score:  # fmt: skip
    """Compute loss and metrics over all samples. `plain` normalises a batch of raw inputs.

    `learning` runs the model in training mode, for batch norm whose running statistics are local to the clients.
    """
    order = None
    if task.uses_batch_statistics:  # a test set sorted by class would give batches of a single class
        order = permutation(key(0), len(targets)).to(targets.device)
    batch = 2500 if targets.is_cuda else 1000

    def outputs() -> Iterable[Batch]:
        for begun in range(0, len(targets), batch):
            part = slice(begun, begun + batch) if order is None else order[begun : begun + batch]
            raw = take(inputs, part)
            full = begun + batch <= len(targets) and not learning  # one shape, so that one capture serves all
            if full and (fast := find_forward(task, w, raw, plain)):
                yield fast(w, raw), targets[part]
            else:
                x = map_tensors(_order_channels, plain(raw))
                yield task.forward(w, x, buffers, learning=learning).logits, targets[part]

    with torch.no_grad():
        loss, *found = judge([Mean(task.loss_each), *map(make_judge, task.metrics)], outputs())
    by_class: tuple[float, ...] = ()
    if classes is not None and isinstance(main := found[0], Mean):
        by_class = main.by_class(targets if order is None else targets[order], classes)
    values = {m.name: one.value() for m, one in zip(task.metrics, found, strict=True)}
    return Score(loss.value(), values[task.metric.name], by_class, values)


class Mean:
    """The mean of one value per sample, token or pixel."""

    def __init__(self, each: Each, finish: Callable[[float], float] | None = None) -> None:
        self.each, self.finish = each, finish or (lambda mean: mean)
        self.sums: list[Tensor] = []
        self.weights: list[Tensor] = []

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        sums, weights = reduce_to_examples(self.each(outputs, targets))
        self.sums.append(sums)
        self.weights += [] if weights is None else [weights]

    def value(self) -> float:
        """Return the result over all batches so far."""
        sums = widen(torch.cat(self.sums))
        if not self.weights:
            return self.finish(float(sums.mean()))
        return self.finish(float(sums.sum() / widen(torch.cat(self.weights)).sum()))

    def by_class(self, labels: Tensor, classes: int) -> tuple[float, ...]:
        """Return the result on the samples of each class."""
        weights = widen(torch.cat(self.weights)) if self.weights else None
        count = widen(torch.bincount(labels, weights, minlength=classes))
        means = torch.bincount(labels, widen(torch.cat(self.sums)), minlength=classes) / count
        return tuple(self.finish(v) if v == v else v for v in means.tolist())


class Sums:
    """Counts, added over all examples."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.total: Tensor | None = None

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        assert self.metric.tally is not None
        counts = widen(self.metric.tally(outputs, targets)).sum(0)
        self.total = counts if self.total is None else self.total + counts

    def value(self) -> float:
        return finish(self.metric, self.total)


class All:
    """All outputs and targets at once, in the main memory."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.batches: list[Batch] = []

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        self.batches.append((outputs.detach().cpu(), targets.cpu()))

    def value(self) -> float:
        outputs, targets = (torch.cat(column) for column in zip(*self.batches, strict=True))
        assert self.metric.on_all is not None
        try:
            found = float(self.metric.on_all(outputs, targets))
        except Exception as error:
            raise SteppeError(f"The metric {self.metric.name} fails on all outputs {tuple(outputs.shape)} and targets "
                              f"{tuple(targets.shape)}: {error}") from error  # fmt: skip
        return finish(self.metric, found)


Judging = Mean | Sums | All


def finish(metric: Metric, found: Any) -> float:
    """Make the metric of a mean, of sums, or of what a function of all predictions has returned."""
    if metric.finish is None:
        return float(found)
    try:
        return float(metric.finish(found))
    except Exception as error:  # the user's function may raise anything
        raise SteppeError(f"finish of the metric {metric.name} fails on {quote(found)}: {type(error).__name__}: "
                          f"{error}") from error  # fmt: skip


def make_judge(metric: Metric) -> Judging:
    """Return what computes a metric batch by batch."""
    if metric.each is not None:
        return Mean(metric.each, partial(finish, metric))
    return All(metric) if metric.on_all is not None else Sums(metric)


def judge(several: list[Judging], batches: Iterable[Batch]) -> list[Judging]:
    """Let all of them see all batches."""
    for outputs, targets in batches:
        for one in several:
            one.see(outputs, targets)
    return several


def recalibrate(task: Task, w: Tensor, buffers: Tensors, batches: list[Inputs]) -> Tensors:
    """Measure running statistics again for w: the mean over these batches, with equal weights."""
    total = {k: torch.zeros_like(b) for k, b in buffers.items()}
    with torch.no_grad():
        for x in batches:
            # One pass moves a statistic from `before` to (1−m)·before + m·batch. Passes from 0 and 1 give m and batch.
            zero = task.forward(w, x, {k: torch.zeros_like(b) for k, b in buffers.items()}).buffers
            one = task.forward(w, x, {k: torch.ones_like(b) for k, b in buffers.items()}).buffers
            total = {k: total[k] + zero[k] / (1 - (one[k] - zero[k])) / len(batches) for k in buffers}
    return total


def _order_channels(x: Tensor) -> Tensor:
    """Return images as convolution weights are stored."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
