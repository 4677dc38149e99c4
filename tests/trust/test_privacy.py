"""Differential privacy: ε against integrals and published values, clip, sensitivity, what the server may see."""

from __future__ import annotations

import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, signal, stats
from torch.utils._pytree import tree_leaves

import steppe
from steppe.algorithms import CATALOGUE
from steppe.core.algorithm import Algorithm
from steppe.core.client import Reply, Sent, list_uploads, make_empty_replies
from steppe.core.errors import SteppeError
from steppe.core.noise import gaussian, uniform
from steppe.core.server import Server, aggregate
from steppe.core.stacking import joint_norms, scale_rows
from steppe.engine.accountant import compute_epsilon
from steppe.parts.differential_privacy import DifferentialPrivacy
from steppe.parts.server_optimisers import ServerMomentum
from steppe.parts.sgd import SGD
from steppe.registry import parse_addition
from steppe.report.read_runs import read
from tests.conformance.problem import CLIENTS, LR, algorithm, run, task
from tests.scene import bits, blobs, launch, records, seeded

DELTA = 1e-5
counted = pytest.importorskip("dp_accounting", reason="the accountant is the extra `dp`")


# --- the accountant


def moment(order: int, rate: float, sigma: float) -> float:
    """log E_{z~N(0,σ²)} [((1−q) + q · N(z; 1, σ²)/N(z; 0, σ²))^α], by quadrature: nothing of a binomial series."""

    def integrand(z: float) -> float:
        ratio = (1 - rate) + rate * math.exp((2 * z - 1) / (2 * sigma**2))
        return math.exp(order * math.log(ratio) + stats.norm.logpdf(z, 0, sigma))

    # The mass lies between the two centres of the largest and the smallest term of the power.
    found, _ = integrate.quad(integrand, -12 * sigma, order + 12 * sigma, limit=500, points=[0, order / 2, order])
    return math.log(found)


def by_quadrature(sigma: float, rate: float, rounds: int, orders: list[int], conversion: str) -> float:
    told = []
    for a in orders:
        spent = rounds * moment(a, rate, sigma) / (a - 1)
        if conversion == "old":  # Mironov 2017, proposition 3
            told.append(spent + math.log(1 / DELTA) / (a - 1))
        else:  # Canonne, Kamath & Steinke 2020, proposition 12
            told.append(spent + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1))
    return min(told)


def spent_at(epsilon_: float, sigma: float, rate: float, rounds: int, up: bool) -> float:
    """δ(ε) of the sampled mechanism from the definition, above or below the truth by rounding losses up or down.

    The loss of one round, with the client (P) against without (Q), is log(dP/dQ); both orders of the pair are taken.
    Its distribution is put on a grid cell by cell, rounds are a convolution, and δ = E_P [1 − exp(ε − loss)]₊.
    """
    grid = 2e-4
    z = np.linspace(-9 * sigma, 1 + 9 * sigma, 200_001)
    ratio = (1 - rate) + rate * np.exp((2 * z - 1) / (2 * sigma**2))
    without = stats.norm.cdf(z, 0, sigma)
    with_ = (1 - rate) * without + rate * stats.norm.cdf(z, 1, sigma)
    worst = 0.0
    for mass, loss in ((np.diff(with_), np.log(ratio)), (np.diff(without), -np.log(ratio))):
        ends = np.maximum(loss[1:], loss[:-1]) if up else np.minimum(loss[1:], loss[:-1])
        cells = (np.ceil if up else np.floor)(ends / grid).astype(int)
        low = cells.min()
        one = np.bincount(cells - low, mass)
        total = np.array([1.0])
        for _ in range(rounds):
            total = np.maximum(signal.fftconvolve(total, one), 0)
        values = (np.arange(len(total)) + rounds * low) * grid
        beyond = values > epsilon_
        lost = 1 - mass.sum() ** rounds if up else 0.0  # what lies beyond the grid may be all loss
        worst = max(worst, float((total[beyond] * -np.expm1(epsilon_ - values[beyond])).sum()) + lost)
    return worst


