"""Server optimisers: the clients' mean update as a pseudo-gradient.

FedAvgM    Hsu et al., 2019, arXiv:1909.06335:      v ← β v + Δ̄,   x ← x + η_g v
FedAdam, FedYogi, FedAdagrad    Reddi et al., ICLR 2021, arXiv:2003.00295:

    m ← β₁ m + (1−β₁) Δ̄
    adam:     v ← β₂ v + (1−β₂) Δ̄²
    yogi:     v ← v − (1−β₂) Δ̄² sign(v − Δ̄²)
    adagrad:  v ← v + Δ̄²
    x ← x + η_g m / (√v + τ)             no bias correction

Everything stays on the server. `paper` starts v at τ² with τ = 1e-3; FL-Simulator (`official`) at 0 with
τ = 1e-2, where τ outweighs √v on real networks, so that it is in effect momentum with learning rate η_g/τ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part, Scope, require


@dataclass(frozen=True)
class ServerMomentum(Part):
    name = "server_momentum"
    outer = True
    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(server_lr=(self.lr, 0, float("inf")), server_momentum=(self.momentum, 0, 1))

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"v": torch.zeros_like(x)} if self.momentum else {}

    def server(self, delta: Tensor, s: Scope) -> Tensor:
        if self.momentum:
            delta = s.state["v"] = self.momentum * s.state["v"] + delta
        return self.lr * delta


@dataclass(frozen=True)
class ServerAdaptive(Part):
    name = "server_adaptive"
    outer = True
    kind: Literal["adam", "yogi", "adagrad"]
    lr: float
    beta1: float
    beta2: float
    tau: float
    v0: float = 0.0

    def __post_init__(self) -> None:
        require(server_lr=(self.lr, 0, float("inf")), beta1=(self.beta1, 0, 1), beta2=(self.beta2, 0, 1))
        require(tau=(self.tau, 1e-12, float("inf")))

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, self.v0)}

    def server(self, delta: Tensor, s: Scope) -> Tensor:
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
