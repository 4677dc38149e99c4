"""On a GPU, captured as graphs, every entry computes what the CPU computes one client after the other."""

import pytest
import torch
from torch.utils._pytree import tree_map

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
    there = run(made(entry), executor="captured", compiled=False, say=told.append, device="cuda", schedule=LONELY)
    same(here(there), everything(run(made(entry), schedule=LONELY)), 1e-8)
    assert not told, told  # a step that was not captured would be equal as well


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsam", "fedsol", "fedsmoo", "fedgmt"])
def test_compiled_and_captured_on_a_gpu_equals_the_cpu(name):
    told = []
    there = run(algorithm(name), rounds=2, executor="captured", say=told.append, device="cuda")
    same(here(there), everything(run(algorithm(name), rounds=2)), 1e-8)
    assert not told, told  # a fallback would be equal as well
