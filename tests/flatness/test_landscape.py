"""Grids and directions."""

import numpy as np
import pytest
import torch
from small_problems import make
from torch.testing import assert_close

from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.engine.quadratics import Quadratic
from steppe.flatness import (
    Landscape,
    Loss,
    Sample,
    filter_normalised,
    interpolation,
    landscape,
    plane,
    spectrum,
    ticks,
)
from steppe.models import build


def test_the_centre_is_the_model_and_axes_are_in_order():
    loss, w, f = make("group norm")
    directions = spectrum(loss.hessian(w), top=2).top.vectors
    grid = landscape(loss, w, directions, [ticks(5, 0.4), ticks(3, 0.2)], "eigenvectors")
    assert grid.values.shape == (5, 3)
    assert grid.values[2, 1] == pytest.approx(loss.value(w), rel=1e-12)
    assert grid.values[4, 0] == pytest.approx(float(f(w + 0.4 * directions[0] - 0.2 * directions[1])), rel=1e-10)
    assert grid.sample == "toy"


def test_curvature_along_eigenvectors_is_the_eigenvalue():
    loss, w, _ = make("mlp")
    top = spectrum(loss.hessian(w), top=2, tolerance=1e-9).top
    h = 1e-3
    for v, value in zip(top.vectors, top.values, strict=True):
        left, middle, right = landscape(loss, w, v[None], [ticks(3, h)]).values
        assert (left - 2 * middle + right) / h**2 == pytest.approx(float(value), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn", (3, 8, 8)), ("resnet8-gn", (3, 32, 32)), ("vit-small", (3, 32, 32)), ("slvit-original", (3, 32, 32))],
)
def test_filters_keep_their_norms(name, shape):
    torch.manual_seed(0)
    task = Task(build(name, 4, shape))
    layout, w = task.layout, task.x0
    first, second = filter_normalised(layout, w, seed=3)
    moved = 0
    for d, e, own in zip(layout.pieces(first), layout.pieces(second), layout.pieces(w), strict=True):
        if own.numel() == max(own.shape, default=1):  # biases, norms, temperatures, also with axes of length 1
            assert not d.any()
            continue
        moved += 1
        assert_close(d.flatten(1).norm(dim=1), own.flatten(1).norm(dim=1), rtol=1e-5, atol=1e-6)
        assert abs(float((d * e).sum())) < 0.5 * float(own.square().sum())  # another direction
    assert moved > 2
    assert torch.equal(filter_normalised(layout, w, seed=3)[0], first)
    assert not torch.equal(filter_normalised(layout, w, seed=4)[0], first)


def test_plane_through_three_models():
    loss, w, _ = make("mlp")
    models = [w, w + torch.randn_like(w), w + torch.randn_like(w)]
    directions, marks = plane(models, ["global", "client 1", "client 2"])
    assert_close(directions @ directions.T, torch.eye(2).double())
    for name, model in zip(marks, models, strict=True):
        assert_close(w + torch.tensor(marks[name]).double() @ directions, model, rtol=1e-5, atol=1e-6)
    a, b = (np.array(marks["client 2"])[[i]] for i in (0, 1))
    grid = landscape(loss, w, directions, [a, b], "plane", marks=marks)
    assert grid.values[0, 0] == pytest.approx(loss.value(models[2]), rel=1e-9)
    with pytest.raises(SteppeError, match="one line"):
        plane([w, w + 1, w + 2])
    with pytest.raises(SteppeError, match="one line"):
        plane([w, w, w + 2])
    with pytest.raises(SteppeError, match="three models"):
        plane([w, w])


def test_interpolation():
    loss, w, _ = make("mlp")
    other = w + 1
    line = interpolation(loss, w, other, points=7, names=("global", "client 0"))
    assert line.axes[0][1] == pytest.approx(0)
    assert line.values[1] == pytest.approx(loss.value(w), rel=1e-9)
    assert line.values[5] == pytest.approx(loss.value(other), rel=1e-9)
    assert line.values[3] == pytest.approx(loss.value(w + 0.5), rel=1e-9)
    assert line.marks == {"global": [0.0], "client 0": [1.0]}


def test_saved_and_read_again(tmp_path):
    loss, w, _ = make("mlp")
    directions = filter_normalised(loss.layout, w, seed=5)
    grid = landscape(loss, w, directions, [ticks(3), ticks(2)], "random", seed=5, marks={"w": [0.0, 0.0]})
    grid.save(tmp_path / "grid.npz")
    again = Landscape.load(tmp_path / "grid.npz")
    for name in ("values", "directions"):
        np.testing.assert_array_equal(getattr(again, name), getattr(grid, name))
    assert (again.kind, again.sample, again.seed, again.marks) == ("random", "toy", 5, {"w": [0.0, 0.0]})
    for a, b in zip(again.axes, grid.axes, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(SteppeError, match="no landscape"):
        Landscape.load(tmp_path / "other.npz")


def test_points_side_by_side_are_points_one_by_one():
    """What a GPU does, on the CPU: the same vmap."""
    for name in ("mlp", "group norm", "running statistics", "batch statistics", "regression"):
        loss, w, f = make(name)
        points = w + 0.1 * torch.randn(3, len(w)).double()
        assert_close(torch.func.vmap(f)(points), loss.values(points), rtol=1e-9, atol=1e-12)


def test_words():
    loss, w, _ = make("mlp")
    with pytest.raises(SteppeError, match="one or two directions"):
        landscape(loss, w, torch.stack([w, w]), [ticks(3)])
    with pytest.raises(SteppeError, match="not finite"):
        landscape(loss, w * float("inf"), w[None], [ticks(3)])
    flat = Task(Quadratic(torch.ones(3), [2, 1]), loss=lambda outputs, _: outputs)
    with pytest.raises(SteppeError, match="has none"):
        filter_normalised(flat.layout, flat.x0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["cnn", "resnet8-gn", "vit-small"])
def test_a_gpu_measures_what_the_cpu_measures(name):
    torch.manual_seed(0)
    task = Task(build(name, 10, (3, 32, 32)))
    sample = Sample("random", torch.randn(64, 3, 32, 32), torch.arange(64) % 10)
    there = Loss(task.to("cuda"), sample.to("cuda"))
    here, w = Loss(task, sample), task.x0
    a, b = spectrum(here.hessian(w), top=3), spectrum(there.hessian(w.cuda()), top=3)
    assert_close(a.top.values, b.top.values, rtol=1e-3, atol=1e-4)
    assert b.converged
    directions = filter_normalised(task.layout, w)
    assert_close(directions, filter_normalised(task.layout, w.cuda()).cpu(), rtol=1e-4, atol=1e-6)
    axes = [ticks(5, 0.2), ticks(3, 0.2)]
    one, other = landscape(here, w, directions, axes), landscape(there, w.cuda(), directions.cuda(), axes)
    np.testing.assert_allclose(other.values, one.values, rtol=1e-4)
