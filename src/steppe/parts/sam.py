"""Sharpness-aware minimisation: descend along the gradient at the worst nearby point.

SAM     Foret et al., ICLR 2021, arXiv:2010.01412; in a federation FedSAM, Qu et al., ICML 2022,
        arXiv:2206.02618, and Caldarola et al., ECCV 2022, arXiv:2203.11834.
ASAM    Kwon et al., ICML 2021, arXiv:2102.11600; FedASAM, Caldarola et al.

    ε = ρ · T² g(w) / (‖T g(w)‖ + eps)       one norm over all parameters
    direction = g(w + ε)                      the same batch for both gradients

SAM has T = 1. ASAM scales with the weights, so that rescaling a layer changes nothing: T = |w| on every
tensor (`official`, as in the FedSoL code), or T = |w| + η on tensors named "weight" and 1 on the others
(`paper`). Keeps nothing, sends nothing, asks for two gradients.

Deviations: the ascent gradient is neither clipped nor decayed (as in all released codes). eps is 1e-12 as
in the FedSoL code; FL-Simulator uses 1e-7, the ASAM authors 1e-16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Oracle, Part, Scope, require, unit


@dataclass(frozen=True)
class SAM(Part):
    name = "sam"
    asks = 2
    rho: float
    eps: float = 1e-12

    def __post_init__(self) -> None:
        require(rho=(self.rho, 0, float("inf")))

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        return grad(w + self.rho * unit(grad(w), self.eps))


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
