"""The trajectory term of FedGMT (Li et al., ICML 2025, PMLR 267): learn from a running mean of the global models.

    penalty = b τ² KL(q, p)                                 a mean over the batch; b is `weight`
    q = softmax(z_e / τ),   p = softmax(z_w / τ)            z_e, z_w: logits at e and at w
    e ← k e + (1−k) x                                       x the new global model; e = x⁰ at first; k is `keep`

e lags behind x along the descent, so the gap between the two measures the sharpness that SAM estimates, at the cost
of one forward pass of e per batch. e is broadcast with x; a client keeps nothing.

`weight`   b, the weight of the penalty.
`tau`      τ, the temperature.
`keep`     k, the share of the old running mean.
`on`       server: as above. client: every client keeps its own e and updates it with the model it receives, in the
           rounds in which it is active (FedGMT-v2): nothing more is sent, and with all clients active the result is
           the same.

Deviations: e predicts in evaluation mode (dropout off, running statistics fixed). The paper updates e when a
client receives x, the code on the server: the same, given e⁰ = x⁰.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount, Positive, Share
from steppe.core.scopes import Aggregation, ClientRound, Forward, LocalStep
from steppe.core.task import Outputs
from steppe.parts.distillation import Distillation


@dataclass(frozen=True)
class TrajectoryTeacher(Part):
    name = "trajectory_teacher"
    citation = """@inproceedings{fedgmt,
      title = {One Arrow, Two Hawks: Sharpness-aware Minimization for Federated Learning via Global Model Trajectory},
      author = {Li, Yuhang and Liu, Tong and Cui, Yangguang and Hu, Ming and Li, Xiaoqiang},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2025}
    }"""
    addable = True
    needs = frozenset({"logits"})
    weight: Amount = 1.0
    tau: Positive = 3.0
    keep: Share = 0.95
    on: Literal["server", "client"] = "server"

    @property
    def down(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("e",) if self.on == "server" else ()

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"e": x.clone()} if self.on == "server" else {}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"e": x.clone()} if self.on == "client" else {}

    def observe(self, forward: Forward, s: LocalStep) -> dict[str, Tensor]:
        logits = forward(self._teacher(s)).logits
        return {"log_q": self._divergence.log_probabilities(logits, s.batch["y"])}

    def penalty(self, w: Tensor, out: Outputs, s: LocalStep) -> Tensor:
        return self._divergence.penalty(w, out, s)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        if self.on == "client":
            s.state["e"] = self._teacher(s)
        return delta

    def settle(self, x: Tensor, s: Aggregation) -> None:
        if self.on == "server":
            s.state["e"] = self.keep * s.state["e"] + (1 - self.keep) * x

    @cached_property
    def _divergence(self) -> Distillation:
        return Distillation(self.weight * self.tau**2, self.tau)

    def _teacher(self, s: ClientRound | LocalStep) -> Tensor:
        return s.down["e"] if self.on == "server" else self.keep * s.state["e"] + (1 - self.keep) * s.x
