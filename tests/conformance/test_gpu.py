"""On a GPU, captured as graphs, every entry computes what the CPU computes one client after the other."""

import pytest
import torch
from torch.utils._pytree import tree_map

import steppe
from tests.conformance.problem import LONELY, algorithm, label, run
from tests.conformance.test_catalogue import ENTRIES, everything, made, same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def here(state):
    return tree_map(lambda v: v.cpu(), everything(state))


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_captured_on_a_gpu_equals_the_cpu(entry):
    """float64, to 1e-8: only the order of sums differs."""
    told = []
    there = run(made(entry), executor="captured", compiled=False, notes=told, device="cuda", schedule=LONELY)
    same(here(there), everything(run(made(entry), schedule=LONELY)), 1e-8)
    assert not told, told  # a step that was not captured would be equal as well


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsam", "fedsol", "fedsmoo", "fedgmt"])
def test_compiled_and_captured_on_a_gpu_equals_the_cpu(name):
    told = []
    there = run(algorithm(name), rounds=2, executor="captured", notes=told, device="cuda")
    same(here(there), everything(run(algorithm(name), rounds=2)), 1e-8)
    assert not told, told  # a fallback would be equal as well


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 0.01), ("tf32", 0.2), ("bf16", 0.3)])
def test_a_run_with_our_own_kernels_goes_where_the_cpu_goes(precision, tolerance):
    """In float64 convolutions are PyTorch's. Here they are ours, compiled and captured; relative to how far it went.

    One max-pool that chooses another pixel changes the gradient of so small a batch by about a per cent, and errors
    grow with the root of their number: hence the tolerances, and a reference in float64.
    """
    g = torch.Generator().manual_seed(0)
    images, labels = torch.randint(0, 256, (120, 3, 32, 32), dtype=torch.uint8, generator=g), torch.arange(120) % 4
    data = steppe.Data("noise", images, labels, images[:8], labels[:8], classes=4)
    options = {"clients": 6, "per_round": 3, "rounds": 2, "batch": 8, "epochs": 1, "augmentation": "svhn"}
    there = steppe.run("fedsam", "cnn", data, device="cuda", precision=precision, **options)
    exact = steppe.run(
        "fedsam", "cnn", data, device="cpu", executor="sequential", workers=0, dtype="float64", **options
    )
    moved = torch.dist(exact.x, exact.experiment.task.x0)
    assert torch.dist(there.x.cpu().double(), exact.x) < tolerance * moved
    assert there.notes == []  # compiled and captured, not fallen back
