"""Normalised averaging of FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481).

    d_i = −Δ_i / (η a_i)                                     a_i: the client's steps, corrected for momentum
    Δ̄ ← −η (Σ_{i∈S} p_i a_i) (Σ_{i∈S} p_i d_i)               η cancels

Directions are averaged, not distances, so that clients with more steps do not have more influence. Two
scalars are uploaded (a_i and 1/a_i).

`correction`   none: as above. ccvr: direction = g(w) + d − d_i, with d_i from the client's last round and d a running
               mean of them by size, d ← (1 − P) d + P Σ p_i d_i, P the share of all data that took part. This is the
               mean over all clients only while all take part; otherwise it assumes that absent ones have d.
               The client keeps d_i, and d is broadcast. official: the FedSoL code (and FedNTD's) never updates d, so a
               client that takes part again subtracts its own old average gradient, g(w) − d_i; its configuration
               enables this.

Limits: d_i contains its own correction, so it swings from one of the client's rounds to the next. With `ccvr` it
neither grows nor fades, and a bias stays. `official` with all clients in every round diverges at any learning rate:
along a direction of curvature a, with one step per round, x and d_i grow by (ηa + √(η²a² + 4)) / 2 per round. With
fewer clients per round it takes longer. Where a part moves the start, d_i is measured from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle


@dataclass(frozen=True)
class NormalisedAveraging(Part):
    name = "normalised_averaging"
    citation = """@inproceedings{fednova,
      title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
      author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
      booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
      year = {2020}, eprint = {2007.07481}, archiveprefix = {arXiv}
    }"""
    times = ("inverse",)
    correction: Literal["none", "ccvr", "official"] = "none"

    @property
    def down(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("d",) if self.correction == "ccvr" else ()

    @property
    def needs_plain_steps(self) -> bool:  # type: ignore[override]
        return self.correction != "none"

    def objection(self, others: tuple[Part, ...]) -> str:
        bounding = next((p.name for p in others if p.has("screen")), None)
        if bounding is not None:
            return (f"'{self.name}' multiplies the mean direction by the mean number of steps, so '{bounding}', which "
                    "scales both, would shrink the update twice: use fedavg with max_steps, so that clients take equal "
                    "steps")  # fmt: skip
        adding = next((p.name for p in others if p.alters_update and not p.has("start")), None)
        return "" if adding is None else (
            f"'{self.name}' divides a client's update by its steps, and '{adding}' with over=active adds its dual to "
            "the update: use over=all, which keeps the dual out of it"
        )  # fmt: skip

    def caution(self, per_round: int, clients: int) -> str:
        return "" if self.correction != "official" or per_round < clients else (
            "fednova variant=official diverges if all clients take part in every round: each subtracts its own last "
            "direction, as released, and the mean is never added. Use variant=nova, or fewer clients per round."
        )  # fmt: skip

    def has(self, hook: str) -> bool:
        return super().has(hook) and (hook != "gradient" or self.correction != "none")

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"d": torch.zeros_like(x)} if self.correction == "ccvr" else {}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"d": torch.zeros_like(x)} if self.correction != "none" else {}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w) - s.state["d"] + s.down.get("d", 0.0)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.up["steps"], s.up["inverse"] = s.effective_steps, 1 / s.effective_steps
        if self.correction != "none":
            s.state["d"] = (s.start - s.w) / (s.lr * s.effective_steps)
            if self.correction == "ccvr" and s.update_differs:  # the server cannot derive it from the update alone
                s.up["d"] = s.state["d"]
        return delta

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        mean = s.mean_times("inverse")
        if self.correction == "ccvr":
            s.state["d"] = (1 - s.share) * s.state["d"] + s.share * (s.up["d"] if "d" in s.up else -mean / s.lr)
        return s.up["steps"] * mean
