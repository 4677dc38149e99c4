"""The clients' models at the end of a round, for measures. An algorithm itself may upload something else.

`UploadModel` runs in every executor like any other part. It does not change the training, and costs do not include it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.part import Part
from steppe.core.scopes import ClientRound


@dataclass(frozen=True)
class UploadModel(Part):
    """A part that uploads the client's model in addition to its update."""

    name = "client_model"

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.up["w"] = s.w
        return delta


def upload_models(algorithm: Algorithm) -> Algorithm:
    """Return the same algorithm with replies that also hold the clients' models, in `up["client_model"]["w"]`."""
    if any(isinstance(p, UploadModel) for p in algorithm.parts):
        return algorithm
    return algorithm.plus(UploadModel(), outermost=True)
