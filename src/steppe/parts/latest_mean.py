"""The mean of all clients' latest models, including stale ones, evaluated in place of the global model.

    m ← m + (1/N) Σ_{i∈S} (w_i − w_i^{last})        w_i^{last} of its round before; x⁰ if it has not taken part

The early FedSMOO scripts and the code of MAN (arXiv:2512.08314) report this mean. It acts like weight averaging and
raises accuracy by some points, so compare its numbers only with each other. Training does not depend on it. The client
keeps its last model; one more vector is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.part import Part
from steppe.core.scopes import Aggregation, ClientRound, ServerTurn
from steppe.parts.activation_norm import ActivationNorm


@dataclass(frozen=True)
class LatestMean(Part):
    name = "latest_mean"
    citation = ActivationNorm.citation
    addable = True
    reduction = {"change": "sum"}  # noqa: RUF012

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.clone()}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": x.clone()}

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.up["change"] = s.w - s.state["last"]
        s.state["last"] = s.w
        return delta

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        s.state["last"] = s.state["last"] - (1 - share) * s.up["change"]

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        s.state["mean"] = s.state["mean"] + s.up["change"]
        return delta

    def evaluated(self, x: Tensor, s: ServerTurn) -> Tensor:
        return s.state["mean"]
