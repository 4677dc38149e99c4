"""What every entry of the catalogue, and every variant of it, must pass by existing."""

import dataclasses
import json
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_leaves_with_path

from steppe.core.client import Meter, begin, by_autograd, end, step
from steppe.core.cost import cost
from steppe.core.scopes import ClientRound, LocalStep
from steppe.core.server import Server, broadcast
from steppe.core.stacking import stack
from steppe.runs import checkpoint
from steppe.runs.client_store import DiskStore, MemoryStore
from tests.conformance.problem import CLIENTS, LONELY, LR, algorithm, entries, federation, label, run, task

ENTRIES = [e for e in entries() if e[1].get("first_step") != "official"]  # along rounding noise, by design
every = pytest.mark.parametrize("entry", ENTRIES, ids=label)
SCHEDULE = [*LONELY, [3, 1, 0]]  # whoever was there in the first two rounds comes back in the last two


@pytest.fixture(autouse=True)
def _variants_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def made(entry, **options):
    return algorithm(*entry, **options)


def same(a, b, tolerance):
    left, right = dict(tree_leaves_with_path(a)), dict(tree_leaves_with_path(b))
    assert left.keys() == right.keys()
    for path, p in left.items():
        q = right[path]
        assert p.shape == q.shape
        scale = max(1.0, float(q.abs().max())) if q.numel() else 1.0
        assert torch.allclose(p, q, rtol=0, atol=tolerance * scale), float((p - q).abs().max())


def everything(state):
    server, store, _ = state
    return server.x, server.state, {i: store.rows[i] for i in store.list_known()}


def sequential(entry, rounds=3):
    """What every other way of running the entry is compared with."""
    return _sequential(label(entry))[rounds]


@cache
def _sequential(name):
    """The state after two, three and four rounds; a round puts new tensors into the store and leaves the old alone."""
    entry = next(e for e in ENTRIES if label(e) == name)
    state, after = None, {}
    for t, rounds in ((2, 2), (3, 1), (4, 1)):
        state = run(made(entry), rounds, schedule=SCHEDULE, state=state)
        after[t] = everything(state)
    return after


