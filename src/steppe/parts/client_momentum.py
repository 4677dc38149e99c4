"""Client-level momentum of FedCM (Xu et al., 2021, arXiv:2106.10874): each step mixes in the last global direction.

    direction = α g(w) + (1−α) m
    m ← −Σ_{i∈S} p_i Δ_i / (K_i η)      Δ_i from the client's start, η of the round that made it; m = 0 at first

m is broadcast. A client uploads the model and a scalar (and one more vector if a part moves the start or changes the
update) and keeps nothing. The first round is plain SGD at α times its learning rate. With SAM inside it is MoFedSAM
(Qu et al., ICML 2022, arXiv:2206.02618): the ascent is along the unscaled gradient.

`alpha`   α, the share of the client's own gradient; 1 is plain SGD.

Limits: α scales the gradient but not the optimiser's weight decay λ, as in the released codes, so the objective has the
decay λ/α: with α = 0.1, ten times the decay that was set.

Deviations: K_i is the client's own count, corrected for local momentum; FL-Simulator divides all updates by the
first client's. A server learning rate does not enter m. (MoFedSAM in the FedLESAM code gives g the weight 1; not here.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Share
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle


@dataclass(frozen=True)
class ClientMomentum(Part):
    name = "client_momentum"
    citation = """@misc{fedcm,
      title = {{FedCM}: Federated Learning with Client-level Momentum},
      author = {Xu, Jing and Wang, Sen and Wang, Liwei and Yao, Andrew Chi-Chih},
      year = {2021}, eprint = {2106.10874}, archiveprefix = {arXiv}
    }"""
    addable = True
    down = ("D",)
    times = ("rate",)
    outer = True
    needs_plain_steps = True
    alpha: Share = 0.1

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"D": torch.zeros_like(x)}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return self.alpha * grad(w) + (1 - self.alpha) * s.down["D"]

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        per_step = 1 / (s.effective_steps * s.lr)
        if s.update_differs:  # the server cannot derive it from the update alone
            s.up["direction"] = per_step * (s.start - s.w)
        else:
            s.up["rate"] = per_step
        return delta

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        s.state["D"] = s.up["direction"] if "direction" in s.up else -s.mean_times("rate")
        return delta