@pytest.mark.parametrize(("sigma", "rate", "rounds"), [(1.0, 0.1, 1), (1.0, 0.1, 8), (2.0, 0.25, 10), (0.8, 0.3, 4)])
def test_epsilon_of_the_sampled_mechanism_is_above_the_true_one_and_near(
    sigma: float, rate: float, rounds: int
) -> None:
    found = compute_epsilon(sigma, rate, rounds, DELTA)
    assert spent_at(found, sigma, rate, rounds, up=True) <= DELTA * 1.02  # rounded up itself
    assert spent_at(found * 0.98, sigma, rate, rounds, up=False) > DELTA
    assert found < by_quadrature(sigma, rate, rounds, list(range(2, 13)), "new")


def test_a_tiny_delta_is_left_to_the_renyi_bound() -> None:
    """Its rounding is relative; that of a transform is not."""
    assert (
        compute_epsilon(1.0, 0.1, 30, 1e-9)
        < compute_epsilon(1.0, 0.1, 30, 1e-11)
        < compute_epsilon(1.0, 0.1, 30, 1e-200)
        < math.inf
    )


def test_the_integral_gives_published_values() -> None:
    """δ = 1e-5. TensorFlow Privacy's tutorial: 60000 samples, batches of 256, σ = 1.12, 60 epochs: ε = 2.92. Abadi et
    al. (CCS 2016): q = 0.01, σ = 4, 10000 steps: ε = 1.26. Both by an older conversion than ours, which is tighter.
    """
    assert by_quadrature(1.12, 256 / 60000, 14062, list(range(2, 31)), "old") == pytest.approx(2.92, abs=0.01)
    assert 2.2 < compute_epsilon(1.12, 256 / 60000, 14062, DELTA) < 2.52
    assert by_quadrature(4.0, 0.01, 10000, list(range(2, 31)), "old") == pytest.approx(1.26, abs=0.01)
    assert 0.9 < compute_epsilon(4.0, 0.01, 10000, DELTA) < 1.04


@pytest.mark.parametrize(("sigma", "rounds"), [(1.0, 1), (1.0, 30), (5.0, 100)])
def test_epsilon_without_sampling_is_above_the_exact_one_and_near(sigma: float, rounds: int) -> None:
    """T Gaussian mechanisms are one with σ/√T; its exact δ(ε) is known (Balle & Wang, ICML 2018)."""
    mu = math.sqrt(rounds) / sigma

    def delta(e: float) -> float:
        return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)

    found = compute_epsilon(sigma, 1.0, rounds, DELTA)
    assert delta(found) <= DELTA
    assert delta(found * 0.999) > DELTA


def test_epsilon_at_its_limits() -> None:
    assert compute_epsilon(1.0, 0.1, 0, DELTA) == 0
    assert compute_epsilon(0.0, 0.1, 1, DELTA) == math.inf
    assert (
        compute_epsilon(1.0, 0.1, 10, DELTA)
        < compute_epsilon(1.0, 0.1, 11, DELTA)
        < compute_epsilon(1.0, 1.0, 11, DELTA)
    )


# --- the noise


def test_noise_is_normal_and_a_function_of_its_key() -> None:
    drawn = gaussian(b"k", "a", 200_001)
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 0.01
    assert len(drawn) == 200_001
    assert abs(float(np.corrcoef(drawn[:100_000], drawn[100_000:200_000])[0, 1])) < 0.01
    assert not (drawn == gaussian(b"k", "b", 200_001)).any()
    assert not (drawn == gaussian(b"l", "a", 200_001)).any()
    even = uniform(b"k", "a", 100_000)
    assert stats.kstest(even.numpy(), "uniform").pvalue > 0.01
    assert uniform(b"k", "a", 0).shape == (0,)


def test_the_noise_that_is_added_has_the_scale_that_is_counted() -> None:
    dp = DifferentialPrivacy(clip=0.5, noise=3.0, per_round=4, seed=1)
    rows = {"update": torch.zeros(2, 100_000).double(), "p.c": torch.zeros(2, 50_000).double()}
    out = dp.reduce(scale_rows(rows, dp.screen(joint_norms(rows))), scope())
    for value in out.values():
        assert float(value.std()) == pytest.approx(3.0 * 0.5 / 4, rel=0.02)
    assert abs(float(np.corrcoef(out["update"][:50_000], out["p.c"])[0, 1])) < 0.02


def scope(round_: int = 0) -> Any:
    one = torch.ones(())
    return steppe.ServerTurn(task().layout, one, one, torch.tensor(float(round_)), {}, CLIENTS)


