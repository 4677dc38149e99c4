"""Clients' models as they are at the end of a round, for measures. What is uploaded may be something else.

`UploadModel` runs in every executor as any part does, changes nothing, and is left out of the costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.part import Part
from steppe.core.scopes import ClientRound


@dataclass(frozen=True)
class UploadModel(Part):
    """Upload the client's model beside its update."""

    name = "client_model"

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.up["w"] = s.w
        return delta


def uploading_models(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, whose replies also hold the clients' models under `up["client_model"]["w"]`."""
    if any(isinstance(p, UploadModel) for p in algorithm.parts):
        return algorithm
    return algorithm.plus(UploadModel(), outermost=True)
