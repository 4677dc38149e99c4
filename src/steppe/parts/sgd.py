"""Local SGD, the outermost part: clip, decay, momentum.

    d = clip_c(g(w)) + λ w
    clip_c(v) = v min(1, c / (‖v‖ + 1e-6))      one norm over all parameters
    m ← μ m + d                         m starts at 0 in every round and is never uploaded
    direction = m                       so that w ← w − η m

The decay is outside the clip and coupled (it enters the momentum), as in PyTorch's SGD after
`clip_grad_norm_`, and acts on the unperturbed w, even if the oracle takes the gradient elsewhere (SAM).

The FedSMOO code (github.com/woodenchild95/FL-Simulator) clips before it adds the proximal pull α w: a part
passes such a coefficient in `s.decay`, which is added to λ here. A part that adds its pull to the oracle
instead gets the textbook order, with the pull inside the clip.

`momentum`   μ, the share of the old momentum.
`decay`      λ, the weight decay.
`clip`       c, the largest norm of the direction before decay; none if not set.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part, make_placeholder
from steppe.core.ranges import Amount, Momentum, Positive
from steppe.core.scopes import LocalStep, Oracle


@dataclass(frozen=True)
class SGD(Part):
    name = "sgd"
    momentum: Momentum = 0.0
    decay: Amount = 0.0
    clip: Positive | None = None

    @property
    def once(self) -> bool:  # type: ignore[override]
        return self.momentum > 0

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": make_placeholder(x)} if self.momentum else {}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        s.decay[self.name] = self.decay  # set before the oracle is called: a part inside may take its own step
        d = grad(w)
        if self.clip is not None:
            d = d * (self.clip / (torch.linalg.vector_norm(d) + 1e-6)).clamp(max=1)
        decay = sum(s.decay.values())
        if decay:
            d = torch.add(d, s.w, alpha=decay)  # without a vector for decay · w
        if self.momentum:
            m = s.state["m"]
            d = s.state["m"] = torch.add(d, m, alpha=self.momentum, out=m if s.spend else None)
        return d

    def has(self, hook: str) -> bool:
        return super().has(hook) and (hook != "stride" or self.momentum > 0)

    def stride(self, s: LocalStep) -> Tensor:
        """Return 1 + μ + … + μᵏ, the weight of a constant direction in the buffer; over a round, ‖a‖₁ of FedNova."""
        return (1 - self.momentum ** (s.index + 1)) / (1 - self.momentum)
