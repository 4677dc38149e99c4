"""Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv:2002.07948), first order: descend as seen one step ahead.

    w̃ = w − γ g(w; b₁),      w ← w − β g(w̃; b₂)

Each step takes two batches. γ is the round's learning rate unless set; β stays as it is while the round's rate
decays. Keeps nothing, sends nothing.

`shared`   False (clean): the inner move has weight decay but no momentum and no clipping; the outer one is the
local optimiser's. True (official): as in the FedSoL code, one optimiser object makes both moves, so that its
momentum contains the inner gradients; this part then goes around the optimiser.

Deviations: a round has E·⌈B/E⌉ steps, B batches in an epoch of the client, so about two passes over its data
whatever the number of epochs E, as in that code. First order only; the paper also has the Hessian term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch import Tensor

from steppe.core.part import Oracle, Part, Scope, require


@dataclass(frozen=True)
class LookAhead(Part):
    name = "look_ahead"
    asks = 2
    batches_per_step = 2
    inner_lr: float | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        require(inner_lr=(0.0 if self.inner_lr is None else self.inner_lr, 0, float("inf")))

    @property
    def around_optimiser(self) -> bool:  # type: ignore[override]
        return self.shared

    @property
    def repeats_inner(self) -> bool:  # type: ignore[override]
        return self.shared

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        move = grad(w, on=0)
        if not self.shared:
            move = move + sum(s.decay.values()) * w
        return grad(w - (s.lr if self.inner_lr is None else self.inner_lr) * move, on=1)

    def local_steps(self, epochs: int, batches: int) -> int:
        return epochs * ceil(batches / epochs)


@dataclass(frozen=True)
class FixedRate(Part):
    """The local learning rate, whatever the round's: goes around the optimiser."""

    name = "fixed_rate"
    around_optimiser = True
    lr: float

    def __post_init__(self) -> None:
        require(lr=(self.lr, 0, float("inf")))

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        return grad(w) * self.stride(s)

    def stride(self, s: Scope) -> Tensor:
        return self.lr / s.lr
