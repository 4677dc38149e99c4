"""Products, eigenvalues, traces and densities against matrices that are written out."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from small_problems import NETS, Matrix, make, matrix, quadratic
from torch import nn
from torch.testing import assert_close

from steppe.core.errors import SteppeError
from steppe.core.layout import Layout
from steppe.core.task import Task
from steppe.flatness import (
    Loss,
    Sample,
    as_arrays,
    as_json,
    block,
    by_layer,
    density,
    free_memory,
    hutch_plus_plus,
    hutchinson,
    layers,
    spectrum,
)
from steppe.models import build

VECTORS = Path(__file__).parents[1] / "vectors"
SOFTMAX = json.loads((VECTORS / "softmax.json").read_text())
QUADRATIC = json.loads((VECTORS / "quadratic.json").read_text())


@pytest.fixture(scope="module")
def dense():
    """The multilayer perceptron with its Hessian as a matrix."""
    loss, w, f = make("mlp")
    return loss, w, matrix("mlp", w, f)


def decaying(n=120, power=1.0, seed=0):
    values = torch.arange(1, n + 1, dtype=torch.float64) ** -power
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).Q
    return Q @ torch.diag(values) @ Q.T, values


# --------------------------------------------------------------------------------------------------- the products
@pytest.mark.parametrize("name", NETS)
def test_value_gradient_and_product_are_autograds(name):
    loss, w, f = make(name)
    assert loss.value(w) == pytest.approx(float(f(w)), rel=1e-12)
    assert_close(loss.gradient(w), torch.func.grad(f)(w), rtol=1e-9, atol=1e-12)
    H = matrix(name, w, f)
    v = torch.randn(3, len(w), dtype=torch.float64)
    assert_close(loss.hessian(w)(v), v @ H, rtol=1e-6, atol=1e-8)
    assert_close(loss.hvp(w, v[0]), H @ v[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NETS)
def test_forward_mode_is_used_only_where_it_is_right(name):
    """What a GPU does: forward mode, unless it fails, as it does for group norm, or gives something else."""
    loss, w, f = make(name)
    hessian, v = loss.hessian(w), torch.randn(3, len(w), dtype=torch.float64)
    if hessian.forward_mode_agrees():
        assert_close(hessian.by_forward_mode(v), v @ matrix(name, w, f), rtol=1e-6, atol=1e-8)
        assert_close(hessian.by_forward_mode(v[:1]), v[:1] @ matrix(name, w, f), rtol=1e-6, atol=1e-8)
    else:
        assert name == "group norm"


@pytest.mark.parametrize("name", [n for n in NETS if n != "batch statistics"])
@pytest.mark.parametrize("options", [{"chunk": 7}, {"memory_limit": 0}, {"chunk": 7, "memory_limit": 0}])
def test_chunks_change_nothing(name, options):
    whole, w, _ = make(name)
    parts, _, _ = make(name, **options)
    v = torch.randn_like(w)
    assert_close(parts.each(w), whole.each(w), rtol=1e-12, atol=1e-14)
    assert_close(parts.gradient(w), whole.gradient(w), rtol=1e-10, atol=1e-13)
    assert_close(parts.hvp(w, v), whole.hvp(w, v), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kept", [True, False])
def test_threads_change_nothing(name, kept):
    """A thread a piece, with graphs that are kept and with graphs that are made anew and thrown away."""
    alone, w, _ = make(name, chunk=7)
    # Room for two pieces at work, not for all graphs.
    limit = alone.memory_limit if kept else 20 * alone._measure_bytes(w)
    several, _, _ = make(name, chunk=7, memory_limit=limit)
    v, before = torch.randn(3, len(w), dtype=torch.float64), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = alone.hessian(w)(v)
        torch.set_num_threads(2)
        hessian = several.hessian(w)
        assert (hessian._threads, hessian._fits) == (2, kept)
        for _ in range(3):
            assert_close(hessian(v), wanted, rtol=1e-9, atol=1e-12)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_batch_statistics_are_those_of_the_stated_chunk():
    loss, w, _ = make("batch statistics", chunk=20)
    halves = [Loss(loss.task, Sample("half", *(t[i : i + 20] for t in (loss.sample.inputs, loss.sample.targets))))
              for i in (0, 20)]  # fmt: skip
    assert loss.value(w) == pytest.approx(sum(h.value(w) for h in halves) / 2, rel=1e-12)
    assert_close(loss.gradient(w), (halves[0].gradient(w) + halves[1].gradient(w)) / 2)
    tight, _, _ = make("batch statistics", chunk=20, memory_limit=0)
    with pytest.raises(SteppeError, match="uses batch statistics"):
        tight.gradient(w)


def test_blocks_are_the_dense_blocks(dense):
    loss, w, H = dense
    assert layers(loss.layout) == ["0", "2"]
    for on in ("0", "2", "head", "body", "2.bias"):
        mask = block(loss.layout, on)
        small = loss.hessian(w, on)
        assert small.size == int(mask.sum())
        assert_close(small(torch.eye(small.size, dtype=torch.float64)), H[mask][:, mask], rtol=1e-9, atol=1e-12)
    assert torch.equal(block(loss.layout, "0") ^ block(loss.layout, "2"), torch.ones(len(w), dtype=torch.bool))
    alike = Layout({"1.weight": (2,), "10.weight": (3,), "1.bias": (1,)}, head="10")
    assert block(alike, "1").tolist() == [True, True, False, False, False, True]  # and nothing of layer 10


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn", (3, 8, 8)), ("resnet8-gn", (3, 32, 32)), pytest.param("resnet18-bs", (3, 8, 8), marks=pytest.mark.slow),
     pytest.param("slvit", (3, 32, 32), marks=pytest.mark.slow), pytest.param("vit-small", (3, 32, 32))],
)  # fmt: skip
def test_products_of_the_models_are_symmetric_and_match_differences(name, shape):
    torch.manual_seed(0)
    task = Task(build(name, 4, shape)).to("cpu", torch.float64)
    sample = Sample("random", torch.randn(8, *shape, dtype=torch.float64), torch.arange(8) % 4)
    loss, w = Loss(task, sample), task.x0
    a, b = (torch.nn.functional.normalize(torch.randn_like(w), dim=0) for _ in range(2))
    Ha, Hb = loss.hessian(w)(torch.stack([a, b]))
    assert float(b @ Ha) == pytest.approx(float(a @ Hb), rel=1e-6, abs=1e-10)
    step = 1e-5
    differences = (loss.gradient(w + step * a) - loss.gradient(w - step * a)) / (2 * step)
    assert float((differences - Ha).norm() / Ha.norm()) < 1e-3  # kinks of ReLU and pooling stay in


# --------------------------------------------------------------------------------------------------- eigenvalues
def test_toy_curvature():
    """T10 of the specification."""
    want, problem = SOFTMAX["T10"], QUADRATIC["problems"]["sol"]
    task, clients = quadratic(problem)
    inputs = torch.cat([c.sample.inputs for c in clients]).repeat_interleave(torch.tensor([3, 1]), 0)  # n = 30 and 10
    whole = Loss(task, Sample("both", inputs, torch.zeros(4)))
    found = spectrum(whole.hessian(task.x0), top=5, tolerance=1e-12)
    assert_close(found.top.values, torch.tensor(want["eigenvalues"], dtype=torch.float64), rtol=1e-12, atol=0)
    assert float(found.top.values[0] / found.top.values[1]) == pytest.approx(want["ratio"], rel=1e-12)
    assert found.ratio is None
    assert_close(
        whole.hessian(task.x0)(torch.eye(2, dtype=torch.float64)), torch.tensor(want["H"], dtype=torch.float64)
    )
    assert hutch_plus_plus(whole.hessian(task.x0), 6).value == pytest.approx(3.25, rel=1e-12)


@pytest.mark.parametrize("name", NETS)
def test_both_ends_of_a_dense_hessian(name):
    loss, w, f = make(name)
    H = matrix(name, w, f)
    values, vectors = torch.linalg.eigh((H + H.T) / 2)
    found = spectrum(loss.hessian(w), top=5, bottom=3, tolerance=1e-7)
    assert found.converged
    assert_close(found.top.values, values.flip(0)[:5], rtol=1e-5, atol=1e-5 * float(values[-1]))
    assert_close(found.top.values[:2], values.flip(0)[:2], rtol=1e-5, atol=0)
    assert_close(found.bottom.values, values[:3], rtol=1e-5, atol=1e-6 * float(values[-1]))
    assert found.ratio == pytest.approx(float(values[-1] / values[-5]), rel=1e-4)
    assert 0 < found.ratio_error < 1e-3 * found.ratio
    first = found.top.vectors[0]
    assert abs(float(first @ vectors[:, -1])) == pytest.approx(1, abs=1e-6)
    assert float(first.sum()) > 0
    for pairs in (found.top, found.bottom):
        residuals = (pairs.vectors @ H - pairs.values[:, None] * pairs.vectors).norm(dim=1)
        assert_close(pairs.residuals, residuals, rtol=1e-3, atol=1e-8)
        assert_close(pairs.vectors @ pairs.vectors.T, torch.eye(len(pairs.values)).double(), rtol=0, atol=1e-6)


def test_agrees_with_arpack_on_the_same_product():
    loss, w, _ = make("group norm")
    hessian = loss.hessian(w)
    product = scipy.sparse.linalg.LinearOperator((len(w),) * 2, matvec=lambda v: hessian(torch.tensor(v)).numpy(),
                                                 dtype=np.float64)  # fmt: skip
    for which, ask in (("LA", {"top": 5}), ("SA", {"top": 0, "bottom": 5})):
        values = scipy.sparse.linalg.eigsh(product, 5, which=which, return_eigenvectors=False, v0=np.ones(len(w)))
        found = spectrum(hessian, tolerance=1e-9, **ask)
        ours = found.top.values.flip(0) if which == "LA" else found.bottom.values
        np.testing.assert_allclose(ours.numpy(), np.sort(values), rtol=1e-8, atol=1e-9)


def test_restarts_reach_what_a_large_basis_reaches():
    H, values = decaying(300, power=0.5)
    small = spectrum(Matrix(H), top=4, bottom=2, tolerance=1e-9, basis=20, iterations=2000)
    assert small.converged
    assert small.products > 40
    assert_close(small.top.values, values[:4], rtol=1e-9, atol=0)
    assert_close(small.bottom.values, values.flip(0)[:2], rtol=1e-6, atol=0)


def test_a_basis_that_is_exhausted_goes_on_in_a_new_direction():
    H = torch.diag(torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert_close(spectrum(Matrix(H), top=5, tolerance=1e-10).top.values,
                 torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0]).double())  # fmt: skip
    assert_close(spectrum(Matrix(0 * H), top=2).top.values, torch.zeros(2).double())


def test_too_few_iterations_say_so():
    H, values = decaying(300, power=0.1)
    rough = spectrum(Matrix(H), top=3, tolerance=1e-10, iterations=12)
    assert not rough.converged
    assert rough.products == 12
    assert rough.ratio is rough.ratio_error is None  # three were asked for
    gaps = (rough.top.values[:, None] - values).abs().min(1).values
    assert bool((gaps <= rough.top.residuals + 1e-12).all())  # the stated uncertainty holds all the same
    with pytest.raises(SteppeError, match="at least one"):
        spectrum(Matrix(H), top=0)


def test_an_invariant_of_precision(dense):
    loss, w, H = dense
    task = loss.task.to("cpu", torch.float32)
    single = Loss(task, Sample("toy", loss.sample.inputs.float(), loss.sample.targets))
    found = spectrum(single.hessian(w.float()))
    assert found.converged
    assert found.lambda1 == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-4)


# ------------------------------------------------------------------------------------------------ MAN's inequality
def test_last_layer_of_man():
    """For z = W a the block of one example is (a aᵀ) ⊗ M: its λ1 is ‖a‖² λ1(M); the mean's is at most the mean."""
    man = SOFTMAX["MAN"]
    want, problem = man["last_layer_hessian"], man["problem"]
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
    net[0].weight.data, net[2].weight.data = (torch.tensor(problem[k], dtype=torch.float64) for k in ("W1", "W2"))
    task = Task(net)
    x, y = torch.tensor(problem["clients"][0]["X"], dtype=torch.float64), torch.tensor(problem["clients"][0]["y"])
    top = spectrum(Loss(task, Sample("client 0", x, y)).hessian(task.x0, "2"), top=1, tolerance=1e-12).lambda1
    each = [spectrum(Loss(task, Sample("one", x[i : i + 1], y[i : i + 1])).hessian(task.x0, "2"), top=1).lambda1
            for i in range(2)]  # fmt: skip
    assert top == pytest.approx(want["top"], rel=1e-10)
    assert each == pytest.approx(want["per_sample"], rel=1e-10)
    assert np.mean(each) == pytest.approx(want["mean"], rel=1e-10)
    assert top <= np.mean(each)


