"""The geometric bias of FedScar (ICML 2026, poster 61241): a dual, and a decaying memory of each client's drift.

    b_i ← k b_i + s_i unit(x − w_i)               w_i its own last model; s_i = 0 the first time; k is `keep`
    w⁰ = x + b_i                                  where the client begins
    direction = g(w) + r(w) + β (h_i + b_i) + b̄ − b_i,   b̄ = (1/N) Σ_i b_i
    r(w) = (β/2) unit(w − a_i)                    see `prox` and `anchor`
    h_i ← h_i + w_i − w⁰,   Δ̄ ← Δ̄ + (β/N) Σ_i (h_i − b_i)      w_i now the new local model; all N clients

Inactive b_i decay too. Clients keep h_i, b_i, w_i and their last round. From its poster and code, not the paper.

`alpha`    α, the length of the vector that is added to a client's bias.
`keep`     k, the share of the bias that stays after a round.
`beta`     β, the weight of dual, bias and pull.
`scale`    const: s_i = α. var: s_i = (α/N) Σ_c ‖Δ_c − Δ̄‖ over clients c ever active, Δ_c their last displacements.
`prox`     norm: as above, as released. square: r(w) = β (w − a_i), as printed. none: no pull.
`anchor`   a_i: last, the client's own last model (w⁰ the first time), as released; global, x; start, w⁰.
`variant`  official: as above; the server needs the states of the clients that will reply, as the released code has, so
           a round with missing replies is repeated. lagged: b̄ of the round before; two more vectors are uploaded.

Deviations: unit(0) is 0; with `var` the server keeps s_i for 1024 rounds; a client absent for longer gets a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.errors import SettingError
from steppe.core.layout import Tensors
from steppe.core.part import Part, make_placeholder, unit
from steppe.core.ranges import Amount, Share
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle, ServerTurn

MEMORY = 1024  # rounds for which s_i is remembered


@dataclass(frozen=True)
class GeometricBias(Part):
    name = "geometric_bias"
    citation = """@inproceedings{fedscar,
      title = {{FedScar}: Correcting Geometric Bias for Flatness-Consistent Federated Learning},
      booktitle = {International Conference on Machine Learning (ICML)},
      note = {Poster 61241; for the authors see the proceedings}, year = {2026}
    }"""
    addable = True
    reduction = {"kick": "sum", "moved": "sum"}  # noqa: RUF012
    outer = True
    alpha: Amount = 0.01
    keep: Share = 0.9
    beta: Amount = 0.01
    scale: Literal["const", "var"] = "const"
    prox: Literal["norm", "square", "none"] = "norm"
    anchor: Literal["last", "global", "start"] = "last"
    variant: Literal["official", "lagged"] = "official"

    def objection(self, others: tuple[Part, ...]) -> str:
        guard = next((p.name for p in others if p.has("screen") or p.has("reduce")), None)
        return "" if guard is None or (self.variant == "lagged" and self.scale == "const") else (
            f"'{self.name}' lets the server read single clients' states, which '{guard}' does not cover: choose "
            "variant=lagged and scale=const, which need none")  # fmt: skip

    @property
    def down(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("bbar", "sizes") if self.scale == "var" else ("bbar",)

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        state = {name: torch.zeros_like(x) for name in ("bbar", "h", "shift")}  # shift: the round's (1/N) Σ b_i
        state["at"] = x.new_full((), -1)  # the round up to which b̄ has decayed; 0.1.0 did not keep it
        return state | ({"sizes": x.new_zeros(MEMORY)} if self.scale == "var" else {})

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        zero, moved = torch.zeros_like(x), {"moved": torch.zeros_like(x)} if self.scale == "var" else {}
        return {"b": zero, "h": zero.clone(), "last": x.clone(), **moved, "when": x.new_full((), -1)}

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"kick": make_placeholder(x)} if self.variant == "lagged" else {}

    def _bias(self, own: Tensors, x: Tensor, now: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return b_i of this round, and what has just been added to it."""
        size = self.alpha if sizes is None else (sizes * _mark_round(own["when"], x)).sum()
        kick = torch.where(own["when"] < 0, 0.0, size * unit(x - own["last"], 0.0))
        return self.keep ** (now - own["when"]) * own["b"] + kick, kick

    def has(self, hook: str) -> bool:
        return super().has(hook) and (hook != "prepare" or self.variant != "lagged")

    def _age(self, s: ServerTurn, until: Tensor, kick: Tensor | float = 0.0) -> None:
        s.state["bbar"] = self.keep ** (until - s.state.get("at", s.round - 1)) * s.state["bbar"] + kick
        s.state["at"] = until.to(s.x.dtype)

    def prepare(self, rows: Tensors, s: ServerTurn) -> None:
        if not rows:
            raise SettingError(
                "FedScar's server needs its clients' states, as in a simulation: choose variant 'lagged'"
            )
        b, kick = torch.func.vmap(lambda own: self._bias(own, s.x, s.round, s.state.get("sizes")))(rows)  # (n, P)
        self._age(s, s.round, kick.sum(0) / s.clients)
        s.state["shift"] = b.sum(0) / s.clients

    def send(self, x: Tensor, s: ServerTurn) -> Tensor:
        if self.variant == "lagged":
            self._age(s, s.round - 1)
        return x

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        s.state["b"], kick = self._bias(s.state, s.x, s.round, s.down.get("sizes"))
        s.state |= {"kick": kick} if self.variant == "lagged" else {}
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
        s.state["h"] = s.state["h"] + moved
        s.state |= {"moved": moved} if self.scale == "var" else {}
        s.up |= {"kick": s.state["kick"]} if self.variant == "lagged" else {}
        if self.variant == "lagged" or s.update_differs:  # the server cannot derive it from the update alone
            s.up["moved"] = moved
        s.state["last"], s.state["when"] = s.w, s.round.to(s.w.dtype)
        return delta

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        s.state["b"] = s.state["b"] - (1 - share) * s.state["kick"]
        s.state["h"] = s.state["h"] - (1 - share) * s.up["moved"]

    def _dual(self, s: Aggregation) -> Tensor:
        return s.state["h"] + (s.up["moved"] if "moved" in s.up else s.sum_over_all() - s.state["shift"])

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.variant == "lagged":
            self._age(s, s.round, s.up["kick"])
        s.state["h"] = self._dual(s)
        if self.scale == "var":
            spread = self.alpha / s.clients * torch.linalg.vector_norm(s.states_of_all("moved") - delta, dim=1).sum()
            s.state["sizes"] = torch.where(_mark_round(s.round, delta), spread, s.state["sizes"])
        return delta + self.beta * (s.state["h"] - s.state["bbar"])


def _mark_round(round_: Tensor, x: Tensor) -> Tensor:
    return torch.arange(MEMORY, device=x.device) == round_ % MEMORY