def test_a_secret_key_is_made_kept_and_never_used_for_two_sums(tmp_path: Path) -> None:
    path = tmp_path / "key"
    dp = DifferentialPrivacy(secret=str(path), per_round=2)
    zeros = {"update": torch.zeros(2, 50)}
    first = dp.reduce(zeros, scope())["update"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == 32
    assert torch.equal(dp.reduce(zeros, scope())["update"], first)  # a round that is played again
    assert not (dp.reduce(zeros, scope(1))["update"] == first).any()
    assert not (
        DifferentialPrivacy(secret=str(tmp_path / "other"), per_round=2).reduce(zeros, scope())["update"] == first
    ).any()
    # Another run with the same key: were the noise the same, the difference of the two models would be free of it.
    other = torch.zeros(2, 50)
    other[0, 0] = 0.5
    assert int((dp.reduce({"update": other}, scope())["update"] == first).sum()) == 0
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="too few for a secret"):
        dp.reduce(zeros, scope())
    with pytest.raises(ValueError, match="cannot be written"):
        DifferentialPrivacy(secret=str(tmp_path / "no" / "key"), per_round=2).key()


def test_everybody_is_drawn_by_itself() -> None:
    dp = DifferentialPrivacy(per_round=3, seed=5)
    rounds = [dp.sample(10, t) for t in range(2000)]
    counts = np.bincount([i for ids in rounds for i in ids], minlength=10)
    assert stats.chisquare(counts).pvalue > 0.01  # everybody alike
    sizes = np.bincount([len(ids) for ids in rounds], minlength=11)
    expected = 2000 * stats.binom.pmf(np.arange(11), 10, 0.3)
    assert (
        stats.chisquare(np.append(sizes[:7], sizes[7:].sum()), np.append(expected[:7], expected[7:].sum())).pvalue
        > 0.01
    )
    assert [] in rounds  # an empty round is a round


# --- what the server may see


def private(name: str, **settings: Any) -> Algorithm:
    variant = {"variant": "lagged"} if name == "fedscar" else {}
    given = {"clip": 1.0, "noise": 0.0, "per_round": 3, "clients": CLIENTS, **settings}
    return algorithm(name, variant, add=(DifferentialPrivacy(**given),))


def random_replies(alg: Algorithm, n: int, seed: int) -> tuple[Sent, Reply]:
    """Any uploads whatever, of the right shapes: what training would make of data does not matter here."""
    x0, g = task().x0, torch.Generator().manual_seed(seed)
    down = {p.name: {k: p.server_state(x0)[k] for k in p.down} for p in alg.parts if p.down}
    sent = Sent(x0, down, {}, x0.new_tensor(LR), x0.new_tensor(2.0))
    empty = make_empty_replies(alg, task(), sent)

    def filled(v: torch.Tensor) -> torch.Tensor:
        return torch.randn(n, *v.shape[1:], generator=g, dtype=v.dtype) * 10 ** torch.empty(1).uniform_(
            -2, 1, generator=g
        )

    up = {p: {k: filled(v) for k, v in tensors.items()} for p, tensors in empty.up.items()}
    return sent, empty._replace(update=filled(empty.update), up=up)


NAMES = [name for name in CATALOGUE if name not in ("local", "fednova")]  # one sends nothing, one is refused


@pytest.mark.parametrize("name", NAMES)
def test_one_client_moves_what_is_released_by_the_clip_at_most(name: str) -> None:
    """All sums together, of every upload: with and without each of the clients in turn."""
    alg = private(name, clip=0.7)
    dp = next(p for p in alg.parts if isinstance(p, DifferentialPrivacy))
    rows = list_uploads(alg, random_replies(alg, 5, seed=1)[1])

    def released(keep: list[int]) -> torch.Tensor:
        kept = {k: v[keep] for k, v in rows.items()}
        out = dp.reduce(scale_rows(kept, dp.screen(joint_norms(kept))), scope())
        return torch.cat([3 * v.reshape(-1) for v in out.values()])  # the sums themselves

    whole = released([0, 1, 2, 3, 4])
    moved = [float((whole - released([i for i in range(5) if i != gone])).norm()) for gone in range(5)]
    assert max(moved) <= 0.7 * (1 + 1e-12)
    assert max(moved) > 0.69  # the bound is reached, so the noise is not larger than it must be


