"""No federation: every client trains its own model from the common initial one, and continues where it stopped.

    w⁰ = w_i                            its own last model; x⁰ the first time
    Δ̄ = 0                               nothing is uploaded

Nothing is sent or averaged, so the global model never moves. A client keeps its model, and also what
other algorithms keep for one round only (momentum). The learning rate decays with the rounds, whether a client takes
part or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.scopes import ClientRound


@dataclass(frozen=True)
class OwnModel(Part):
    name = "own_model"
    alone = True
    alters_update = True

    def objection(self, others: tuple[Part, ...]) -> str:
        moving = next((p.name for p in others if p.has("start")), None)
        return "" if moving is None else (
            f"clients that train alone continue where they stopped, so '{moving}' cannot move their start: leave it out"
        )  # fmt: skip

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"w": x.clone()}

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        return s.state["w"]

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.state["w"] = s.w
        return torch.zeros_like(delta)