@every
@pytest.mark.parametrize("chunk", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_batched_equals_sequential(entry, chunk):
    """With unequal steps, short batches, clients that come back, and one alone; three and one, or all at once."""
    one = sequential(entry)
    same(everything(run(made(entry), executor="batched", chunk=chunk, schedule=SCHEDULE)), one, 1e-9)
    assert all(v.isfinite().all() for v in tree_leaves(one))


@every
def test_captured_equals_sequential(entry):
    """The static places, the lanes that change their clients, masked steps, a client alone; not compiled."""
    captured = run(made(entry), executor="captured", compiled=False, schedule=SCHEDULE)
    same(everything(captured), sequential(entry), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedsol", "fedsmoo"])
def test_compiled_equals_sequential(name):
    """The whole local step traced to plain operations and compiled."""
    told = []
    fast = run(algorithm(name), rounds=2, executor="captured", compiled=True, notes=told, schedule=[[0, 1, 3]])
    same(everything(fast), everything(run(algorithm(name), rounds=2, schedule=[[0, 1, 3]])), 1e-9)
    assert not told, told  # a fallback would be equal as well


@every
def test_client_order_changes_nothing(entry):
    backward = [ids[::-1] for ids in SCHEDULE]
    same(everything(run(made(entry), schedule=backward)), sequential(entry), 1e-9)


@every
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_resume_is_bit_identical(entry, kind, tmp_path):
    alg, x0 = made(entry), task().x0
    whole_x, whole_state, whole_rows = sequential(entry, rounds=4)

    def store():
        fresh = lambda: alg.client_state(x0)  # noqa: E731
        return MemoryStore(fresh) if kind == "memory" else DiskStore(fresh, tmp_path / "clients.bin")

    first, (x, state, rows) = store(), sequential(entry, rounds=2)
    first.scatter(list(rows), list(rows.values()))
    checkpoint.save(tmp_path / "checkpoints", 2, Server(x, state, {}), first, {})
    second = store()
    saved, complaints = checkpoint.load(tmp_path / "checkpoints", second)
    assert not complaints
    if kind == "memory":  # loaded as they were saved, so that the rounds that follow are those of the whole run
        loaded = saved.server.x, saved.server.state, dict(zip(rows, second.gather(list(rows)), strict=True))
        return same(loaded, (x, state, rows), 0.0)
    server, second, _ = run(alg, rounds=2, schedule=SCHEDULE, state=(saved.server, second, saved.round))
    assert torch.equal(server.x, whole_x)
    assert second.list_known() == sorted(whole_rows)
    for mine, theirs in zip(
        second.gather(second.list_known()), (whole_rows[i] for i in second.list_known()), strict=True
    ):
        assert all(torch.equal(p, q) for p, q in zip(tree_leaves(mine), tree_leaves(theirs), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(tree_leaves(server.state), tree_leaves(whole_state), strict=True))


def traced(alg, meter=None):
    """One step of one client on real tensors."""
    tsk, fed, x0 = task(), federation(), task().x0
    state = alg.client_state(x0)
    rows = stack([state])
    server = Server(x0, alg.server_state(x0), {})
    server, sent = broadcast(alg, tsk.layout, server, x0.new_tensor(LR), x0.new_tensor(0.0), rows, CLIENTS)
    one = x0.new_tensor(1.0)
    batches = fed.plan([0], 0, alg.local_steps, alg.batches_per_step)
    several = tuple(fed.batch(batches.index[0, j], batches.keys[0, j]) for j in range(alg.batches_per_step))
    with torch.no_grad():
        live = begin(alg, tsk, sent, state, one)
        live = step(alg, tsk, sent, live, several, 0 * one, one, by_autograd, meter)
        return end(alg, tsk, sent, live, one)


@every
def test_costs_are_what_really_happens(entry):
    """The meta trace against a real step: the same gradients, forwards and bytes of state."""
    alg, meter = made(entry), Meter()
    reply = traced(alg, meter)
    example = {"x": torch.zeros(5, 1, 8, 8, dtype=torch.float64), "y": torch.zeros(5, dtype=torch.int64)}
    found = cost(alg, task(), example)
    assert (found.gradients, found.forwards) == (meter.gradients, meter.forwards)
    kept = sum(v.numel() * v.element_size() for v in tree_leaves(reply.state))
    up = sum(v.numel() * v.element_size() for v in tree_leaves((reply.update, reply.up)))
    assert found.bytes_kept == kept
    if not alg.frozen and entry[0] != "local":
        assert found.bytes_up == up


@every
def test_the_oracle_is_asked_as_often_as_declared(entry):
    """`asks` decides which compositions are refused, so it must be true."""
    alg = made(entry)
    for part in alg.parts:
        calls = 0

        def oracle(w, **_):
            nonlocal calls
            calls += 1
            return torch.ones_like(w)

        if not part.has("gradient"):
            continue
        x0 = task().x0
        part.gradient(oracle, x0.clone(), scope_for(part, x0))
        assert 1 <= calls <= part.asks, f"{part.name} asks {calls} times and declares {part.asks}"


def scope_for(part, x0):
    server = part.server_state(x0)
    down, state = {k: server[k] for k in part.down}, {**part.client_state(x0), **part.round_state(x0)}
    four = x0.new_tensor(4.0)
    part.receive(ClientRound(task().layout, x0, x0.new_tensor(LR), x0.new_tensor(1.0), state, down, x0, False, x0, four,
                             four))  # fmt: skip
    return LocalStep(task().layout, x0, x0.new_tensor(LR), x0.new_tensor(1.0), state, down, x0, x0, x0.new_tensor(1.0),
                     four, {}, {}, False, False, lambda term, w: torch.ones_like(w),
                     lambda term, w, features: torch.ones_like(w))  # fmt: skip


SNAPSHOT = Path(__file__).parent / "costs.json"


def test_cost_snapshot():
    """Costs on the FedAvg-CNN, so that a change of any cost is seen. Renew with: python -m tests.conformance.renew"""
    from tests.conformance.renew import measured

    assert measured() == json.loads(SNAPSHOT.read_text())


def test_variants_are_frozen_values():
    for entry in ENTRIES:
        for part in made(entry).parts:
            assert dataclasses.is_dataclass(part), part
            assert part.__dataclass_params__.frozen, part
