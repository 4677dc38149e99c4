"""Distances, discrepancies and FedSoL's analyses, against the vectors of the specification and by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_problems import quadratic
from torch import nn
from torch.testing import assert_close

from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.engine.quadratics import Problem, trace
from steppe.evaluate.score import Score
from steppe.flatness import (
    Estimate,
    Loss,
    Sample,
    alignment,
    as_json,
    consistency,
    divergence,
    flatness_discrepancy,
    flatness_distance,
    forgetting,
    gradients,
    over_rounds,
    proximal,
    proximal_effect,
    radius_profile,
)
from steppe.flatness.clients import shares

VECTORS = Path(__file__).parents[1] / "vectors"
SOFTMAX = json.loads((VECTORS / "softmax.json").read_text())
QUADRATIC = json.loads((VECTORS / "quadratic.json").read_text())


def traced(case):
    """Round by round: the given model, the new one, the clients that took part, and their models."""
    problem = {**QUADRATIC["problems"][case["problem"]], **case.get("change", {})}
    rounds = trace(case["algorithm"], Problem(**problem), case["settings"])["rounds"]
    x = torch.tensor(problem["x0"], dtype=torch.float64)
    for active, told in zip(problem["rounds"], rounds, strict=True):
        after = torch.tensor(told["x"], dtype=torch.float64)
        yield x, after, active, torch.tensor([told["local"][str(i)] for i in active], dtype=torch.float64)
        x = after


def case(which):
    return next(c for c in QUADRATIC["cases"] if c["id"] == which)


def test_divergence_of_the_toy():
    """T10 of the specification."""
    c = {"algorithm": "fedavg", "settings": {}, "problem": "sol"}
    x, _, _, local = next(traced(c))
    found = divergence(x, local)
    assert found.global_local.value == pytest.approx(SOFTMAX["T10"]["divergence"], rel=1e-12)
    assert found.local_local.value == pytest.approx(float((local[0] - local[1]).norm()), rel=1e-12)
    assert math.isnan(found.local_local.error)  # one pair says nothing about the spread


@pytest.mark.parametrize(
    "which", ["fedsmoo-family/FedAvg", "fedsmoo-family/FedSAM", "fedsmoo-family/FedAdam(eta_g=.1)"]
)
def test_consistency(which):
    c = case(which)
    for (_, after, _, local), want in zip(traced(c), c["consistency"], strict=True):
        found = consistency(local, after)
        assert found.after.value == pytest.approx(want, rel=1e-10)
        spread = (local - local.mean(0)).square().sum(1).mean()
        assert found.mean.value == pytest.approx(float(spread), rel=1e-12)
        offset = (local.mean(0) - after).square().sum()  # Steiner: what the server moved away from the mean
        assert found.after.value == pytest.approx(float(spread + offset), rel=1e-9)


FEDSCAR = [c for c in QUADRATIC["cases"] if "flatness_discrepancy" in c.get("extra", {})]


@pytest.mark.filterwarnings("ignore:FedScar's dual")
@pytest.mark.parametrize("c", FEDSCAR, ids=[c["id"] for c in FEDSCAR])
def test_flatness_discrepancy_is_that_of_the_released_code(c):
    problem = {**QUADRATIC["problems"][c["problem"]], **c.get("change", {})}
    _, losses = quadratic(problem)
    sizes = [client["n"] for client in problem["clients"]]
    for (x, after, active, local), want in zip(traced(c), c["extra"]["flatness_discrepancy"], strict=True):
        mine = [losses[i] for i in active]
        found = flatness_discrepancy(mine, x, after, local, sizes=[sizes[i] for i in active])
        assert found.code.value == pytest.approx(want, rel=1e-9)
        assert found.poster is None


def test_flatness_discrepancy_by_hand():
    problem = QUADRATIC["problems"]["recent"]
    task, (f0, f1, _) = quadratic(problem)
    x, after = torch.tensor([0.5, -0.5]).double(), torch.tensor([0.25, 0.0]).double()
    local = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()  # each at its own minimum
    inputs = torch.cat([f0.sample.inputs, f0.sample.inputs, f1.sample.inputs])
    pooled = Loss(task, Sample("pooled", inputs, torch.zeros(3)))
    found = flatness_discrepancy([f0, f1], x, after, local, everyone=pooled, sizes=[2, 1])
    then = (2 * f0.value(after) + f1.value(after)) / 3
    before = (2 * f0.value(x) + f1.value(x)) / 3
    assert found.code.value == pytest.approx(then, rel=1e-12)
    assert found.poster.value == pytest.approx(then, rel=1e-9)  # the first bracket is 0: f is over the same clients
    assert found.moved.value == pytest.approx(abs(before - then), rel=1e-12)
    other = flatness_discrepancy([f0, f1], x, after, local, everyone=f1, sizes=[2, 1])
    assert other.poster.value == pytest.approx(f1.value(x) - before + then, rel=1e-9)
    # Leaving out one of two clients leaves the other: the jackknife's error is half of what lies between them.
    gaps = [f0.value(after), f1.value(after)]
    assert found.code.error == pytest.approx(abs(gaps[0] - gaps[1]) / 2, rel=1e-9)
    alone = flatness_discrepancy([f0], x, after, local[:1])
    assert math.isnan(alone.code.error)


def test_the_error_of_a_weighted_mean_is_the_spread_over_federations():
    g = torch.Generator().manual_seed(0)
    sizes = torch.randint(5, 30, (12,), generator=g).tolist()
    found = [Estimate.weighted(torch.randn(12, generator=g), sizes) for _ in range(400)]
    spread = torch.tensor([e.value for e in found]).std()
    assert float(spread) == pytest.approx(float(np.mean([e.error for e in found])), rel=0.15)


def test_over_rounds():
    found = over_rounds([5.0, 1.0, *[2.0, 4.0] * 25])
    assert found.last.value == 3
    assert found.minimum == 1
    assert found.last.n == 50
    assert as_json(over_rounds([])) == {"last": {"value": None, "error": None, "n": 0}, "minimum": None}


def test_flatness_distance_by_hand():
    problem = QUADRATIC["problems"]["sol"]
    task, clients = quadratic(problem)
    whole = Loss(task, Sample("both", torch.cat([c.sample.inputs for c in clients]), torch.zeros(2)))
    after = torch.tensor([0.3, 0.2]).double()
    local = torch.tensor([[1.5, -1.0], [-1.0, 1.0]]).double()
    A = torch.tensor([c["A"] for c in problem["clients"]]).double()
    b = torch.tensor([c["b"] for c in problem["clients"]]).double()
    g_own = torch.einsum("nij,nj->ni", A, local - b)
    g_at = torch.einsum("nij,nj->ni", A, after - b)
    g = g_at.mean(0)
    climbed = local + 0.4 * g_own / g_own.norm(dim=1, keepdim=True)
    found = flatness_distance(clients, whole, after, local, rho=0.4)
    d1 = (climbed - after - 0.4 * g / g.norm()).square().sum(1)
    assert found.ours_d1.value == pytest.approx(float(d1.mean()), rel=1e-9)
    assert found.ours_d2.value == pytest.approx(float((local - after).square().sum(1).mean()), rel=1e-12)
    cosines = g_at @ g / (g_at.norm(dim=1) * g.norm())
    assert found.ours_d3.value == pytest.approx(float((1 - cosines).mean()), rel=1e-9)
    assert_close(gradients(clients, after), g_at)


def test_alignment():
    found = alignment(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]))
    half = 0.5**0.5
    assert_close(found.cosines, torch.tensor([[1, 0, half], [0, 1, half], [half, half, 1]]).double())
    assert found.pairs.value == pytest.approx(2 * half / 3)
    mean = torch.tensor([4.0, 5.0]) / 41**0.5
    assert found.with_mean.value == pytest.approx(float((mean[0] + mean[1] + half * (mean[0] + mean[1])) / 3), rel=1e-6)


def test_the_jackknife_error_of_pairs_is_the_spread_over_federations():
    """Mean distance of pairs of 12 points: the error that one draw states is the spread over draws."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(400):
        x = torch.randn(12, 3, generator=generator)
        found.append(Estimate.of_pairs(torch.cdist(x, x)))
    spread = np.std([e.value for e in found])
    assert np.sqrt(np.mean([e.error**2 for e in found])) == pytest.approx(spread, rel=0.2)


