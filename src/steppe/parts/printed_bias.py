"""FedScar's dual as its poster prints it (ICML 2026, poster 61241): positive feedback, so it diverges.

    h_i ← h_i + (x' − w_i) / (η K)                x' the next global model; the rest as in `geometric_bias.py`

Kept to show the effect of the printed rule. All settings are those of `geometric_bias`.

Deviations: a client learns x' only when it is active again, and uses the model that it then receives, which is the
same if all are active.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.layout import Tensors
from steppe.core.scopes import Aggregation, ClientRound, ServerTurn
from steppe.parts.geometric_bias import GeometricBias


@dataclass(frozen=True)
class PrintedBias(GeometricBias):
    needs_plain_steps = True

    def __post_init__(self) -> None:
        super().__post_init__()
        text = "FedScar's dual as printed on its poster feeds back on itself and diverges; choose 'official'"
        warnings.warn(text, UserWarning, stacklevel=3)

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return super().client_state(x) | {"path": x.new_ones(())}  # η K of its last round

    def prepare(self, rows: Tensors, s: ServerTurn) -> None:
        super().prepare(rows, s)
        printed = torch.func.vmap(lambda own: _printed(own, s.x))(rows)
        s.state["h"] = s.state["h"] + printed.sum(0) / s.clients

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        s.state["h"] = s.state["h"] + _printed(s.state, s.x)
        return super().start(w, s)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        h, delta = s.state["h"], super().finish(delta, s)
        s.state["h"], s.state["path"] = h, s.lr * s.steps
        return delta

    def _dual(self, s: Aggregation) -> Tensor:
        return s.state["h"]


def _printed(own: Tensors, x: Tensor) -> Tensor:
    return torch.where(own["when"] < 0, 0.0, 1 / own["path"]) * (x - own["last"])
