"""A part and an algorithm of one's own: an example in tests, and the text of the files that they write."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import steppe
from steppe.parts.sam import SAM


@dataclass(frozen=True)
class LookBack(steppe.Part):
    """Mix in the gradient where the round began."""

    name = "look_back"
    asks = 2
    rho: float = 0.5

    def gradient(self, grad: steppe.Oracle, w: Tensor, s: steppe.LocalStep) -> Tensor:
        return (1 - self.rho) * grad(w) + self.rho * grad(s.x)


def mine(radius: float = 0.1, *, rho: float = 0.2) -> tuple[steppe.Part, ...]:
    """Mine: SAM inside, a look back outside."""
    return SAM(radius), LookBack(rho)
