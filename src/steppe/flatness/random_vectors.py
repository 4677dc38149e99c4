"""Random vectors as a function of a key: the same on every device, independent of earlier draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steppe.core.keyed import bits, key, uniform

# Separates the uses of one seed.
SAMPLE, START, PROBE, SKETCH, DENSITY, NOISE, DIRECTION = range(21, 28)


def rademacher(like: Tensor, n: int, *parts: int) -> Tensor:
    """Return ±1 with equal probability, on the device and in the precision of `like`."""
    return ((bits(key(*parts).to(like.device), n) >> 20 & 1) * 2 - 1).to(like.dtype)


def gaussian(like: Tensor, n: int, *parts: int) -> Tensor:
    """Return standard normal numbers by the Box-Muller method."""
    u = uniform(key(*parts).to(like.device), n + n % 2).view(2, -1)
    radius, angle = (-2 * torch.log1p(-u[0])).sqrt(), 2 * math.pi * u[1]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:n].to(like.dtype)
