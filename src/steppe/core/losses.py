"""Losses by name. Each returns one value per sample, token or pixel; the mean over a batch is taken later.

Classes: outputs are (N, C) for labels (N,), and (N, C, d1, …) for targets (N, d1, …), as in `F.cross_entropy`. Outputs
(N, d1, …, C), as language models return them, are recognised by the targets' shape. If both readings fit, PyTorch's is
used, unless `axis` is given. Targets that equal `ignore_index` are left out of the sum and of the number by which it is
divided. By default, no label (N,) is ignored, because an example without a label cannot be used at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steppe.core.layout import Tensors
from steppe.core.metric import Each

IGNORED = -100
# One value per sample, token or pixel; or such values with weights of the same shape, 0 for those to ignore.
Values = Tensor | tuple[Tensor, Tensor]


def find_class_axis(outputs: Tensor, targets: Tensor, axis: int | None = None) -> int:
    """Return the axis of the classes, by the rules at the top of this file."""
    if axis is not None:
        if not -outputs.ndim <= axis < outputs.ndim or axis % outputs.ndim == 0:
            raise ValueError(f"axis {axis} of the outputs cannot be that of the classes")
        return axis % outputs.ndim
    as_pytorch = outputs.ndim == targets.ndim + 1 and outputs.shape[2:] == targets.shape[1:]
    return outputs.ndim - 1 if not as_pytorch and outputs.shape[:-1] == targets.shape else 1


def is_ambiguous(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether the classes could be on axis 1 or on the last axis."""
    shapes = outputs.shape[:1] + outputs.shape[2:], outputs.shape[:-1]
    return outputs.ndim > 2 and all(shape == targets.shape for shape in shapes)


def cross_entropy(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None) -> Values:
    """Return −log softmax(outputs) at the target, or its mean over the classes if targets are probabilities."""
    if targets.is_floating_point():
        axis = 1 if axis is None else axis
        return F.cross_entropy(outputs.movedim(axis, 1), targets.movedim(axis, 1), reduction="none")
    outputs = outputs.movedim(find_class_axis(outputs, targets, axis), 1)
    each = F.cross_entropy(outputs, targets, ignore_index=ignore_index, reduction="none")
    return weigh_targets(each, targets, ignore_index)


def match_shape(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs in the shape of the targets, such as (N, 1) as (N,)."""
    if outputs.numel() != targets.numel():
        raise ValueError("it needs one output per target, in the shape of the targets")
    return outputs.reshape(targets.shape)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of labels 0 and 1, one or several per sample; outputs are logits of their shape."""
    return F.binary_cross_entropy_with_logits(match_shape(outputs, targets), targets.to(outputs.dtype),
                                              reduction="none")  # fmt: skip


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (output − target)²."""
    return (match_shape(outputs, targets) - targets).square()


def dice_loss(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None,
              smooth: float = 1.0) -> Tensor:  # fmt: skip
    """Return 1 − (2 Σ p y + s) / (Σ p + Σ y + s) over the pixels of an example, averaged over the classes."""
    p, y = share_classes(outputs, targets, ignore_index, axis)
    inner, whole = (p * y).flatten(2).sum(2), (p + y).flatten(2).sum(2)
    return 1 - ((2 * inner + smooth) / (whole + smooth)).mean(1)


def share_classes(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORED, axis: int | None = None,
                 hard: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return predictions and targets as shares (N, C, pixels), both 0 where the target is ignored.

    Without an axis of classes there is one class, the foreground: logits and targets of 0 and 1 have the same shape.
    With `hard`, the likeliest class has share 1.
    """
    if outputs.numel() == targets.numel():
        p = outputs.reshape(targets.shape)[:, None]
        p = (p > 0).to(p.dtype) if hard else p.sigmoid()
        y = targets[:, None].to(p.dtype)
    else:
        if targets.ndim == 1:
            raise ValueError("one label per sample has no overlap; it needs a class per pixel")
        p = outputs.movedim(find_class_axis(outputs, targets, axis), 1)
        each = torch.arange(p.shape[1], device=p.device).view(1, -1, *[1] * (p.ndim - 2))
        p = (p.argmax(1, keepdim=True) == each).to(p.dtype) if hard else p.softmax(1)
        y = (targets[:, None] == each).to(p.dtype)
    real = (targets != ignore_index)[:, None]
    return torch.where(real, p, 0.0).flatten(2), torch.where(real, y, 0.0).flatten(2)


def weigh_targets(each: Tensor, targets: Tensor, ignore_index: int) -> Values:
    """Return the values with their weights, 0 where a target is ignored; by default, plain labels have no weights."""
    if targets.ndim == 1 and ignore_index == IGNORED:
        return each
    return each, (targets != ignore_index).to(each.dtype)


LOSSES: dict[str, Each] = {
    "cross_entropy": cross_entropy, "bce": binary_cross_entropy, "mse": mean_squared_error, "dice": dice_loss,
}  # fmt: skip


def find_loss_name(loss: Each) -> str | None:
    """Return the name of a loss, with settings or not; None for the user's own."""
    function = loss.func if isinstance(loss, partial) else loss
    return next((name for name, known in LOSSES.items() if known is function), None)


def find_loss_settings(loss: Each) -> dict[str, Any]:
    return dict(loss.keywords) if isinstance(loss, partial) and find_loss_name(loss) else {}


def reduce_to_examples(each: Values) -> tuple[Tensor, Tensor | None]:
    """Return one value per sample or, if values have weights, the weighted sums and the sums of the weights."""
    if isinstance(each, Tensor):
        return each.flatten(1).mean(1) if each.ndim > 1 else each, None
    values, weights = each
    # where, not a product: ignored values may be anything, and 0 * inf is not 0
    sums = torch.where(weights != 0, values * weights, 0.0)
    return (sums.flatten(1).sum(1), weights.flatten(1).sum(1)) if sums.ndim > 1 else (sums, weights)


def average_loss(each: Values, batch: Tensors) -> Tensor:
    """Return the mean over the real examples of a batch; weighted if values have weights."""
    sums, weights = reduce_to_examples(each)
    if "mask" not in batch:
        return sums.mean() if weights is None else sums.sum() / _avoid_zero(weights.sum())
    real = torch.where(batch["mask"], sums, 0.0).sum()  # padded values may be anything, too
    if weights is None:
        return real / batch["mask"].to(sums.dtype).sum().clamp(min=1)
    return real / _avoid_zero(torch.where(batch["mask"], weights, 0.0).sum())


def _avoid_zero(total: Tensor) -> Tensor:
    return torch.where(total == 0, 1.0, total)