@dataclass(frozen=True)
class Sealed(DifferentialPrivacy):
    """Releases the same numbers whatever it is given: what then differs was seen behind its back."""

    def reduce(self, rows: Any, s: Any) -> Any:
        g = torch.Generator().manual_seed(3)
        return {k: torch.randn(v.shape[1:], generator=g, dtype=v.dtype) for k, v in rows.items()}


@dataclass(frozen=True)
class Curious(steppe.Part):
    """Looks at whatever a server rule can look at, without saying so."""

    name = "curious"

    def client_state(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"own": x.clone()}

    def prepare(self, rows: dict[str, torch.Tensor], s: steppe.ServerTurn) -> None:
        assert not rows

    def server(self, delta: torch.Tensor, s: steppe.Aggregation) -> torch.Tensor:
        assert s.active == 3
        with pytest.raises(SteppeError, match="does not see"):
            s.states_of_all("own")
        return delta


def test_a_part_of_ones_own_sees_no_single_client() -> None:
    run(Algorithm((Curious(), DifferentialPrivacy(per_round=3), SGD())), rounds=1)
    with pytest.raises(AssertionError):
        run(Algorithm((Curious(), SGD())), rounds=1)  # it does look


@pytest.mark.parametrize("name", NAMES)
def test_the_server_acts_on_what_is_released_and_on_nothing_else(name: str) -> None:
    """Two rounds with other replies, another number of them, other weights and other clients: the same server."""
    variant = {"variant": "lagged"} if name == "fedscar" else {}
    alg = algorithm(name, variant, add=(Sealed(per_round=3, clients=CLIENTS),))
    x0, after = task().x0, []
    for n, seed in ((4, 1), (2, 2)):
        sent, replies = random_replies(alg, n, seed)
        weights = torch.rand(n, generator=torch.Generator().manual_seed(seed)).double() + 0.1
        before = Server(x0, alg.server_state(x0), {})
        after.append(aggregate(alg, task().layout, before, sent, replies, weights, CLIENTS))
    assert not torch.equal(after[0].x, x0)
    for p, q in zip(tree_leaves(after[0]), tree_leaves(after[1]), strict=True):
        assert torch.equal(p, q)


def test_a_frozen_head_stays_as_it_is_under_noise() -> None:
    server = run(private("fedbabu", noise=1.0), rounds=2)[0]
    head = task().layout.mask("head")
    assert torch.equal(server.x[head], task().x0[head])
    assert not torch.isclose(server.x[~head], task().x0[~head]).any()


def test_an_empty_round_is_pure_noise() -> None:
    alg = private("fedavg", noise=2.0)
    sent, replies = random_replies(alg, 0, 0)
    after = aggregate(alg, task().layout, Server(task().x0, alg.server_state(task().x0), {}), sent, replies,
                      torch.zeros(0).double(), CLIENTS)  # fmt: skip
    moved = after.x - task().x0
    assert float(moved.std()) == pytest.approx(2 / 3, rel=0.2)


# --- runs


QUIET: dict[str, Any] = {"algorithm": "fedavg", "clients": 30, "per_round": 10, "partition": "iid", "epochs": 1}


def test_epsilon_is_in_every_record_and_in_the_summary(tmp_path: Path) -> None:
    result = launch(tmp_path / "run", add=["dp:clip=0.5,noise=0.8"], rounds=4, **QUIET)
    told = [r["epsilon"] for r in records(tmp_path / "run")]
    assert told == [compute_epsilon(0.8, 1 / 3, t, DELTA) for t in (1, 2, 3, 4)]
    assert (result.summary["epsilon"], result.summary["delta"]) == (told[-1], DELTA)
    assert (result.config.sampling, result.config.weighting) == ("bernoulli", "uniform")
    notes = " ".join(result.notes)
    assert "each drawn with probability 0.333333" in notes
    assert "anyone who knows the seed" in notes
    assert f"about {0.8 * 163**0.5 / 10:.3g} times the largest possible update (163 parameters, 10 clients" in notes
    assert "validation" not in notes
    whole = launch(add=["dp:clip=0.5,noise=0.8"], rounds=2, **QUIET)
    assert bits(whole.x) != bits(result.x)


