"""Robust aggregation against references in numpy, its limits, and attacks that break the mean."""

import itertools

import numpy as np
import pytest
import torch

from steppe.core.algorithm import Algorithm
from steppe.core.client import begin, end, step
from steppe.core.errors import RunFailed, SteppeError
from steppe.core.scopes import ServerTurn
from steppe.core.server import Server, aggregate, broadcast
from steppe.core.stacking import joint_norms, scale_rows, stack
from steppe.core.task import Task
from steppe.engine.quadratics import Quadratic
from steppe.parts.control_variates import ControlVariates
from steppe.parts.norm_bound import NormBound
from steppe.parts.robust import Krum, Median, TrimmedMean, trimmed
from steppe.parts.sgd import SGD
from steppe.registry import parse_addition
from tests.conformance.problem import algorithm
from tests.trust import attacks


def rows(n, p=7, seed=0):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_median_is_numpys(n):
    found = Median().reduce({"update": rows(n)}, None)["update"]
    np.testing.assert_allclose(found.numpy(), np.median(rows(n).numpy(), axis=0), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("n", "cut", "k"), [(10, 0.1, 1), (10, 0.3, 3), (5, 0.1, 1), (5, 0.45, 2), (2, 0.4, 0), (7, 0, 0)]
)
def test_trimmed_mean_drops_k_on_either_side(n, cut, k):
    ordered = np.sort(rows(n).numpy(), axis=0)
    np.testing.assert_allclose(trimmed(rows(n), cut).numpy(), ordered[k : n - k].mean(0), rtol=0, atol=1e-15)


def test_nothing_cut_is_the_mean_to_the_bit():
    assert torch.equal(trimmed(rows(6), 0.0), rows(6).mean(0))


def krum_by_the_book(v, bad, keep):
    """Blanchard et al., section 4, one reply after the other."""
    scores = []
    for i in range(len(v)):
        apart = sorted(float(((v[i] - v[j]) ** 2).sum()) for j in range(len(v)) if j != i)
        scores.append(sum(apart[: len(v) - bad - 2]))
    return np.mean([v[i] for i in np.argsort(scores)[:keep]], axis=0)


@pytest.mark.parametrize(("n", "bad", "keep"), [(5, 1, 1), (9, 2, 1), (9, 2, 4), (12, 4, 3), (3, 0, 1)])
def test_krum_by_the_book(n, bad, keep):
    for seed in range(5):
        found = Krum(bad, keep).reduce({"update": rows(n, seed=seed)}, None)["update"]
        np.testing.assert_allclose(found.numpy(), krum_by_the_book(rows(n, seed=seed).numpy(), bad, keep), atol=1e-14)


def test_krum_looks_at_every_upload_whatever_its_size():
    """A decent update with a wild second upload, a million times smaller than the update, is not chosen."""
    uploads = {"update": rows(7), "part.c": 1e-6 * rows(7, 3, seed=1)}
    best = krum_by_the_book(uploads["update"].numpy(), 1, 1)
    liar = int(np.argmin(np.abs(uploads["update"].numpy() - best).sum(1)))
    assert np.allclose(Krum(1).reduce({"update": rows(7)}, None)["update"].numpy(), uploads["update"][liar].numpy())
    uploads["part.c"][liar] = 1e-3
    chosen = Krum(1).reduce(uploads, None)
    assert not torch.equal(chosen["update"], uploads["update"][liar])
    assert float(chosen["part.c"].abs().max()) < 1e-4


def test_krum_needs_enough_replies():
    one = torch.ones(())
    with pytest.raises(RunFailed, match=r"round 2: krum.* needs 5 replies or more, but this round has 4"):
        Krum(1).reduce({"update": rows(4)}, ServerTurn(None, one, one, one, {}, 4))


def test_norm_bound_scales_all_uploads_of_a_client_together():
    uploads = {"update": 3 * rows(6), "part.c": rows(6, 4, seed=1), "part.scalar": rows(6, 1, seed=2)[:, 0]}
    uploads["update"][0] *= 1e-3
    uploads["part.c"][0], uploads["part.scalar"][0] = 0.001, 0.0
    uploads["update"][1], uploads["part.c"][1], uploads["part.scalar"][1] = 0.0, 0.0, 0.0
    found = scale_rows(uploads, NormBound(2.0).screen(joint_norms(uploads)))
    for i in range(6):
        before, after = (np.concatenate([v[i].reshape(-1).numpy() for v in u.values()]) for u in (uploads, found))
        np.testing.assert_allclose(after, before * min(1, 2 / max(np.linalg.norm(before), 1e-30)), rtol=1e-14)
    assert all(torch.equal(found[k][:2], uploads[k][:2]) for k in uploads)  # short ones to the bit


# --- a small federation under attack: quadratics with one optimum, so that every honest client pulls the same way


