"""Server optimisers: the clients' mean update as a pseudo-gradient.

FedAvgM    Hsu et al., 2019, arXiv:1909.06335
FedAdam, FedYogi, FedAdagrad    Reddi et al., ICLR 2021, arXiv:2003.00295

Everything stays on the server; nothing more is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount, Positive, Share
from steppe.core.scopes import Aggregation


@dataclass(frozen=True)
class ServerMomentum(Part):
    """A learning rate and momentum on the server (Hsu et al., 2019).

        v ← β v + Δ̄                         v = 0 at first
        Δ̄ ← η_g v

    `lr`         η_g, the server's learning rate.
    `momentum`   β, the share of the old momentum; 0 keeps none.
    """

    name = "server_momentum"
    citation = """@misc{fedavgm,
      title = {Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification},
      author = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew},
      year = {2019}, eprint = {1909.06335}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    lr: Amount = 1.0
    momentum: Share = 0.0

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"v": torch.zeros_like(x)} if self.momentum else {}

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.momentum:
            delta = s.state["v"] = self.momentum * s.state["v"] + delta
        return self.lr * delta


@dataclass(frozen=True)
class ServerAdaptive(Part):
    """An adaptive rule on the server (Reddi et al., ICLR 2021).

        m ← β₁ m + (1−β₁) Δ̄                 for each coordinate; m = 0 at first
        v ← β₂ v + (1−β₂) Δ̄²                `adam`:
        v ← v − (1−β₂) Δ̄² sign(v − Δ̄²)      `yogi`:
        v ← v + Δ̄²                          `adagrad`:
        Δ̄ ← η_g m / (√v + τ)                no bias correction

    `kind`    adam, yogi or adagrad.
    `lr`      η_g, the server's learning rate.
    `beta1`   β₁, the share of the old first moment.
    `beta2`   β₂, the share of the old second moment.
    `tau`     τ, added to the root.
    `v0`      the value of v at first: τ² in the paper, 0 in FL-Simulator. There τ = 1e-2 outweighs √v on real networks,
              so that the rule is in effect momentum with learning rate η_g/τ.
    """

    name = "server_adaptive"
    citation = r"""@inproceedings{fedadam,
      title = {Adaptive Federated Optimization},
      author = {Reddi, Sashank and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and
        Kone{\v{c}}n{\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan},
      booktitle = {International Conference on Learning Representations (ICLR)},
      year = {2021}, eprint = {2003.00295}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    kind: Literal["adam", "yogi", "adagrad"]
    lr: Amount
    beta1: Share
    beta2: Share
    tau: Positive
    v0: Amount = 0.0

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, self.v0)}

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        m = s.state["m"] = self.beta1 * s.state["m"] + (1 - self.beta1) * delta
        v, square = s.state["v"], delta.square()
        if self.kind == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        elif self.kind == "yogi":
            v = v - (1 - self.beta2) * square * (v - square).sign()
        else:
            v = v + square
        s.state["v"] = v
        return self.lr * m / (v.sqrt() + self.tau)
