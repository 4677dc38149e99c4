"""precision = bf16: which passes take it, and that it still learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import steppe
from tests.simulate.scene import USUAL, blobs

SEEN: list[torch.dtype] = []


class Watched(nn.Module):
    """Says in which precision it was run while it learned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            SEEN.append(x.dtype)
        return self.head(torch.relu(self.body(x)))


def trained(algorithm: str, precision: str, **settings: object) -> steppe.Result:
    torch.manual_seed(0)
    SEEN.clear()
    given = {**USUAL, "algorithm": algorithm, "rounds": 8, "precision": precision, "executor": "sequential"}
    return steppe.run(model=Watched(), data=blobs(), **given, **settings)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsam", "scaffold"])
def test_bf16_is_taken_and_learns_as_well(algorithm):
    exact = trained(algorithm, "fp32")
    assert torch.bfloat16 not in SEEN
    rough = trained(algorithm, "bf16")
    assert torch.bfloat16 in SEEN
    assert rough.x.dtype == torch.float32  # parameters keep their precision
    apart, moved = torch.dist(rough.x, exact.x), torch.dist(exact.x, exact.experiment.task.x0)
    assert 0 < apart < 0.05 * moved
    assert abs(rough.accuracy - exact.accuracy) <= 0.1


def test_a_proximal_gradient_is_spared():
    """FedSoL's first pass, whose gradient becomes a direction, is exact; its second is not."""
    trained("fedsol", "bf16", settings={"rho": 0.5})
    assert {torch.bfloat16, torch.float32} <= set(SEEN)
