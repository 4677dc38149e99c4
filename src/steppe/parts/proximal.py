"""The proximal term of FedProx (Li et al., MLSys 2020, arXiv:1812.06127).

    direction = g(w) + μ (w − x)

the gradient of loss + (μ/2)‖w − x‖² over all trainable parameters. Zero in the first step of a round.
Keeps nothing, sends nothing. It is added to the oracle, not to the loss: the same numbers, and no pass
through automatic differentiation.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.part import Oracle, Part, Scope, require


@dataclass(frozen=True)
class Proximal(Part):
    name = "proximal"
    mu: float

    def __post_init__(self) -> None:
        require(mu=(self.mu, 0, float("inf")))

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        return grad(w) + self.mu * (w - s.x)
