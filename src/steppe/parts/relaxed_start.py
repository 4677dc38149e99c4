"""The relaxed start of FedInit (Sun et al., NeurIPS 2023, arXiv:2306.05706): begin a little beyond the global model.

    w⁰ = x + β (x − w_i)                w_i the client's own last model, x⁰ before its first round

`official`   the server adds the mean of w_i − w⁰ to x, as FL-Simulator does. `paper`: x is the mean of the w_i.

The client keeps w_i; nothing more travels. Duals, control variates and pulls of other parts are measured from w⁰.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from steppe.core.part import Part, Scope, require


@dataclass(frozen=True)
class RelaxedStart(Part):
    name = "relaxed_start"
    beta: float = 0.1
    variant: Literal["official", "paper"] = "official"

    def __post_init__(self) -> None:
        require(beta=(self.beta, 0, float("inf")))

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": x.clone()}

    def start(self, w: Tensor, s: Scope) -> Tensor:
        return w + self.beta * (s.x - s.state["last"])

    def finish(self, delta: Tensor, s: Scope) -> Tensor:
        s.state["last"] = s.w
        return delta - (s.start - s.x) if self.variant == "official" else delta
