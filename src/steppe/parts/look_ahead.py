"""Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv:2002.07948), first order: descend with the gradient one step ahead.

    w̃ = w − γ (g(w; b₁) + λ w)          b₁, b₂: two batches per step; λ the optimiser's weight decay
    direction = g(w̃; b₂)

It keeps nothing and sends nothing. `FixedRate` then gives the outer step a constant rate.

`inner_lr`   γ, the rate of the inner step; the round's learning rate if not set.
`shared`     False (clean): the inner move has weight decay but no momentum and no clipping; the outer one is the
             local optimiser's. True (official): as in the FedSoL code, one optimiser object makes both moves, so that
             its momentum contains the inner gradients; this part then goes around the optimiser.

Deviations: a round has E ⌈B/E⌉ steps, B batches in an epoch of the client, so about two passes over its data
whatever the number of epochs E, as in the FedSoL code. First order only; the paper also has the Hessian term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount, Positive
from steppe.core.scopes import LocalStep, Oracle


@dataclass(frozen=True)
class LookAhead(Part):
    name = "look_ahead"
    citation = """@inproceedings{perfedavg,
      title = {Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
      author = {Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
      booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
      year = {2020}, eprint = {2002.07948}, archiveprefix = {arXiv}
    }"""
    asks = 2
    batches_per_step = 2
    inner_lr: Amount | None = None
    shared: bool = False

    @property
    def around_optimiser(self) -> bool:  # type: ignore[override]
        return self.shared

    def objection(self, others: tuple[Part, ...]) -> str:
        reader = next((p.name for p in others if p.needs_plain_steps), None) if self.shared else None
        return "" if reader is None else (
            f"'{reader}' derives gradients from a client's displacement, but the official '{self.name}' puts two "
            "gradients per step into the optimiser's momentum: use variant=clean"
        )  # fmt: skip

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        move = grad(w, on=0)
        if not self.shared:
            move = move + sum(s.decay.values()) * w
        return grad(w - (s.lr if self.inner_lr is None else self.inner_lr) * move, on=1)

    def local_steps(self, epochs: int, batches: int) -> int:
        return epochs * ceil(batches / epochs)


@dataclass(frozen=True)
class FixedRate(Part):
    """A fixed local learning rate instead of the round's, around the optimiser (Fallah et al., NeurIPS 2020).

        direction = (β/η) g(w)              so that w ← w − β g(w), whatever the round's rate η

    `lr`   β, the rate of every step.

    Deviations: rounding alone, because the step is η · (β/η) · g(w).
    """

    name = "fixed_rate"
    citation = LookAhead.citation
    around_optimiser = True
    lr: Positive

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w) * self.stride(s)

    def stride(self, s: LocalStep) -> Tensor:
        return self.lr / s.lr
