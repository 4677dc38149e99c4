"""Ascent by the server: a perturbation that is constant within a round is sent as a shifted model. Our own idea.

    x̃ = x + ρ unit(v)                   what is sent
    Δ̄ = Σ_{i∈S} p_i (w_i − x̃)           measured from what was sent, so the shift is undone
    v = e − x,   e ← k e + (1−k) x      `along` mean: e is a running mean of the global models; k is `keep`
    v = x_old − x                       `along` update: x_old is the global model of the round before

`rho`    ρ, the radius of the ascent.
`along`  mean or update: the direction v, as above.
`keep`   k, the share of the old running mean.

A client at w̃ = w + ρ unit(v) takes g(w + ρ unit(v)): with along = update this is FedLESAM's `last_round` without the
second vector that it sends (only weight decay acts on the shifted model). The direction towards a mean of older models
is uphill, as FedGMT argues, and less noisy than the last update. A client keeps nothing, and nothing more is sent. The
first round has no older model, and no shift. ε = 1e-7 in the norm, as in FedLESAM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part, unit
from steppe.core.ranges import Amount, Share
from steppe.core.scopes import Aggregation, ServerTurn
from steppe.parts.locally_estimated_sam import LocallyEstimatedSAM


@dataclass(frozen=True)
class ServerAscent(Part):
    name = "server_ascent"
    citation = LocallyEstimatedSAM.citation
    addable = True
    rho: Amount = 0.3
    along: Literal["mean", "update"] = "mean"
    keep: Share = 0.9

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"e": x.clone()} if self.along == "mean" else {"back": torch.zeros_like(x)}

    def send(self, x: Tensor, s: ServerTurn) -> Tensor:
        return x + self.rho * unit(s.state["e"] - s.x if self.along == "mean" else s.state["back"], 1e-7)

    def settle(self, x: Tensor, s: Aggregation) -> None:
        if self.along == "mean":
            s.state["e"] = self.keep * s.state["e"] + (1 - self.keep) * x
        else:
            s.state["back"] = s.x - x
