"""Sharpness-aware minimisation: descend along the gradient at the worst nearby point.

SAM     Foret et al., ICLR 2021, arXiv:2010.01412; in a federation FedSAM, Qu et al., ICML 2022,
        arXiv:2206.02618, and Caldarola et al., ECCV 2022, arXiv:2203.11834.
ASAM    Kwon et al., ICML 2021, arXiv:2102.11600; FedASAM, Caldarola et al.

It keeps nothing, sends nothing and needs two gradients, both on the same batch.

Deviations: the ascent gradient is neither clipped nor decayed (as in all released programs). eps is 1e-12 as
in the FedSoL code; FL-Simulator uses 1e-7, the ASAM authors 1e-16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part, ascend, unit
from steppe.core.ranges import Amount, Count, Epsilon, Share
from steppe.core.scopes import LocalStep, Oracle


@dataclass(frozen=True)
class SAM(Part):
    """Descend along the gradient at the worst nearby point (Foret et al., ICLR 2021).

        δ = ρ g(w) / (‖g(w)‖ + ε)            one norm over all parameters
        direction = g(w + δ)                the same batch for both gradients

    `rho`    ρ, the radius of the ascent.
    `eps`    ε, added to the norm.
    `mix`    λ of the direction (1−λ) g(w) + λ g(w + δ), the quasi-gradient of FedSpeed (Sun et al., ICLR 2023,
             arXiv:2302.10429). 1 is SAM, 0 the plain gradient; both cost two gradients.
    `ramp`   the radius grows linearly from 1e-3 to ρ over this many rounds, as FedGloSS does; 0 keeps it constant.
    """

    name = "sam"
    citation = """@inproceedings{sam,
      title = {Sharpness-Aware Minimization for Efficiently Improving Generalization},
      author = {Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam},
      booktitle = {International Conference on Learning Representations (ICLR)},
      year = {2021}, eprint = {2010.01412}, archiveprefix = {arXiv}
    }"""
    addable = True
    asks = 2
    rho: Amount
    eps: Epsilon = 1e-12
    mix: Share = 1.0
    ramp: Count = 0

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        g = grad(w)
        there = grad(ascend(w, g, ramped(self.rho, self.ramp, s.round), self.eps))
        return there if self.mix == 1 else (1 - self.mix) * g + self.mix * there


def ramped(rho: float, ramp: int, now: Tensor) -> float | Tensor:
    """Return the radius of this round."""
    low = min(rho, 1e-3)
    return low + (rho - low) * (now / ramp).clamp(max=1) if ramp else rho


@dataclass(frozen=True)
class ASAM(Part):
    """Adaptive SAM: a perturbation in units of the weights (Kwon et al., ICML 2021).

        δ = ρ T² ⊙ g(w) / (‖T ⊙ g(w)‖ + ε)   one norm over all parameters
        T = |w| + η_a                       on the tensors that `on` names, 1 on the others; η_a is `eta`
        direction = g(w + δ)                the same batch for both gradients

    Rescaling a layer changes nothing.

    `rho`   ρ, the radius of the ascent.
    `eta`   η_a, added to |w|, so that parameters at 0 are moved too.
    `on`    all: every tensor, as in the FedSoL code. weight: tensors named so, as in the paper.
    `eps`   ε, added to the norm.
    """

    name = "asam"
    citation = """@inproceedings{asam,
      title = {{ASAM}: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks},
      author = {Kwon, Jungmin and Kim, Jeongseop and Park, Hyunseo and Choi, In Kwon},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2021}, eprint = {2102.11600}, archiveprefix = {arXiv}
    }"""
    addable = True
    asks = 2
    rho: Amount
    eta: Amount = 0.0
    on: str = "all"  # or "weight": the tensors that are scaled
    eps: Epsilon = 1e-12

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        scale = torch.where(s.layout.mask(self.on, w.device), w.abs() + self.eta, 1.0)
        return grad(w + self.rho * scale * unit(scale * grad(w), self.eps))
