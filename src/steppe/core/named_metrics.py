"""Metrics by name. They ignore the targets that the loss ignores, and find the axis of the classes as it does."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from math import exp, inf, nan, sqrt
from typing import Any

import torch
from torch import Tensor

from steppe.core.losses import (
    IGNORED,
    LOSSES,
    Values,
    binary_cross_entropy,
    cross_entropy,
    find_class_axis,
    find_loss_name,
    find_loss_settings,
    match_shape,
    mean_squared_error,
    share_classes,
    weigh_targets,
)
from steppe.core.metric import Each, Metric, name_function
from steppe.core.widest_float import widen


def accuracy(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None) -> Values:
    """Return whether the likeliest class is the right one."""
    if targets.is_floating_point():  # probabilities
        axis = 1 if axis is None else axis
        if targets.ndim < 2 or targets.shape[axis] < 2:
            raise ValueError('these targets have one number per sample; if they are 0 and 1, choose loss="bce"')
        return (outputs.argmax(axis) == targets.argmax(axis)).to(outputs.dtype)
    right = outputs.argmax(find_class_axis(outputs, targets, axis)) == targets
    return weigh_targets(right.to(outputs.dtype), targets, ignore_index)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether the sign of a logit matches its label."""
    return ((match_shape(outputs, targets) > 0) == (targets > 0.5)).to(outputs.dtype)


def top5(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None) -> Values:
    """Return whether the right class is among the five likeliest."""
    outputs = outputs.movedim(find_class_axis(outputs, targets, axis), 1)
    if outputs.shape[1] <= 5:
        raise ValueError("with at most five classes, it would always be 100 %")
    found = (outputs.topk(5, 1).indices == targets[:, None]).any(1)
    return weigh_targets(found.to(outputs.dtype), targets, ignore_index)


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return |output − target|."""
    return (match_shape(outputs, targets) - targets).abs()


def overlap(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None) -> Tensor:
    """Count the pixels of each class that are predicted, true, and both: (N, 3C)."""
    p, y = share_classes(outputs, targets, ignore_index, axis, hard=True)
    return torch.cat([p.sum(2), y.sum(2), (p * y).sum(2)], dim=1)


def intersection_over_union(sums: Tensor) -> float:
    """Return |A ∩ B| / |A ∪ B|, averaged over the classes that occur in predictions or targets."""
    predicted, true, both = sums.reshape(3, -1)
    return _mean_ratio(both, predicted + true - both)


def dice_coefficient(sums: Tensor) -> float:
    """Return 2|A ∩ B| / (|A| + |B|), averaged over the classes that occur in predictions or targets."""
    predicted, true, both = sums.reshape(3, -1)
    return _mean_ratio(2 * both, predicted + true)


def area_under_curve(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None) -> float:
    """Return the area under the ROC curve: of one logit, or the mean over labels or classes (one against the rest).

    Ties count as one half. A class with only positive or only negative examples is left out; nan if none remains.
    """
    if outputs.numel() == targets.numel():
        scores, true = outputs.reshape(len(targets), -1), targets.reshape(len(targets), -1) > 0.5
    else:
        scores = outputs.movedim(find_class_axis(outputs, targets, axis), -1).softmax(-1).flatten(0, -2)
        labels = targets.flatten()
        scores, labels = scores[labels != ignore_index], labels[labels != ignore_index]
        true = labels[:, None] == torch.arange(scores.shape[1], device=labels.device)
        if scores.shape[1] == 2:  # two classes need one curve
            scores, true = scores[:, 1:], true[:, 1:]
    areas = [_area(s, t) for s, t in zip(widen(scores).T, true.T, strict=True)]
    found = [a for a in areas if a == a]
    return sum(found) / len(found) if found else nan


def _area(scores: Tensor, true: Tensor) -> float:
    """Compute the area from the ranks of the positive examples (Mann and Whitney)."""
    _, where, count = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = (widen(count.cumsum(0)) - (count - 1) / 2)[where]
    positive, negative = int(true.sum()), int((~true).sum())
    if not positive or not negative:
        return nan
    return float((rank[true].sum() - positive * (positive + 1) / 2) / (positive * negative))


def perplexity(mean: float) -> float:
    """Return exp of the mean cross-entropy per token."""
    return inf if mean > 700 else exp(mean)


def root(mean: float) -> float:
    """Return the square root of the mean squared error."""
    return sqrt(mean)


def _mean_ratio(part: Tensor, whole: Tensor) -> float:
    there = whole > 0
    return float((part[there] / whole[there]).mean()) if bool(there.any()) else nan


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", accuracy, percent=True),
    "top5": Metric("top5", top5, percent=True),
    "auc": Metric("auc", on_all=area_under_curve),
    "iou": Metric("iou", tally=overlap, finish=intersection_over_union, percent=True),
    "dice": Metric("dice", tally=overlap, finish=dice_coefficient, percent=True),
    "perplexity": Metric("perplexity", cross_entropy, lower=True, finish=perplexity),
    "cross_entropy": Metric("cross_entropy", cross_entropy, lower=True),
    "bce": Metric("bce", binary_cross_entropy, lower=True),
    "mse": Metric("mse", mean_squared_error, lower=True),
    "rmse": Metric("rmse", mean_squared_error, lower=True, finish=root),
    "mae": Metric("mae", mean_absolute_error, lower=True),
}
USUAL = {"cross_entropy": "accuracy", "bce": "accuracy", "mse": "mse", "dice": "dice"}  # the metric of each loss


def make_metric(name: str, loss: Each, **settings: Any) -> Metric:
    """Return a metric by name. It inherits the settings of the loss (what is ignored) unless it has its own."""
    metric = METRICS[name]
    if name == "accuracy" and find_loss_name(loss) == "bce":
        return replace(metric, each=binary_accuracy)
    function = metric.each or metric.tally or metric.on_all
    assert function is not None
    taken = inspect.signature(function).parameters
    settings = {k: v for k, v in find_loss_settings(loss).items() if k in taken} | settings
    if not settings:
        return metric
    kind = "each" if metric.each else "tally" if metric.tally else "on_all"
    return replace(metric, **{kind: partial(function, **settings)})  # type: ignore[arg-type]


def is_named(metric: Metric) -> bool:
    """Return whether a metric is one of ours, not a function of the user's under the same name."""
    function = metric.each or metric.tally or metric.on_all
    return getattr(getattr(function, "func", function), "__module__", None) == __name__


def choose_usual_metric(loss: Each) -> Metric:
    """Return the metric of a run that names none: the loss itself, if it is the user's own."""
    name = find_loss_name(loss)
    if name is not None:
        return make_metric(USUAL[name], loss)
    return Metric(name_function(loss).replace("<lambda>", "own_loss"), loss, lower=True)


assert set(USUAL) == set(LOSSES)
