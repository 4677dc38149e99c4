"""Several hundred compositions: they run, stay finite, and go on from a checkpoint to the same bits."""

import itertools

import pytest
import torch
from torch.utils._pytree import tree_leaves

from steppe.algorithms import CATALOGUE
from steppe.core.algorithm import Algorithm
from steppe.core.errors import CompositionError, SteppeError
from steppe.parts.consistent_sam import ConsistentSAM
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import parse_addition
from steppe.runs.client_store import MemoryStore
from tests.conformance.problem import algorithm, run, task

SHORT = [[1, 4], [2, 1]]  # clients with few steps; one comes back
ADDED = ["man", "proximal:mu=0.01", "ema", "latest_mean", "relaxed_start", "sam:rho=0.01", "distillation",
         "control_variates", "dynamic_regularisation:alpha=0.1", "client_momentum", "server_momentum",
         "swa:rounds=2,start_at=0"]  # fmt: skip
PAIRS = list(itertools.combinations(ADDED[:7], 2))


def compositions():
    for name in CATALOGUE:
        yield from ((name, [one]) for one in ADDED)
    for name in ("fedavg", "fedsam", "fedsmoo", "fedsol", "fedgmt", "fedscar", "fedlesam_d"):
        yield from ((name, list(pair)) for pair in PAIRS)


def built(name, add):
    """The algorithm, or None where the composition is refused (which must be at construction)."""
    try:
        return algorithm(name, add=tuple(parse_addition(text) for text in add))
    except SteppeError as refusal:
        if len(str(refusal)) < 40:  # a reason, not a word
            raise
        return None


@pytest.mark.parametrize("name", CATALOGUE)
def test_compositions_of(name):
    ran = 0
    for base, add in compositions():
        if base != name or (alg := built(base, add)) is None:
            continue
        ran += 1
        server, store, _ = run(alg, rounds=2, schedule=SHORT)
        for leaf in tree_leaves((server.x, server.state, list(store.rows.values()))):
            assert leaf.isfinite().all(), (base, add)
        again = resumed(alg)
        assert torch.equal(again.x, server.x), (base, add)
        assert all(torch.equal(p, q) for p, q in zip(tree_leaves(again.state), tree_leaves(server.state), strict=True))
    assert ran >= 6, f"only {ran} compositions of {name} were allowed"


def resumed(alg):
    """One round, everything through what a checkpoint holds, and the second round."""
    server, store, done = run(alg, rounds=1, schedule=SHORT)
    other = MemoryStore(lambda: alg.client_state(task().x0))
    tensors = store.commit()
    other.restore({k: v.clone() for k, v in tensors.items()})
    return run(alg, rounds=1, schedule=SHORT, state=(server, other, done))[0]


def test_several_hundred_are_allowed():
    assert sum(built(name, add) is not None for name, add in compositions()) >= 300


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(CompositionError, match="two parts are named 'sam'"):
        Algorithm((SAM(0.1), SAM(0.2), SGD()))
    assert built("fedsam", ["sam:rho=0.01"]) is None


def test_a_dual_inside_a_part_that_asks_twice_is_refused():
    with pytest.raises(CompositionError, match="more than once per step"):
        Algorithm((ConsistentSAM(0.1), SAM(0.1), SGD()))
    Algorithm((SAM(0.1), ConsistentSAM(0.1), SGD()))  # the other way round is fine


def test_order_is_meaning():
    from steppe.parts.control_variates import ControlVariates

    inside = Algorithm((SAM(0.05), ControlVariates(), SGD()))  # the ascent sees the plain gradient
    outside = Algorithm((ControlVariates(), SAM(0.05), SGD()))  # the ascent sees the corrected one
    assert not torch.allclose(run(inside)[0].x, run(outside)[0].x, atol=1e-9)
