"""The learning-rate cycle of FedSWA (Liu et al., ICML 2025, arXiv:2507.20016): the rate falls during each round.

    direction = f ((1 − k/K) + (k/K) ρ) g(w)      k = 0, …, K−1 in every round; f is `first`, ρ is `end`

It scales the local optimiser's direction; K is the client's own number of steps, so the last step is still above ρ. It
keeps nothing and sends nothing. FedSWA adds a server learning rate above 1, and FedMoSWA also control variates with
their own momentum. The key `local_schedule` of a run is this part, too.

`end`     ρ, the rate that the round ends near, as a share of the run's.
`first`   f, the rate that the round begins with, as a share of the run's; 1 with `end` 1 changes nothing.
`shape`   linear: as above. cosine: (1 − cos(π k/K)) / 2 replaces k/K.

With local momentum the buffer is scaled, not what enters it, as under a schedule of PyTorch. Parts that divide a
displacement by the number of steps (SCAFFOLD, FedNova, FedCM) use Σ_k η_k/η instead of K, also with momentum.

Deviations: the authors' paper was not available; the rule and end = 0.1 come from two consistent accounts. The
released code has first = 2 and end = 0 hard-coded (`fedswa variant=official`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount, Positive
from steppe.core.scopes import LocalStep, Oracle


@dataclass(frozen=True)
class RateCycle(Part):
    name = "rate_cycle"
    citation = """@inproceedings{fedswa,
      title = {Improving Generalization in Federated Learning with Highly Heterogeneous Data via Momentum-Based
        Stochastic Controlled Weight Averaging},
      author = {Liu, Junkang and Liu, Yuanyuan and Shang, Fanhua and Liu, Hongying and Liu, Jin and Feng, Wei},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2025}, eprint = {2507.20016}, archiveprefix = {arXiv}
    }"""
    addable = True
    around_optimiser = True
    end: Amount = 0.1
    first: Positive = 1.0
    shape: Literal["linear", "cosine"] = "linear"

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w) * self.stride(s)

    def stride(self, s: LocalStep) -> Tensor:
        done = s.index / s.steps.clamp(min=1)
        if self.shape == "cosine":
            done = (1 - torch.cos(torch.pi * done)) / 2
        return self.first * (1 - done + done * self.end)