def test_layerwise_bound():
    """λ1 of every layer's block ≤ mean ‖a‖² λ1(M), a the layer's input and M the loss's Hessian in its output."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False), nn.ReLU(),
                        nn.Linear(6, 3, bias=False)).double()  # fmt: skip
    task, x, y = Task(net), torch.randn(30, 5, dtype=torch.float64), torch.arange(30) % 3
    loss = Loss(task, Sample("toy", x, y))
    whole, blocks = spectrum(loss.hessian(task.x0), top=1).lambda1, []
    for i in (0, 2, 4):
        a = net[:i](x).detach() if i else x
        bounds = []
        for k in range(len(x)):

            def rest(z, k=k, i=i):
                return nn.functional.cross_entropy(net[i + 1 :](z), y[k])

            M = torch.func.hessian(rest)(net[i](a[k]).detach()).detach()
            bounds.append(float(a[k].square().sum() * torch.linalg.eigvalsh(M)[-1]))
            if k < 3:  # of a single example the bound is reached, so that the inequality below is not an empty one
                one = Loss(task, Sample("one", x[k : k + 1], y[k : k + 1])).hessian(task.x0, str(i))
                assert spectrum(one, top=1, tolerance=1e-9).lambda1 == pytest.approx(bounds[-1], rel=1e-7)
        blocks.append(spectrum(loss.hessian(task.x0, str(i)), top=1).lambda1)
        assert 0 < blocks[-1] <= np.mean(bounds) * (1 + 1e-9)
    assert max(blocks) <= whole * (1 + 1e-6)  # a block never exceeds the matrix that it is cut from


# --------------------------------------------------------------------------------------------------------- traces
def test_traces_are_within_their_error(dense):
    loss, w, H = dense
    hessian, trace = loss.hessian(w), float(H.trace())
    for estimate in (hutchinson(hessian, 200), hutch_plus_plus(hessian, 60)):
        assert 0 < estimate.error < 0.2 * trace
        assert abs(estimate.value - trace) < 4 * estimate.error
    parts = by_layer(hessian, loss.layout, 200)
    for name, estimate in parts.items():
        mask = block(loss.layout, name)
        assert abs(estimate.value - float(H.diagonal()[mask].sum())) < 4 * estimate.error
    assert sum(p.value for p in parts.values()) == pytest.approx(hutchinson(hessian, 200).value)
    assert hutch_plus_plus(hessian, 3 * len(w)).value == pytest.approx(trace)  # enough products for all directions


def test_the_stated_error_is_the_one_that_is_made():
    """Over many seeds the spread of the estimates is what each of them says."""
    H, values = decaying(60, power=0.3)
    for estimator, count in ((hutchinson, 20), (hutch_plus_plus, 30)):
        found = [estimator(Matrix(H), count, seed=s) for s in range(200)]
        errors = torch.tensor([e.value for e in found]) - float(values.sum())
        stated = torch.tensor([e.error for e in found]).square().mean().sqrt()
        assert float(errors.square().mean().sqrt() / stated) == pytest.approx(1, abs=0.25)
        assert abs(float(errors.mean())) < 4 * float(stated) / 200**0.5  # no bias


def test_hutch_plus_plus_wins_on_a_decaying_spectrum():
    H, values = decaying(200, power=1.5)
    trace, wins = float(values.sum()), []
    for seed in range(10):
        a, b = Matrix(H), Matrix(H)
        plain, better = hutchinson(a, 30, seed), hutch_plus_plus(b, 30, seed)
        assert a.products == b.products == 30
        wins.append((abs(plain.value - trace), abs(better.value - trace)))
        assert better.error < plain.error
    assert np.mean([b for _, b in wins]) < 0.25 * np.mean([a for a, _ in wins])


# -------------------------------------------------------------------------------------------------------- density
@pytest.mark.slow
def test_density_is_the_smoothed_histogram(dense):
    loss, w, H = dense
    values = torch.linalg.eigvalsh(H)
    sigma = 0.05 * float(values[-1])
    found = density(loss.hessian(w), probes=100, steps=60, sigma=sigma, points=300)
    exact = torch.distributions.Normal(values, sigma).log_prob(found.grid[:, None]).exp().mean(1)
    assert bool(((found.density - exact).abs() <= 5 * found.error + 1e-4 * exact.max()).all())
    assert float((found.density - exact).abs().max()) < 0.1 * float(exact.max())
    assert float(torch.trapezoid(found.density, found.grid)) == pytest.approx(1, abs=1e-4)
    assert_close(found.weights.sum(1), torch.ones(100).double())
    assert abs(found.trace.value - float(values.sum())) < 4 * found.trace.error
    # with every eigenvector reached, the nodes of one probe are the eigenvalues themselves
    assert float(found.nodes[0].max()) == pytest.approx(float(values[-1]), rel=1e-8)
    assert float(found.nodes[0].min()) == pytest.approx(float(values[0]), rel=1e-6)


def test_density_of_a_small_invariant_space():
    H = torch.diag(torch.tensor([2.0] * 5 + [-1.0] * 3, dtype=torch.float64))
    found = density(Matrix(H), probes=3, steps=8)
    # signs weigh every coordinate alike, so two nodes carry exactly 5/8 and 3/8
    for nodes, weights in zip(found.nodes, found.weights, strict=True):
        mass = {round(float(t)): float(m) for t, m in zip(nodes, weights, strict=True) if m > 0}
        assert mass == pytest.approx({2: 5 / 8, -1: 3 / 8})
    with pytest.raises(SteppeError, match="2 probes"):
        density(Matrix(H), probes=1)


# ------------------------------------------------------------------------------------------- seeds, words, storing
def test_seeds_reproduce_and_differ(dense):
    loss, w, _ = dense
    for measure in (
        lambda seed: spectrum(loss.hessian(w), top=2, iterations=6, seed=seed).top.values,
        lambda seed: torch.tensor(hutchinson(loss.hessian(w), 5, seed)),
        lambda seed: torch.tensor(hutch_plus_plus(loss.hessian(w), 9, seed)),
        lambda seed: density(loss.hessian(w), probes=2, steps=5, seed=seed).nodes,
    ):
        assert torch.equal(measure(1), measure(1))
        assert not torch.equal(measure(1), measure(2))


def test_bad_input_is_answered_in_words(dense):
    loss, w, _ = dense
    far, v, _ = make("regression")
    broken = w.clone()
    broken[3] = float("nan")
    for call in (loss.value, loss.gradient, loss.hessian, loss.outputs):
        with pytest.raises(SteppeError, match="not finite"):
            call(broken)
    with pytest.raises(SteppeError, match="not finite"):
        spectrum(far.hessian(v * 1e200))
    with pytest.raises(SteppeError, match="parameters"):
        loss.value(w[:-1])
    with pytest.raises(SteppeError, match="empty"):
        Sample("nothing", loss.sample.inputs[:0], loss.sample.targets[:0])
    with pytest.raises(SteppeError, match="no part 'conv'"):
        loss.hessian(w, "conv")
    with pytest.raises(SteppeError, match="2 probes"):
        hutchinson(loss.hessian(w), 1)
    with pytest.raises(SteppeError, match="whole Hessian"):
        by_layer(loss.hessian(w, "head"), loss.layout)


def test_a_model_too_large_for_memory(monkeypatch, dense):
    loss, w, _ = dense
    monkeypatch.setattr("steppe.flatness.free_memory.find_free_memory", lambda device: 1000)
    for call in (spectrum, density, hutch_plus_plus):
        with pytest.raises(SteppeError, match="GiB are free"):
            call(loss.hessian(w))
    monkeypatch.setattr("steppe.flatness.free_memory.find_free_memory", lambda device: 10)
    with pytest.raises(SteppeError, match="graph of 1 example needs"):  # halved until there is nothing left to halve
        make("mlp", memory_limit=0)[0].gradient(w)


def test_a_containers_limit_counts(tmp_path):
    assert free_memory.find_free_in_container(tmp_path) == math.inf
    for name, text in {"max": "1000", "current": "700", "stat": "anon 300\ninactive_file 150"}.items():
        (tmp_path / f"memory.{name}").write_text(text + "\n")
    assert free_memory.find_free_in_container(tmp_path) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory.find_free_in_container(tmp_path) == math.inf
    assert 0 < free_memory.find_free_memory(torch.device("cpu")) < 1 << 50


def test_a_loss_that_is_linear_is_flat():
    task = Task(nn.Linear(3, 1, bias=False).double(), loss=lambda outputs, _: outputs[:, 0])
    loss = Loss(task, Sample("line", torch.randn(4, 3).double(), torch.zeros(4)))
    assert spectrum(loss.hessian(task.x0), top=1).lambda1 == 0


def test_results_can_be_stored(dense, tmp_path):
    loss, w, _ = dense
    result = {"spectrum": spectrum(loss.hessian(w), top=2, bottom=1), "trace": hutchinson(loss.hessian(w), 4),
              "density": density(loss.hessian(w), probes=2, steps=4, points=20_000)}  # fmt: skip
    text = json.loads(json.dumps(as_json(result), allow_nan=False))
    assert text["spectrum"]["top"]["values"] == result["spectrum"].top.values.tolist()
    assert text["trace"] == result["trace"]._asdict()
    assert "grid" not in text["density"]  # too large for JSON
    np.savez(tmp_path / "a.npz", **as_arrays(result))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["spectrum.top.vectors"], result["spectrum"].top.vectors.numpy())
        assert file["density.grid"].shape == (20_000,)
