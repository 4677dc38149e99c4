"""Local AdamW (Loshchilov & Hutter, ICLR 2019, arXiv:1711.05101), the outermost part for transformers.

    m ← β₁ m + (1−β₁) g,   v ← β₂ v + (1−β₂) g²
    w ← w − η ( m̂ / (√v̂ + ε) + λ w ),   m̂ = m / (1−β₁ᵏ),  v̂ = v / (1−β₂ᵏ)

Moments start at 0 in every round and are never uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Oracle, Part, Scope, nothing, require


@dataclass(frozen=True)
class AdamW(Part):
    name = "adamw"
    once = True
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01
    clip: float | None = None

    def __post_init__(self) -> None:
        require(beta1=(self.beta1, 0, 1), beta2=(self.beta2, 0, 1), weight_decay=(self.decay, 0, float("inf")))

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": nothing(x), "v": nothing(x)}

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        g = grad(w)
        if self.clip is not None:
            g = g * (self.clip / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1)
        m = s.state["m"] = self.beta1 * s.state["m"] + (1 - self.beta1) * g
        v = s.state["v"] = self.beta2 * s.state["v"] + (1 - self.beta2) * g.square()
        k = s.index + 1
        step = (m / (1 - self.beta1**k)) / ((v / (1 - self.beta2**k)).sqrt() + self.eps)
        return step + (self.decay + sum(s.decay.values())) * s.w
