"""The measures on a GPU are those on a CPU.

Both are in float32, with TF32 off inside of every measure, so a product differs by rounding alone: some 1e-6 of its
length, and 1e-3 where a unit of a ReLU falls on the other side of zero. The tolerances below are what is left of that
in each measure; TF32 moves thousands of units over, and would show in a product as 3e-2. In float64 none moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from steppe.core.task import Task
from steppe.flatness import (
    Loss,
    Sample,
    alignment,
    by_layer,
    density,
    filter_normalised,
    gradient_norm,
    gradients,
    hutch_plus_plus,
    hutchinson,
    interpolation,
    landscape,
    noisy_loss,
    proximal_effect,
    spectrum,
    ticks,
    worst_loss,
)
from steppe.models import build

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ROUNDING = 3e-3  # of a product or a gradient in float32
MODELS = ["cnn", "resnet8-gn"]  # by forward mode, and by two backward passes: group norm has no forward mode


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest) -> Any:
    """The same loss and vector here and there; a few steps of descent from the start, so that H has outliers."""
    torch.manual_seed(0)
    sample = Sample("random", torch.randn(60, 3, 32, 32), torch.arange(60) % 10)
    here = Loss(Task(build(request.param, 10, (3, 32, 32))), sample)
    w = here.task.x0
    for _ in range(5):
        w = w - 0.05 * here.gradient(w)
    there = Loss(here.task.to("cuda"), sample.to("cuda"))
    return here, w, there, w.cuda()


def close(a: float, b: float, rel: float, scale: float = 0.0) -> None:
    assert b == pytest.approx(a, rel=rel, abs=rel * scale)


@pytest.mark.parametrize("allowed", [False, True])
def test_products_ignore_the_precision_that_a_run_allows(both: Any, allowed: bool) -> None:
    here, w, there, v = both
    rows = torch.randn(3, len(w), generator=torch.Generator().manual_seed(1))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        found, slope = there.hessian(v)(rows.cuda()).cpu(), there.gradient(v).cpu()
        assert torch.backends.cuda.matmul.allow_tf32 == allowed  # as it was
        assert torch.backends.cudnn.allow_tf32 == allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
        torch.backends.cudnn.allow_tf32 = True  # PyTorch's default
    wanted = here.hessian(w)(rows)
    assert float((found - wanted).norm() / wanted.norm()) < ROUNDING
    assert float((slope - here.gradient(w)).norm() / slope.norm()) < ROUNDING


def test_both_ways_to_a_product_agree(both: Any) -> None:
    _, _, there, v = both
    hessian, rows = there.hessian(v), torch.randn(2, len(v), generator=torch.Generator().manual_seed(2)).cuda()
    wanted = hessian.by_two_backwards(rows)
    if hessian.forward_mode_agrees():
        found = hessian.by_forward_mode(rows)
        assert float((found - wanted).norm() / wanted.norm()) < ROUNDING
    assert float((hessian(rows) - wanted).norm() / wanted.norm()) < ROUNDING


def test_products_in_float64_are_equal() -> None:
    torch.manual_seed(0)
    task = Task(build("cnn", 10, (3, 32, 32)).double())
    sample = Sample("random", torch.randn(20, 3, 32, 32, dtype=torch.float64), torch.arange(20) % 10)
    rows = torch.randn(2, len(task.x0), dtype=torch.float64)
    wanted = Loss(task, sample).hessian(task.x0)(rows)
    hessian = Loss(task.to("cuda"), sample.to("cuda")).hessian(task.x0.cuda())
    for way in (hessian, hessian.by_forward_mode, hessian.by_two_backwards):
        assert float((way(rows.cuda()).cpu() - wanted).norm() / wanted.norm()) < 1e-10


def test_spectrum(both: Any) -> None:
    here, w, there, v = both
    a, b = spectrum(here.hessian(w), top=3, bottom=1), spectrum(there.hessian(v), top=3, bottom=1)
    assert a.converged
    assert b.converged
    assert_close(b.top.values, a.top.values, rtol=1e-3, atol=1e-3 * a.lambda1)  # each within its residual
    assert_close(b.bottom.values, a.bottom.values, rtol=1e-2, atol=1e-3 * a.lambda1)
    product = there.hessian(v)(b.top.vectors)  # the residuals are true on the GPU, too
    residuals = (product - b.top.values.to(product)[:, None] * b.top.vectors).norm(dim=1).cpu().double()
    assert bool((residuals <= 2 * b.top.residuals + 1e-4 * a.lambda1).all())


def test_traces_and_density(both: Any) -> None:
    here, w, there, v = both
    h, g = here.hessian(w), there.hessian(v)
    a, b = hutchinson(h, 6), hutchinson(g, 6)  # the same signs on every device
    close(a.value, b.value, 1e-3, a.error)
    close(a.error, b.error, 1e-2)
    for name, one in by_layer(h, here.layout, 4).items():
        close(one.value, by_layer(g, there.layout, 4)[name].value, 1e-2, max(a.error, one.error))
    close(hutch_plus_plus(h, 12).value, hutch_plus_plus(g, 12).value, 1e-2, a.error)
    one, other = density(h, probes=2, steps=6), density(g, probes=2, steps=6)
    scale = float(one.nodes.abs().max())
    assert_close(other.nodes, one.nodes, rtol=1e-2, atol=1e-2 * scale)
    assert float(torch.trapezoid(other.density, other.grid)) == pytest.approx(1, abs=1e-3)


def test_sharpness_and_noise(both: Any) -> None:
    here, w, there, v = both
    for options in ({"rho": 0.05}, {"rho": 0.05, "steps": 3}, {"rho": 0.5, "adaptive": True}):
        a, b = worst_loss(here, w, **options), worst_loss(there, v, **options)
        close(a.rise.value, b.rise.value, 1e-2)
        close(a.loss, b.loss, 1e-5)
    close(noisy_loss(here, w, draws=4).value, noisy_loss(there, v, draws=4).value, 1e-4)
    a, b = gradient_norm(here, w), gradient_norm(there, v)
    close(a.value, b.value, 1e-4)
    close(a.error, b.error, 1e-2)


def test_clients(both: Any) -> None:
    here, w, there, v = both
    parts, others = here.split(3), there.split(3)
    assert_close(alignment(gradients(others, v)).cosines, alignment(gradients(parts, w)).cosines, rtol=1e-3, atol=1e-3)
    moved = w + 0.01 * torch.randn(len(w), generator=torch.Generator().manual_seed(3))
    a, b = proximal_effect(here, moved, w, 2.0), proximal_effect(there, moved.cuda(), v, 2.0)
    close(a.loss, b.loss, 1e-3)
    assert a.cosine is not None
    assert b.cosine == pytest.approx(a.cosine, abs=1e-2)


def test_landscapes_are_evaluated_side_by_side(both: Any) -> None:
    here, w, there, v = both
    rows = filter_normalised(here.layout, w)
    assert_close(filter_normalised(there.layout, v).cpu(), rows, rtol=1e-4, atol=1e-6)
    axes = [ticks(5, 0.5)] * 2
    a, b = landscape(here, w, rows, axes), landscape(there, v, rows.cuda(), axes)
    np.testing.assert_allclose(b.values, a.values, rtol=1e-4)
    line, other = interpolation(here, w, w + rows[0], 5), interpolation(there, v, v + rows[0].cuda(), 5)
    np.testing.assert_allclose(other.values, line.values, rtol=1e-4)
    tight = Loss(there.task, there.sample, memory_limit=1)  # one point at a time
    np.testing.assert_allclose(landscape(tight, v, rows.cuda(), axes).values, b.values, rtol=1e-5)
