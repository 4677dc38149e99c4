"""Clients' models as they are at the end of a round, for measures. What is uploaded may be something else.

It takes part in every executor as any part does, changes nothing, and is left out of the costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.part import Part
from steppe.core.scopes import ClientRound


@dataclass(frozen=True)
class Witness(Part):
    name = "witness"

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.up["w"] = s.w
        return delta


def witnessed(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, whose replies also hold the clients' models under `up["witness"]["w"]`."""
    if any(isinstance(p, Witness) for p in algorithm.parts):
        return algorithm
    return algorithm.plus(Witness(), outermost=True)
