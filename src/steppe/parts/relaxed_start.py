"""The relaxed start of FedInit (Sun et al., NeurIPS 2023, arXiv:2306.05706): start slightly beyond the global model.

    w⁰ = x + β (x − w_i)                w_i the client's own last model, x⁰ before its first round
    Δ̄ = Σ_{i∈S} p_i (w_i − w⁰)          `official`: each client measures from its own start
    Δ̄ = Σ_{i∈S} p_i (w_i − x)           `paper`: the new x is the mean of the w_i

The client keeps w_i; nothing more is sent unless another part needs the clients' starts on the server. Duals,
control variates and FedDyn's pull are measured from w⁰; FedProx still pulls towards x.

`beta`      β, how far beyond the global model a client starts.
`variant`   what is uploaded: official, as FL-Simulator does, or paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount
from steppe.core.scopes import ClientRound


@dataclass(frozen=True)
class RelaxedStart(Part):
    name = "relaxed_start"
    citation = """@inproceedings{relaxed_start,
      title = {Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed Initialization},
      author = {Sun, Yan and Shen, Li and Tao, Dacheng},
      booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
      year = {2023}, eprint = {2306.05706}, archiveprefix = {arXiv}
    }"""
    addable = True
    beta: Amount = 0.1
    variant: Literal["official", "paper"] = "official"

    @property
    def alters_update(self) -> bool:  # type: ignore[override]
        return self.variant == "official"

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": x.clone()}

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        return w + self._move(s)

    def _move(self, s: ClientRound) -> Tensor:
        return self.beta * (s.x - s.state["last"])

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        own = self._move(s)  # other parts may have moved the start as well
        s.state["last"] = s.w
        return delta - own if self.variant == "official" else delta
