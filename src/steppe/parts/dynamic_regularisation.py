"""Dynamic regularisation of FedDyn (Acar et al., ICLR 2021, arXiv:2111.04263): a dual for each client.

    direction = g(w) − h_i + α (w − w⁰)     `square`: w⁰ is where the client began, x unless a part moves it
    direction = g(w) − h_i + (α/2) unit(w − w⁰)     `norm`: the un-squared distance, of the FL-SAM code
    direction = g(w) − h_i                  `none`: no pull, as in FedGMT
    h_i ← h_i − α Δ_i                       Δ_i = w_i − w⁰
    h ← h − (α/N) Σ_{i∈S} Δ_i               `all`: over all N clients, uniformly: always the mean of all h_i
    h = Σ_{i∈S} p_i h_i                     `active`: the mean of the round's own duals, which are uploaded too
    h ← h − α / (N n) Σ_{i∈S} Δ_i           `divided`: as released by FedGloSS
    Δ̄ ← Δ̄ − h/α

The client keeps h_i; only models are sent. FedSpeed, FedSMOO, FedLESAM-D and FedGMT share it.

One sign for all papers: h_i has the sign of a gradient. (FL-Simulator stores Σ Δ_i = −h_i/α, FedSpeed ĝ_i = h_i,
FedSMOO λ_i = h_i, FedGMT u_i = h_i.)

`alpha`  α, the strength of the pull; its inverse scales the dual on the server.
`over`   all: as above. active: the server takes the mean of the round's own duals, so a client uploads
         w_i − h_i/α (FedSpeed and FedGMT as printed, where weights are uniform; other weights apply to both);
         N/n times stronger. A norm bound also clips these duals, which do not vanish: use all with it. divided: as
         all, but the server divides its share once more by the number of active clients (FedGloSS as released).
`prox`   the pull: square, norm or none.
`order`  textbook: the pull α (w − w⁰) is clipped with the gradient. official: g(w) − h_i − α w⁰ is clipped and α w
         added afterwards as decay, as in FL-Simulator. They are the same while the clip is inactive; it is active from
         the first step for a ResNet-18. A direction clipped at c cannot balance a pull longer than c, so with a clip
         the official order keeps ‖x‖ within c/α: the optimum is found only if it lies there.
`last`   number of the model's last parameters with a dual and a pull, by default all; the others are averaged as in
         FedAvg. A client keeps as many numbers: 5,130 for the CNN's head, of 2.2 million. Not with the official order.

If a part moves the start (FedInit), Δ_i and the pull are measured from it, as in FL-Simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from steppe.core.errors import SettingError
from steppe.core.part import Part, unit
from steppe.core.ranges import FromOne, Positive
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle


@dataclass(frozen=True)
class DynamicRegularisation(Part):
    name = "dynamic_regularisation"
    citation = """@inproceedings{feddyn,
      title = {Federated Learning Based on Dynamic Regularization},
      author = {Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and Whatmough, Paul and
        Saligrama, Venkatesh},
      booktitle = {International Conference on Learning Representations (ICLR)},
      year = {2021}, eprint = {2111.04263}, archiveprefix = {arXiv}
    }"""
    addable = True
    reduction = {"moved": "sum"}  # noqa: RUF012
    outer = True
    alpha: Positive
    over: Literal["all", "active", "divided"] = "all"
    prox: Literal["square", "norm", "none"] = "square"
    order: Literal["textbook", "official"] = "textbook"
    last: FromOne | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last is not None and self.order == "official":
            raise SettingError("last of dynamic_regularisation needs order = textbook: the official order hands its "
                               "pull to the optimiser, for the whole model", "last")  # fmt: skip

    def objection(self, others: tuple[Part, ...]) -> str:
        scales = next((p.name for p in others if p.name in ("client_momentum", "momentum_sam")), None)
        return "" if scales is None or not self.needs_plain_steps else (
            f"'{scales}' scales the gradient but not the decay to which '{self.name}' adds its pull in the official "
            "order, so the model would be pulled towards 0: use order=textbook (variant=paper of FedDyn, FedSMOO and "
            "FedLESAM-D)")  # fmt: skip

    @property
    def alters_update(self) -> bool:  # type: ignore[override]
        return self.over == "active"

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {} if self.over == "active" else {"h": torch.zeros_like(self._cut(x))}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"h": torch.zeros_like(self._cut(x))}

    def _cut(self, v: Tensor) -> Tensor:
        """Return what has a dual."""
        if self.last is None:
            return v
        if self.last > len(v):
            raise SettingError(f"last of dynamic_regularisation is {self.last}, but the model has {len(v)} numbers: "
                               "lower it, or leave it out", "last")  # fmt: skip
        return v[-self.last :]

    def _fill(self, h: Tensor, like: Tensor) -> Tensor:
        """Prepend zeros for the parameters without a dual."""
        return h if self.last is None else pad(h, (len(like) - self.last, 0))

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        direction = grad(w) - self._fill(s.state["h"], w)
        if self.prox == "norm":
            return direction + self.alpha / 2 * self._fill(unit(self._cut(w - s.start)), w)
        if self.prox == "none":
            return direction
        if self.order == "official":
            s.decay[self.name] = self.alpha
            return direction - self.alpha * s.start
        return direction + self.alpha * self._fill(self._cut(w - s.start), w)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        moved = self._cut(s.w - s.start)
        h = s.state["h"] = s.state["h"] - self.alpha * moved
        if self.over == "active":
            return delta - self._fill(h / self.alpha, delta)
        if s.update_differs:  # the server cannot derive it from the update alone
            s.up["moved"] = moved
        return delta

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        if self.over != "active":
            s.state["h"] = s.state["h"] + (1 - share) * self.alpha * self._cut(s.w - s.start)

    @property
    def needs_plain_steps(self) -> bool:  # type: ignore[override]
        return self.order == "official" and self.prox == "square"  # which hands its pull to the optimiser

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.over == "active":
            return delta
        moved = s.up["moved"] if "moved" in s.up else self._cut(s.sum_over_all())
        share = self.alpha / s.active if self.over == "divided" else self.alpha
        h = s.state["h"] = s.state["h"] - share * moved
        return delta - self._fill(h / self.alpha, delta)
