"""Local AdamW (Loshchilov & Hutter, ICLR 2019, arXiv:1711.05101), the outermost part for transformers.

    d = clip_c(g(w))                                    as in `sgd.py`
    m ← β₁ m + (1−β₁) d,   v ← β₂ v + (1−β₂) d²         for each coordinate; k = 1, 2, …, the number of the step
    m̂ = m / (1−β₁ᵏ),   v̂ = v / (1−β₂ᵏ)
    direction = m̂ / (√v̂ + ε) + λ w

Moments start at 0 in every round and are never uploaded.

`beta1`   β₁, the share of the old first moment.
`beta2`   β₂, the share of the old second moment.
`eps`     ε, added to the root.
`decay`   λ, the decoupled weight decay.
`clip`    c, the largest norm of the gradient that enters the moments; none if not set.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part, make_placeholder, object_to_readers
from steppe.core.ranges import Amount, Epsilon, Momentum, Positive
from steppe.core.scopes import LocalStep, Oracle


@dataclass(frozen=True)
class AdamW(Part):
    name = "adamw"
    citation = """@inproceedings{adamw,
      title = {Decoupled Weight Decay Regularization},
      author = {Loshchilov, Ilya and Hutter, Frank},
      booktitle = {International Conference on Learning Representations (ICLR)},
      year = {2019}, eprint = {1711.05101}, archiveprefix = {arXiv}
    }"""
    once = True
    beta1: Momentum = 0.9
    beta2: Momentum = 0.999
    eps: Epsilon = 1e-8
    decay: Amount = 0.01
    clip: Positive | None = None

    def objection(self, others: tuple[Part, ...]) -> str:
        return object_to_readers(others, "AdamW's steps are not along gradients")

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": make_placeholder(x), "v": make_placeholder(x)}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        g = grad(w)
        if self.clip is not None:
            g = g * (self.clip / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1)
        m = s.state["m"] = self.beta1 * s.state["m"] + (1 - self.beta1) * g
        v = s.state["v"] = self.beta2 * s.state["v"] + (1 - self.beta2) * g.square()
        k = s.index + 1
        step = (m / (1 - self.beta1**k)) / ((v / (1 - self.beta2**k)).sqrt() + self.eps)
        return step + (self.decay + sum(s.decay.values())) * s.w