def federation(parts, attack, who=(2,), n=7, rounds=20, update=True):
    """‖x − optimum‖ after some rounds in which these clients send what the attack makes of their uploads."""
    g = torch.Generator().manual_seed(0)
    d, optimum = 4, torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    x0, one = torch.zeros(d, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    task = Task(Quadratic(x0, [d]), loss=lambda outputs, _: outputs, head="head")
    batches = []
    for _ in range(n):
        curvature = torch.diag(1 + torch.rand(d, generator=g, dtype=torch.float64))
        near = optimum + 0.01 * torch.randn(d, generator=g, dtype=torch.float64)
        batches.append({"x": torch.cat([curvature, near[:, None]], 1)[None], "y": torch.zeros(1)})
    alg = Algorithm((*parts, SGD()))
    server = Server(x0, alg.server_state(x0), {})
    states = [alg.client_state(x0)] * n
    for t in range(rounds):
        server, sent = broadcast(alg, task.layout, server, 0.1 * one, t * one, stack(states), n)
        replies = []
        with torch.no_grad():
            for state, batch in zip(states, batches, strict=True):
                live = begin(alg, task, sent, state, 3 * one)
                for k in range(3):
                    live = step(alg, task, sent, live, (batch,), k * one, 3 * one)
                replies.append(end(alg, task, sent, live, 3 * one))
        states = [r.state for r in replies]
        together = attacks.poisoned(stack(replies), who, attack, update) if attack else stack(replies)
        server = aggregate(alg, task.layout, server, sent, together, torch.ones(n).double(), n)
    return float((server.x - optimum).norm())


ROBUST = [(Median(),), (TrimmedMean(0.2),), (Krum(1),), (Krum(1, 3),)]
kinds = pytest.mark.parametrize("attack", [attacks.sign_flip, attacks.huge], ids=["sign flip", "huge"])


@kinds
def test_the_mean_breaks(attack):
    assert federation((), None) < 0.05
    assert federation((), attack) > 2


@kinds
@pytest.mark.parametrize("parts", ROBUST, ids=["median", "trimmed mean", "krum", "multi-krum"])
def test_robust_aggregation_survives(parts, attack):
    assert federation(parts, attack) < 0.05


@kinds
@pytest.mark.parametrize("parts", ROBUST, ids=["median", "trimmed mean", "krum", "multi-krum"])
def test_control_variates_cannot_be_poisoned_behind_a_decent_update(parts, attack):
    """A coordinate's median still leans towards a one-sided attack, and variates add that up: bounded, not small."""
    bound = 0.6 if attack is attacks.huge and "Krum" not in repr(parts) else 0.05
    assert federation((ControlVariates(), *parts), attack) < bound
    assert federation((ControlVariates(), *parts), attack, update=False) < bound
    alone = federation((ControlVariates(),), attack, update=False)
    assert not alone < (1e6 if attack is attacks.huge else 0.3)


def test_a_norm_bound_limits_the_damage_and_goes_with_the_median():
    assert federation((NormBound(0.5),), attacks.huge) < 1 < 1e20 < federation((), attacks.huge)
    assert federation((NormBound(0.5), Median()), attacks.sign_flip) < 0.05


# --- what makes no sense together


@pytest.mark.parametrize(
    "pair", list(itertools.combinations(["median", "krum", "trimmed_mean", "dp"], 2)), ids="+".join
)
def test_one_reduction_at_a_time(pair):
    with pytest.raises(SteppeError, match="both define how the clients' uploads are combined: keep one of them"):
        algorithm("fedavg", add=tuple(map(parse_addition, pair)))


@pytest.mark.parametrize("text", ["median", "krum", "trimmed_mean", "dp", "norm_bound:limit=1"])
def test_where_nothing_travels_or_states_are_read(text):
    with pytest.raises(SteppeError, match="upload nothing"):
        algorithm("local", add=(parse_addition(text),))
    with pytest.raises(SteppeError, match="variant=lagged"):
        algorithm("fedscar", add=(parse_addition(text),))
    with pytest.raises(SteppeError, match="variant=lagged"):
        algorithm("fedscar", {"variant": "lagged", "scale": "var"}, add=(parse_addition(text),))
    algorithm("fedscar", {"variant": "lagged"}, add=(parse_addition(text),))


@pytest.mark.parametrize(("text", "told"), [("trimmed_mean:cut=0.6", "cut .* is 0.6"), ("krum:bad=-1", "bad .* is -1"),
                                            ("norm_bound:limit=0", "limit .* is 0"), ("dp:noise=-1", "noise .* is -1"),
                                            ("norm_bound", "needs a value for limit"),
                                            ("dp:clip=inf", "no noise is sufficient")])  # fmt: skip
def test_settings_out_of_range(text, told):
    with pytest.raises(SteppeError, match=told):
        parse_addition(text)
