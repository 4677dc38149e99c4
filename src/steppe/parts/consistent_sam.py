"""The consistent perturbation of FedSMOO (Sun et al., ICML 2023, arXiv:2305.11584): SAM towards a common direction.

    ŝ = ρ unit(g(w) − μ_i − s)          one norm over all parameters
    μ_i ← μ_i + ŝ − s                   in every step; s is fixed during the round
    direction = g(w + ŝ)                the same batch for both gradients
    s ← ρ unit(q)                       on the server
    q = mean_{i∈S}(μ_i − ŝ_i)           `paper`: ŝ_i of the client's last step; no ε in the norm of q
    q = mean_{i∈S}(μ_i)                 `official`: ε = 1e-7; FL-Simulator leaves ŝ_i out on purpose
    q = −(1/N) Σ_i μ_i                  `early`: over all clients, stale ones included; ε = 1e-8

The client keeps μ_i. s is broadcast, and one more vector is uploaded (for `early`, the change of μ_i, whose running
mean the server keeps). μ_i and s start at 0, so s has length ρ from the second round on. All means are uniform.

`rho`       ρ, the radius of the ascent.
`variant`   the rule for q: `paper`, `official` (FL-Simulator) or `early` (early scripts, perhaps the authors' own).

Deviations: the inner ε is 1e-7 everywhere (as in FL-Simulator). FL-Simulator's published FedSMOO numbers
precede a fix of how it split μ_i and s into tensors, so they do not validate this part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part, make_placeholder, unit
from steppe.core.ranges import Amount
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle


@dataclass(frozen=True)
class ConsistentSAM(Part):
    name = "consistent_sam"
    citation = """@inproceedings{fedsmoo,
      title = {Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global
        Consistency and Smooth Landscape},
      author = {Sun, Yan and Shen, Li and Chen, Shixiang and Ding, Liang and Tao, Dacheng},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2023}, eprint = {2305.11584}, archiveprefix = {arXiv}
    }"""
    addable = True
    down = ("s",)
    reduction = {"q": "mean", "moved": "sum"}  # noqa: RUF012
    asks = 2
    once = True
    rho: Amount = 0.1
    variant: Literal["paper", "official", "early"] = "paper"

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        mu = {"mu": torch.zeros_like(x)} if self.variant == "early" else {}
        return {**mu, "s": torch.zeros_like(x)}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"mu": torch.zeros_like(x)}

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        more = {"paper": "last", "early": "moved"}.get(self.variant)
        return {more: make_placeholder(x)} if more else {}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        ascent = self.rho * unit(grad(w) - s.state["mu"] - s.down["s"], 1e-7)
        s.state["mu"] = s.state["mu"] + ascent - s.down["s"]
        if self.variant == "paper":
            s.state["last"] = ascent
        if self.variant == "early":
            s.state["moved"] = s.state["moved"] + ascent - s.down["s"]
        return grad(w + ascent)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        if self.variant == "early":
            s.up["moved"] = s.state["moved"]
        else:
            s.up["q"] = s.state["mu"] - s.state["last"] if self.variant == "paper" else s.state["mu"]
        return delta

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        if self.variant == "early":
            s.state["mu"] = s.state["mu"] - (1 - share) * s.up["moved"]

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.variant == "early":
            s.state["mu"] = s.state["mu"] + s.up["moved"]
            s.state["s"] = self.rho * unit(-s.state["mu"], 1e-8)
        else:
            s.state["s"] = self.rho * unit(s.up["q"], 0.0 if self.variant == "paper" else 1e-7)
        return delta
