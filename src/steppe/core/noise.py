"""Noise that depends only on a key, and cannot be predicted without the key.

SHAKE-256 of (key, label) is the source of random bits. It is the same on every machine and device and, if the key is
secret and long enough, unpredictable, which the hash in `keyed` does not claim to be.

    >>> a = gaussian(b"a key", "round 1", 5)
    >>> bool((a == gaussian(b"a key", "round 1", 5)).all()), bool((a == gaussian(b"a key", "round 2", 5)).any())
    (True, False)
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor


def uniform(key: bytes, label: str, n: int) -> Tensor:
    """Return n float64 numbers in [0, 1), multiples of 2⁻⁵³."""
    raw = hashlib.shake_256(key + b"\0" + label.encode()).digest(8 * n)
    whole = torch.frombuffer(bytearray(raw), dtype=torch.int64) if n else torch.zeros(0, dtype=torch.int64)
    return ((whole >> 11) & ((1 << 53) - 1)).to(torch.float64) / (1 << 53)


def gaussian(key: bytes, label: str, n: int) -> Tensor:
    """Return n standard normal numbers in float64 (Box and Muller's transform)."""
    half = (n + 1) // 2
    u = uniform(key, label, 2 * half)
    radius, angle = (-2 * torch.log1p(-u[:half])).sqrt(), 2 * math.pi * u[half:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:n]
