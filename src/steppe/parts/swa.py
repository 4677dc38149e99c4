"""Stochastic weight averaging on the server (Izmailov et al., UAI 2018): evaluate a mean of late global models.

    m ← (n m + x) / (n + 1),   n ← n + 1          after each round t > a for which c divides t − a
    a = ⌊q T⌋

In a federation: Caldarola et al., ECCV 2022, arXiv:2203.11834. m is evaluated once it contains a model, and x before
that. Training continues from x. Nothing more is sent.

`start_at`   q, the share of all rounds after which averaging starts.
`cycle`      c, the rounds between two models that are averaged.
`rounds`     T, the run's rounds, unless set.

Deviations: the authors also cycle the clients' learning rate within a cycle; that belongs to the recipe's schedule and
is not part of this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.errors import SettingError
from steppe.core.part import Part
from steppe.core.ranges import Count, FromOne, Share
from steppe.core.scopes import Aggregation, ServerTurn


@dataclass(frozen=True)
class SWA(Part):
    name = "swa"
    citation = """@inproceedings{swa,
      title = {Averaging Weights Leads to Wider Optima and Better Generalization},
      author = {Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and Wilson, Andrew
        Gordon},
      booktitle = {Conference on Uncertainty in Artificial Intelligence (UAI)},
      year = {2018}, eprint = {1803.05407}, archiveprefix = {arXiv}
    }"""
    addable = True
    start_at: Share = 0.75
    cycle: FromOne = 10
    rounds: Count | None = None

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.clone(), "n": x.new_zeros(())}

    def settle(self, x: Tensor, s: Aggregation) -> None:
        if self.rounds is None:
            raise SettingError("swa starts after a share of all rounds, so it needs their number: set rounds")
        since = s.round - int(self.start_at * self.rounds)
        due, n = (since > 0) & (since % self.cycle == 0), s.state["n"]
        s.state["mean"] = torch.where(due, (n * s.state["mean"] + x) / (n + 1), s.state["mean"])
        s.state["n"] = n + due

    def evaluated(self, x: Tensor, s: ServerTurn) -> Tensor:
        return torch.where(s.state["n"] > 0, s.state["mean"], x)
