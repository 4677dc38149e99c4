"""An exponential moving average of the global models, on the server, evaluated in their place.

    e ← k e + (1−k) x                   x the new global model; e = x⁰ at first; k is `keep`

Training continues from x; only e is evaluated. Nothing more is sent.

`keep`   k, the share of the old average.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Share
from steppe.core.scopes import Aggregation, ServerTurn
from steppe.parts.swa import SWA


@dataclass(frozen=True)
class EMA(Part):
    name = "ema"
    citation = SWA.citation
    addable = True
    keep: Share = 0.99

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"e": x.clone()}

    def settle(self, x: Tensor, s: Aggregation) -> None:
        s.state["e"] = self.keep * s.state["e"] + (1 - self.keep) * x

    def evaluated(self, x: Tensor, s: ServerTurn) -> Tensor:
        return s.state["e"]
