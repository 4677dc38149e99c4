"""The global Nesterov momentum of FedNSAM (Liu et al., 2026, arXiv:2602.23827), in three interpretations.

The server keeps a momentum m, 0 at first, and looks ahead along it. `NesterovStart` moves where clients begin; with SAM
inside it is FedNSAM as its code intends, or as released. `NesterovSAM` looks ahead in every step, at one gradient.

The paper's text was not available, so none is confirmed by it: they come from the abstract and the released code.
Deviations: γ and ρ are settings; the released client has 0.85 and 0.05 hard-coded. ε of unit(m) is 1e-7.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part, unit
from steppe.core.ranges import Amount, Share
from steppe.core.scopes import Aggregation, LocalStep, Oracle, ServerTurn


@dataclass(frozen=True)
class NesterovStart(Part):
    """Start clients ahead along the global momentum (Liu et al., 2026).

        x̃ = x + γ m                         what is sent, and where the clients begin
        Δ̄ = Σ_{i∈S} p_i (w_i − x̃)
        m ← γ m + Δ̄,   Δ̄ ← m

    One vector is sent down; a client keeps nothing.

    `gamma`        γ, the share of the old momentum.
    `accumulate`   False is the code as released: it uses the mean in place of the old momentum, so m = Δ̄ in the first
                   round, (1+γ) Δ̄ after it, and nothing accumulates.
    """

    name = "nesterov_start"
    citation = """@misc{fednsam,
      title = {{FedNSAM}: Consistency of Local and Global Flatness for Federated Learning},
      author = {Liu, Junkang and Shang, Fanhua and Tian, Yuxuan and Liu, Hongying and Liu, Yuanyuan},
      year = {2026}, eprint = {2602.23827}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    gamma: Share = 0.85
    accumulate: bool = True

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(x)}

    def send(self, x: Tensor, s: ServerTurn) -> Tensor:
        return x + self.gamma * s.state["m"]

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.accumulate:
            delta = self.gamma * s.state["m"] + delta
        else:
            delta = torch.where(s.round > 0, (1 + self.gamma) * delta, delta)
        s.state["m"] = delta
        return delta


@dataclass(frozen=True)
class NesterovSAM(Part):
    """Take each gradient ahead along the global momentum, and uphill of it (Liu et al., 2026).

        direction = g(w + γ m − ρ unit(m))      from w = x: m is a descent, so −m ascends
        m ← γ m + Δ̄,   Δ̄ ← m

    One gradient per step; x and m are sent. It fits the abstract better than the released code does.

    `rho`     ρ, the radius of the ascent.
    `gamma`   γ, the share of the old momentum.
    """

    name = "nesterov_sam"
    citation = NesterovStart.citation
    addable = True
    down = ("m",)
    rho: Amount = 0.05
    gamma: Share = 0.85

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(x)}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        m = s.down["m"]
        return grad(w + self.gamma * m - self.rho * unit(m, 1e-7))

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        m = s.state["m"] = self.gamma * s.state["m"] + delta
        return m
