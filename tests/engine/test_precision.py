"""Which precision an algorithm gets; which passes take bf16, and that it still learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.config import resolve
from steppe.core.task import Task
from steppe.engine.build import build_algorithm
from steppe.engine.devices import set_precision
from steppe.executors.client_conv_kernels import _choose_precision
from tests.scene import USUAL, blobs

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


class OnGPU(Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


@pytest.fixture
def switches() -> Iterator[None]:
    """PyTorch's own, as they were afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


FIXED = {"radius": "fixed"}  # normalises a gradient that may be mere rounding


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(
    ("algorithm", "settings", "options", "tf32", "bf16"),
    [
        ("fedavg", {}, {}, True, False),
        ("fedavg", {}, {"dtype": "float64"}, False, False),
        ("fedavg", {}, {"precision": "fp32"}, False, False),
        ("fedavg", {}, {"precision": "bf16"}, True, True),
        ("fedsol", {}, {}, True, False),
        ("fedsol", FIXED, {}, False, False),
        ("fedsol", FIXED, {"precision": "tf32"}, True, False),
        ("fedsol", FIXED, {"precision": "bf16"}, False, True),
    ],
)
def test_what_a_gpu_is_allowed(algorithm, settings, options, tf32, bf16):
    config = resolve({"algorithm": algorithm, "settings": settings, **options})
    task = Task(Watched())
    task.x0 = task.x0.as_subclass(OnGPU)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not tf32
    notes = set_precision(config, build_algorithm(config), task)
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert _choose_precision(torch.zeros(1)) == ("tf32" if tf32 else "tf32x3")  # our own kernels obey the same switch
    assert task.fast == (torch.bfloat16 if bf16 else None)
    assert len(notes) == (settings is FIXED and options == {"precision": "tf32"})