# ------------------------------------------------------------------------------------------------------- FedSoL
def linear(v, w=None):
    task = Task(nn.Linear(2, 3, bias=False).double())
    sample = Sample("T7", torch.tensor(v["X"], dtype=torch.float64), torch.tensor(v["y"]))
    return Loss(task, sample), torch.tensor(v["W"] if w is None else w, dtype=torch.float64).flatten()


def test_proximal_effect_of_the_toy():
    """T7 of the specification: the loss and the cosine at FedSoL's second local step."""
    v = SOFTMAX["T7"]
    loss, x = linear(v)
    start = proximal_effect(loss, x, x, v["rho"], v["tau"], "fixed")
    assert start.cosine is None
    assert start.loss == pytest.approx(0, abs=1e-15)
    w = x - v["lr"] * loss.gradient(x)  # the first step has no ascent
    found = proximal_effect(loss, w, x, v["rho"], v["tau"], "fixed")
    assert found.loss == pytest.approx(v["log"][1]["kl"], rel=1e-10)
    assert found.cosine == pytest.approx(v["log"][1]["cos"], rel=1e-8)
    assert float(proximal(loss, x, v["tau"]).gradient(w).norm()) == pytest.approx(v["log"][1]["gp"], rel=1e-10)


@pytest.mark.parametrize("radius", ["adaptive", "layer"])
def test_shares_of_the_adaptive_radius(radius):
    v = SOFTMAX["T7"]
    loss, x = linear(v)
    _, w = linear(v, v["fedavg_W"])
    g = proximal(loss, x, v["tau"]).gradient(w)
    eps = v["rho"] * shares(loss.layout, w - x, radius) * g / g.norm()
    assert_close(eps, torch.tensor(v[f"eps_{radius}"], dtype=torch.float64).flatten(), rtol=1e-8, atol=1e-12)
    profile = radius_profile(loss.layout, torch.stack([w, w, x]), x, radius)
    once = float(shares(loss.layout, w - x, radius).mean())
    assert profile["weight"].value == pytest.approx(2 / 3 * once)  # a client that did not move has 0
    assert profile["weight"].n == 3


def test_forgetting():
    found = forgetting(Score(0.1, 0.8), [Score(1.0, 0.5), Score(1.0, 0.7)])
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(0.1)
    with pytest.raises(SteppeError, match="at least one local model"):
        forgetting(Score(0.1, 0.8), [])
