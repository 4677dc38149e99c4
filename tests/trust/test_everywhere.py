"""Every part of trust with every algorithm: which are refused, executors, and resuming to the bit."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from steppe.algorithms import CATALOGUE
from steppe.core.algorithm import Algorithm
from steppe.registry import parse_addition
from steppe.runs.client_store import MemoryStore
from tests.conformance.problem import CLIENTS, algorithm, run, task

PARTS = ["median", "trimmed_mean:cut=0.3", "krum:bad=1,keep=2", "norm_bound:limit=0.02",
         f"dp:clip=0.1,noise=0.01,per_round=5,clients={CLIENTS}"]  # fmt: skip
SCHEDULE = [[0, 1, 2, 4, 5], [5, 2, 1, 4, 3]]  # enough for Krum; most come back


def with_part(name: str, text: str) -> Algorithm:
    settings = {"variant": "lagged"} if name == "fedscar" else {}
    return algorithm(name, settings, add=(parse_addition(text),))


def everything(done):
    server, store, _ = done
    return tree_leaves((server.x, server.state, [store.rows[i] for i in store.list_known()]))


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in ("local", "fednova")])
def test_goes_with(name):
    plain = run(with_part(name, "norm_bound:limit=inf"), rounds=1, schedule=SCHEDULE)
    for text in PARTS:
        alg = with_part(name, text)
        server, store, done = run(alg, rounds=1, schedule=SCHEDULE)
        assert all(v.isfinite().all() for v in everything((server, store, done))), text
        assert not torch.allclose(server.x, plain[0].x, rtol=0, atol=1e-9), text  # it did something
    # Privacy alone draws random numbers, so it alone could go on differently from a checkpoint.
    other = MemoryStore(lambda: alg.client_state(task().x0))
    tensors = store.commit()
    other.restore({k: v.clone() for k, v in tensors.items()})
    again, whole = (run(alg, rounds=1, schedule=SCHEDULE, state=(server, s, done)) for s in (other, store))
    assert all(torch.equal(p, q) for p, q in zip(everything(again), everything(whole), strict=True))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsmoo", "fednova", "fedcm", "fedbabu", "fedsol"])
@pytest.mark.parametrize("text", PARTS)
def test_executors_agree(name, text):
    if name == "fednova" and text.startswith(("norm_bound", "dp")):
        pytest.skip("refused: tests/parts/test_soundness.py")
    alg = with_part(name, text)
    one = everything(run(alg, rounds=2, schedule=SCHEDULE))
    for executor in ("batched", "captured"):
        options = {"compiled": False} if executor == "captured" else {}
        for p, q in zip(everything(run(alg, 2, executor, SCHEDULE, **options)), one, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-9 * max(1.0, float(q.abs().max())))


def test_an_infinite_bound_changes_nothing():
    bounded, plain = run(with_part("scaffold", "norm_bound:limit=inf")), run(algorithm("scaffold"))
    assert all(torch.equal(p, q) for p, q in zip(everything(bounded), everything(plain), strict=True))
