"""The widest floating-point type of a device: float64, except on Apple's GPUs."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}


def find_widest(device: torch.device) -> torch.dtype:
    """Return the type for sums and norms on a device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widen(tensor: Tensor) -> Tensor:
    """Return a tensor in the widest type of its device."""
    return tensor.to(find_widest(tensor.device))