def test_a_resumed_run_has_the_same_noise(tmp_path: Path) -> None:
    options = {**QUIET, "add": ["dp:clip=0.5,noise=0.8"]}
    whole = launch(rounds=4, **options)
    launch(tmp_path / "run", rounds=2, **options)
    again = launch(tmp_path / "run", resume=True, rounds=4, **options)
    assert bits(again.x) == bits(whole.x)
    assert again.history[-1]["epsilon"] == whole.history[-1]["epsilon"]


def test_rounds_without_anybody(tmp_path: Path) -> None:
    """One in six on average: many rounds are empty, count as rounds, and move the model by noise."""
    result = launch(tmp_path / "run", algorithm="scaffold", per_round=1, rounds=8, add=["dp:clip=1,noise=0.01"])
    empty = [r for r in result.history if r["clients"] == 0]
    assert empty
    assert all(r["update_norm"] > 0 and "train_loss" not in r and "epsilon" in r for r in empty)
    assert len(records(tmp_path / "run")) == 8
    gradients = read([tmp_path / "run"]).groups[0].runs[0].gradients  # what a report says of the work done
    assert gradients is not None
    assert [int(g) == 0 for g in np.diff(gradients, prepend=0)] == [r["clients"] == 0 for r in result.history]
    assert "divergence" in steppe.analyze(tmp_path / "run", "divergence", model=seeded(), data=blobs())


def test_it_learns_with_enough_clients() -> None:
    """30 clients, all of them every round, 163 parameters: the noise is small beside what is learnt."""
    common = {**QUIET, "per_round": 30, "rounds": 12, "lr": 0.3, "epochs": 2, "partition": "iid"}
    noisy = launch(**common, add=["dp:clip=1,noise=0.5"])
    assert noisy.accuracy > 0.6
    assert noisy.summary["epsilon"] == pytest.approx(compute_epsilon(0.5, 1.0, 12, DELTA))
    assert launch(**common, add=["dp:clip=1,noise=50"]).accuracy < 0.6


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "scaffold", "feddyn", "fedcm"])
def test_without_noise_and_clip_nothing_changes(name: str) -> None:
    common = {**QUIET, "algorithm": name, "sampling": "fixed", "weighting": "uniform", "rounds": 3, "dtype": "float64"}
    plain, none = launch(**common), launch(**common, add=["dp:clip=inf,noise=0,amplified=false"])
    torch.testing.assert_close(none.x, plain.x, rtol=0, atol=1e-12)
    for part, states in plain.server.state.items():
        for key, value in states.items():
            torch.testing.assert_close(none.server.state[part][key], value, rtol=1e-9, atol=1e-12)
    assert none.summary["epsilon"] is None
    assert "gives no protection" in " ".join(none.notes)


@pytest.mark.parametrize(("options", "told"), [
    ({"sampling": "fixed"}, "set sampling = bernoulli, or dp:amplified=false"),
    ({"weighting": "samples"}, "set weighting = uniform"),
    ({"add": ["dp:delta=0.1"]}, "below 1/30"),
    ({"add": ["dp:per_round=3"]}, "per_round of dp is 3, but the run's is 10"),
    ({"add": ["dp:secret=/nowhere/key"]}, "cannot be written"),
])  # fmt: skip
def test_a_run_that_cannot_keep_the_promise_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises((SteppeError, ValueError), match=told):
        launch(**{**QUIET, "add": ["dp"], "rounds": 1, **options})


def test_any_sampling_where_nothing_is_claimed_from_it() -> None:
    result = launch(add=["dp:noise=2,amplified=false"], sampling="fixed", rounds=2, **QUIET)
    assert result.summary["epsilon"] == compute_epsilon(2.0, 1.0, 2, DELTA) > compute_epsilon(2.0, 1 / 3, 2, DELTA)


def test_running_statistics_are_refused() -> None:
    from tests.scene import NormNet

    for text in ("dp", "norm_bound:limit=1"):
        with pytest.raises(SteppeError, match="running statistics"):
            launch(model=seeded(NormNet), add=[text], rounds=1, **{**QUIET, "partition": "iid", "batch": 3})


def test_what_is_open_must_be_known() -> None:
    alg = Algorithm((ServerMomentum(), DifferentialPrivacy(), SGD()))
    with pytest.raises(ValueError, match="set per_round"):
        run(alg, rounds=1)
    assert parse_addition("dp:noise=0.5") == DifferentialPrivacy(noise=0.5)
