"""Sharpness in a ball and under noise, against quadratics and under rescaling."""

import math

import pytest
import torch
from small_problems import make
from torch import nn
from torch.testing import assert_close

from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.engine.quadratics import Quadratic
from steppe.flatness import Loss, Sample, gradient_norm, noisy_loss, spectrum, worst_loss
from steppe.flatness.random_vectors import gaussian, rademacher
from steppe.parts.sam import ASAM


def bowl(values, at):
    """½ Σ values · w², at w."""
    task = Task(Quadratic(torch.tensor(at, dtype=torch.float64), [len(at)]), loss=lambda outputs, _: outputs)
    A = torch.diag(torch.tensor(values, dtype=torch.float64))
    inputs = torch.cat([A, torch.zeros(len(at), 1)], 1)[None].double()
    return Loss(task, Sample("bowl", inputs, torch.zeros(1))), task.x0


def test_one_step_is_sams():
    loss, w = bowl([1.0, 4.0], [3.0, 1.0])
    found = worst_loss(loss, w, rho=0.5)
    there = w + 0.5 * torch.tensor([3.0, 4.0]).double() / 5
    assert found.worst == pytest.approx(float(0.5 * there[0] ** 2 + 2 * there[1] ** 2), rel=1e-12)
    assert found.rise.value == pytest.approx(found.worst - loss.value(w))
    assert found.path == (found.worst,)
    norm = gradient_norm(loss, w)
    assert norm.value == pytest.approx(5)
    assert math.isnan(norm.error)  # one example


def test_the_error_of_the_gradient_norm_is_its_spread_over_samples():
    task = Task(nn.Linear(3, 1, bias=False).double(), "mse")
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    g = torch.Generator().manual_seed(0)

    def drawn() -> Loss:
        x = torch.randn(200, 3, generator=g, dtype=torch.float64)
        return Loss(task, Sample("drawn", x, torch.randn(200, 1, generator=g, dtype=torch.float64)))

    found = []
    for _ in range(150):
        loss = drawn()
        found.append(gradient_norm(loss, w))
        assert found[-1].value == pytest.approx(float(loss.gradient(w).norm()), rel=1e-10)  # parts change nothing
    spread = torch.tensor([e.value for e in found]).std()
    stated = torch.tensor([e.error for e in found]).square().mean().sqrt()
    assert float(stated / spread) == pytest.approx(1, abs=0.2)


def test_several_steps_find_the_worst_point_of_the_ball():
    loss, w = bowl([1.0, 10.0], [1.0, 0.01])
    rho = 0.5
    angle = torch.linspace(0, 2 * torch.pi, 100_001, dtype=torch.float64)
    points = w[:, None] + rho * torch.stack([angle.cos(), angle.sin()])
    worst = float((0.5 * points[0] ** 2 + 5 * points[1] ** 2).max())
    one, many = worst_loss(loss, w, rho), worst_loss(loss, w, rho, steps=60)
    assert one.worst < 0.95 * worst
    assert many.worst == pytest.approx(worst, rel=1e-3)
    assert many.worst <= worst * (1 + 1e-9)  # never outside of the ball


def test_a_minimum_of_zero_gradient_has_nowhere_to_go():
    loss, w = bowl([1.0, 2.0], [0.0, 0.0])
    assert worst_loss(loss, w, 1.0, steps=3).rise.value == 0
    assert worst_loss(loss, w, 0.0).rise.value == 0


def test_the_adaptive_step_is_the_parts():
    loss, w, _ = make("mlp")
    seen = []

    def oracle(v):
        seen.append(v)
        return loss.gradient(v)

    class Anything:
        layout = loss.layout

    ASAM(rho=0.7).gradient(oracle, w, Anything())
    assert worst_loss(loss, w, 0.7, adaptive=True).worst == pytest.approx(loss.value(seen[1]), rel=1e-12)


def test_adaptive_sharpness_does_not_see_rescaling_and_lambda1_does():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    task = Task(net)
    loss = Loss(task, Sample("toy", torch.randn(20, 5).double(), torch.arange(20) % 3))
    params = task.layout.unflatten(task.x0)
    c = torch.linspace(0.2, 5, 7).double()
    scaled = {"0.weight": params["0.weight"] * c[:, None], "0.bias": params["0.bias"] * c,
              "2.weight": params["2.weight"] / c, "2.bias": params["2.bias"]}  # fmt: skip
    a, b = task.x0, task.layout.flatten(scaled)
    assert_close(loss.each(a), loss.each(b))
    for steps in (1, 5):
        flat, sharp = (worst_loss(loss, w, 0.3, steps, adaptive=True) for w in (a, b))
        assert flat.worst == pytest.approx(sharp.worst, rel=1e-9)
    plain = [worst_loss(loss, w, 0.3).rise.value for w in (a, b)]
    assert abs(plain[0] / plain[1] - 1) > 0.1
    lambdas = [spectrum(loss.hessian(w), top=1).lambda1 for w in (a, b)]
    assert abs(lambdas[0] / lambdas[1] - 1) > 0.1


def test_noise_on_a_quadratic_adds_half_the_trace():
    loss, w = bowl([1.0, 2.0, 3.0, 6.0], [1.0, 0.0, 0.0, 0.0])
    found = noisy_loss(loss, w, sigma=0.5, draws=4000)
    assert found.error < 0.03 * found.value  # or a σ that is a tenth too large would pass
    assert abs(found.value - (0.5 + 0.5 * 0.25 * 12)) < 4 * found.error
    few, again, other = (noisy_loss(loss, w, sigma=0.5, draws=20, seed=seed) for seed in (0, 0, 1))
    assert few == again != other


def test_random_numbers_have_their_moments():
    like = torch.zeros(1, dtype=torch.float64)
    z, s = gaussian(like, 100_001, 0), rademacher(like, 100_001, 0)
    assert abs(float(z.mean())) < 0.02
    assert float(z.std()) == pytest.approx(1, abs=0.02)
    assert float(z.pow(4).mean()) == pytest.approx(3, abs=0.15)
    assert set(s.tolist()) == {-1.0, 1.0}
    assert abs(float(s.mean())) < 0.02
    assert abs(float((s[1:] * s[:-1]).mean())) < 0.02


def test_words():
    loss, w = bowl([1.0], [1.0])
    for call in (
        lambda: worst_loss(loss, w, -1.0),
        lambda: worst_loss(loss, w, 1.0, 0),
        lambda: noisy_loss(loss, w, draws=1),
    ):
        with pytest.raises(SteppeError):
            call()
    with pytest.raises(SteppeError, match="not finite"):
        worst_loss(loss, w * float("nan"), 1.0)
