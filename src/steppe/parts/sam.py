"""Sharpness-aware minimisation: descend along the gradient at the worst nearby point.

SAM     Foret et al., ICLR 2021, arXiv:2010.01412; in a federation FedSAM, Qu et al., ICML 2022,
        arXiv:2206.02618, and Caldarola et al., ECCV 2022, arXiv:2203.11834.
ASAM    Kwon et al., ICML 2021, arXiv:2102.11600; FedASAM, Caldarola et al.

    ε = ρ · T² g(w) / (‖T g(w)‖ + eps)       one norm over all parameters
    direction = g(w + ε)                      the same batch for both gradients

SAM has T = 1. ASAM scales with the weights, so that rescaling a layer changes nothing: T = |w| on every
tensor (`official`, as in the FedSoL code), or T = |w| + η on tensors named "weight" and 1 on the others
(`paper`). Keeps nothing, sends nothing, asks for two gradients.

`mix`    SAM's direction is (1−mix) g(w) + mix g(w + ε): the quasi-gradient of FedSpeed (Sun et al., ICLR 2023,
         arXiv:2302.10429). 1 is SAM, 0 the plain gradient, at the price of two either way.
`ramp`   the radius grows linearly from 1e-3 to ρ over this many rounds, as FedGloSS does; 0 is a constant one.

Deviations: the ascent gradient is neither clipped nor decayed (as in all released codes). eps is 1e-12 as
in the FedSoL code; FL-Simulator uses 1e-7, the ASAM authors 1e-16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Oracle, Part, Scope, ascended, require, unit


@dataclass(frozen=True)
class SAM(Part):
    name = "sam"
    asks = 2
    rho: float
    eps: float = 1e-12
    mix: float = 1.0
    ramp: int = 0

    def __post_init__(self) -> None:
        require(rho=(self.rho, 0, float("inf")), mix=(self.mix, 0, 1), ramp=(self.ramp, 0, float("inf")))

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        g = grad(w)
        there = grad(ascended(w, g, ramped(self.rho, self.ramp, s), self.eps))
        return there if self.mix == 1 else (1 - self.mix) * g + self.mix * there


def ramped(rho: float, ramp: int, s: Scope) -> float | Tensor:
    """The radius of this round."""
    low = min(rho, 1e-3)
    return low + (rho - low) * (s.round / ramp).clamp(max=1) if ramp else rho


@dataclass(frozen=True)
class ASAM(Part):
    name = "asam"
    asks = 2
    rho: float
    eta: float = 0.0
    on: str = "all"  # or "weight": the tensors that are scaled
    eps: float = 1e-12

    def __post_init__(self) -> None:
        require(rho=(self.rho, 0, float("inf")), eta=(self.eta, 0, float("inf")))

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        scale = torch.where(s.layout.mask(self.on, w.device), w.abs() + self.eta, 1.0)
        return grad(w + self.rho * scale * unit(scale * grad(w), self.eps))
