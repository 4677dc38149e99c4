"""Checks of values before training: what is not finite is named, with its place."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import list_named_tensors
from steppe.data.dataset import Data


def check_values(data: Data) -> None:
    """Refuse inputs and targets that are NaN or infinite, in training, validation and test data."""
    for part in ("train", "validation", "test"):
        for kind in ("inputs", "targets"):
            samples = getattr(data, f"{part}_{kind}")
            if samples is not None:
                for name, tensor in list_named_tensors(samples, f"{part} {kind}"):
                    _check_finite(data.name, name, tensor)


def _check_finite(whose: str, name: str, values: Tensor) -> None:
    if not values.is_floating_point():
        return
    bad = ~torch.isfinite(values)
    if not bool(bad.any()):
        return
    sample, *place = torch.nonzero(bad)[0].tolist()
    value = float(values[(sample, *place)])
    rows = int(bad.flatten(1).any(1).sum()) if bad.ndim > 1 else int(bad.sum())
    where = f", place {tuple(place)}" if place else ""
    raise SteppeError(f"{whose}: the {name} have {value} at sample {sample}{where}; {rows} of {len(values)} samples "
                      "have values that are not finite. Fill or drop them.")  # fmt: skip
