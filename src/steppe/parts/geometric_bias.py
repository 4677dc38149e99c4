"""The geometric bias of FedScar (ICML 2026, poster 61241): a dual, and a history of where a client was pulled away to.

    b_i ← keep · b_i                              for all clients, every round, active or not
    b_i ← b_i + s_i unit(x − w_i)                 for the active; w_i its own last model, s_i = 0 the first time
    w⁰ = x + b_i                                  where the client begins
    direction = g(w) + prox(w − a_i) + β (h_i + b_i) + (b̄ − b_i),        b̄ the mean of all N clients' b
    h_i ← h_i + (w_i − w⁰)                        w_i now the new local model
    x ← Σ p_i w_i + β · (mean over all N of h − b),      s_i ← α

`prox`     norm: (β/2) unit(w − a_i), as released. square: β (w − a_i), as printed. none.
`anchor`   a_i: last, the client's own last model (w⁰ the first time), as released; global, x; start, w⁰.
`scale`    const: s_i = α. var: s_i = (α/N) Σ over clients ever active of ‖Δ_c − Δ̄‖, Δ_c their last displacements.
`variant`  official: as above. lagged: b̄ of the round before, which a real federation can know. poster: the printed
           dual h_i ← h_i + (x' − w_i) / (ηK) with x' the next global model: positive feedback, it diverges.

The client keeps h_i, b_i, w_i and the round of its last activity, from which b_i's decay is made up for when it is
active again; the server keeps the two means. b̄ goes down with x. For b̄, `official` needs the active clients' states
on the server before they reply (the released code holds everybody's); `lagged` uploads two more vectors instead.
SAM may go inside, with ε = 1e-7 as released. h_i adds up displacements: unlike FedDyn's, it is not scaled by β.

From the poster and the released code (github.com/Ultraman6/FedScar); the paper's text could not be read.

Deviations: unit(0) is 0, not a division by zero. Under `poster` a client learns x' only when it is active again, and
takes the model that it then receives, which is the same if all are active. Under `var` the server remembers s for
1024 rounds; a client that was away for longer takes a newer one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.errors import SettingError
from steppe.core.layout import Tensors
from steppe.core.part import Part, nothing, unit
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle, ServerTurn
from steppe.core.settings import Amount, Share

MEMORY = 1024  # rounds of which s_i is remembered


@dataclass(frozen=True)
class GeometricBias(Part):
    name = "geometric_bias"
    citation = """@inproceedings{fedscar,
      title = {{FedScar}: Correcting Geometric Bias for Flatness-Consistent Federated Learning},
      booktitle = {International Conference on Machine Learning (ICML)},
      note = {Poster 61241; for the authors see the proceedings},
      year = {2026}
    }"""
    addable = True
    reduction = {"b": "sum", "kick": "sum"}  # noqa: RUF012
    outer = True
    alpha: Amount = 0.01
    keep: Share = 0.9
    beta: Amount = 0.01
    scale: Literal["const", "var"] = "const"
    prox: Literal["norm", "square", "none"] = "norm"
    anchor: Literal["last", "global", "start"] = "last"
    variant: Literal["official", "poster", "lagged"] = "official"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "poster":
            text = "FedScar's dual as printed on its poster feeds back on itself and diverges; choose 'official'"
            warnings.warn(text, UserWarning, stacklevel=3)

    def objection(self, others: tuple[Part, ...]) -> str:
        guard = next((p.name for p in others if p.has("screen") or p.has("reduce")), None)
        if guard is None or (self.variant == "lagged" and self.scale == "const"):
            return ""
        return (f"'{self.name}' lets the server read single clients' states, which '{guard}' does not cover: choose a "
                "variant that needs no states on the server (for FedScar: variant=lagged, scale=const)")  # fmt: skip

    @property
    def down(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("bbar", "sizes") if self.scale == "var" else ("bbar",)

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        state = {name: torch.zeros_like(x) for name in ("bbar", "h", "shift")}  # shift: the round's (1/N) Σ b_i
        return state | ({"sizes": x.new_zeros(MEMORY)} if self.scale == "var" else {})

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        state = {"b": torch.zeros_like(x), "h": torch.zeros_like(x), "last": x.clone()}
        if self.scale == "var":
            state["moved"] = torch.zeros_like(x)
        if self.variant == "poster":
            state["path"] = x.new_ones(())  # η K of its last round
        return state | {"when": x.new_full((), -1)}

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"kick": nothing(x)} if self.variant == "lagged" else {}

    def _bias(self, own: Tensors, x: Tensor, now: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor]:
        """b_i of this round, and what has just been added to it."""
        size: float | Tensor = self.alpha
        if sizes is not None:
            size = (sizes * (torch.arange(MEMORY, device=x.device) == own["when"] % MEMORY)).sum()
        kick = torch.where(own["when"] < 0, 0.0, size * unit(x - own["last"], 0.0))
        return self.keep ** (now - own["when"]) * own["b"] + kick, kick

    def _printed(self, own: Tensors, x: Tensor) -> Tensor:
        return torch.where(own["when"] < 0, 0.0, 1 / own["path"]) * (x - own["last"])

    def has(self, hook: str) -> bool:
        return super().has(hook) and (hook != "prepare" or self.variant != "lagged")

    def prepare(self, rows: Tensors, s: ServerTurn) -> None:
        if not rows:
            text = "FedScar needs its clients' states on the server, as only a simulation has: choose variant 'lagged'"
            raise SettingError(text)
        bias = torch.func.vmap(lambda own: self._bias(own, s.x, s.round, s.state.get("sizes")))
        b, kick = bias(rows)  # (n, P)
        s.state["bbar"] = self.keep * s.state["bbar"] + kick.sum(0) / s.clients
        s.state["shift"] = b.sum(0) / s.clients
        if self.variant == "poster":
            printed = torch.func.vmap(lambda own: self._printed(own, s.x))(rows)
            s.state["h"] = s.state["h"] + printed.sum(0) / s.clients

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        s.state["b"], kick = self._bias(s.state, s.x, s.round, s.down.get("sizes"))
        if self.variant == "poster":
            s.state["h"] = s.state["h"] + self._printed(s.state, s.x)
        if self.variant == "lagged":
            s.state["kick"] = kick
        return w + s.state["b"]

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        h, b = s.state["h"], s.state["b"]
        direction = grad(w) + self.beta * (h + b) + s.down["bbar"] - b
        if self.prox == "none":
            return direction
        last = torch.where(s.state["when"] < 0, s.start, s.state["last"])
        gap = w - {"last": last, "global": s.x, "start": s.start}[self.anchor]
        return direction + (self.beta / 2 * unit(gap, 0.0) if self.prox == "norm" else self.beta * gap)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        moved = s.w - s.start
        if self.variant == "poster":
            s.state["path"] = s.lr * s.steps
        else:
            s.state["h"] = s.state["h"] + moved
        if self.scale == "var":
            s.state["moved"] = moved
        if self.variant == "lagged":
            s.up["b"], s.up["kick"] = s.state["b"], s.state["kick"]
        s.state["last"], s.state["when"] = s.w, s.round.to(s.w.dtype)
        return delta

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.variant == "lagged":
            s.state["bbar"], s.state["shift"] = self.keep * s.state["bbar"] + s.up["kick"], s.up["b"]
        if self.variant != "poster":
            s.state["h"] = s.state["h"] + s.sum_over_all() - s.state["shift"]
        if self.scale == "var":
            spread = self.alpha / s.clients * torch.linalg.vector_norm(s.everyone("moved") - delta, dim=1).sum()
            now = torch.arange(MEMORY, device=delta.device) == s.round % MEMORY
            s.state["sizes"] = torch.where(now, spread, s.state["sizes"])
        return delta + self.beta * (s.state["h"] - s.state["bbar"])
