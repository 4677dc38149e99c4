"""Where compositions stand still on strongly convex quadratics, with all clients in every round.

A method that makes clients agree (SCAFFOLD, FedDyn and kin) must find the optimum of the mean loss, or of the loss that
it states; the others find what can be computed by hand.
"""

import pytest
import torch
from hypothesis import strategies as st

from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.geometric_bias import GeometricBias
from steppe.parts.momentum_sam import MomentumSAM
from steppe.parts.sam import SAM
from steppe.registry import PARTS
from tests.conformance.compatibility import (
    CLOSE,
    NAMES,
    SHIFTS,
    distance,
    optimum,
    part_named,
    stands_still,
)
from tests.conformance.compositions import PROBLEM, Composition, always, play, quadratics
from tests.conformance.test_invariants import generated

A = [torch.tensor(c.A, dtype=torch.float64) for c in PROBLEM.clients]
B = [torch.tensor(c.b, dtype=torch.float64) for c in PROBLEM.clients]
EYE = torch.eye(len(PROBLEM.x0)).double()


def root(matrices):
    """Where Σ M_i (x − b_i) = 0."""
    return torch.linalg.solve(sum(matrices), sum(m @ b for m, b in zip(matrices, B, strict=True)))


def travelled(a, steps, rate=PROBLEM.lr):
    """I − (I − ηA)^K: how far K steps of gradient descent lead from x towards the optimum."""
    return EYE - torch.linalg.matrix_power(EYE - rate * a, steps)


def limit(algorithm, problem=PROBLEM, rounds=400):
    seen = play(algorithm, always(rounds), problem, until=stands_still)
    assert stands_still(seen), "it does not stand still"
    return seen[-1].judged


# ------------------------------------------------------------------------------- methods that make clients agree
AGREEING = {
    "scaffold": {}, "scaffold ": {"divisor": "steps"}, "feddyn": {"alpha": 1.0},
    "feddyn ": {"alpha": 1.0, "variant": "official"}, "feddc": {"alpha": 1.0, "variant": "official"},
    "fedgamma": {"rho": 0.0}, "fedspeed": {"rho": 0.0, "alpha": 1.0},
    "fedspeed ": {"rho": 0.0, "alpha": 1.0, "variant": "official"}, "fedsmoo": {"rho": 0.0, "alpha": 1.0},
    "fedlesam_s": {"rho": 0.0}, "fedlesam_d": {"rho": 0.0, "alpha": 1.0},
    "fedgloss": {"rho": 0.0, "rho_client": 0.0, "beta": 1.0},
    "fedgloss ": {"rho": 0.0, "rho_client": 0.0, "beta": 1.0, "variant": "official"},
    "fedgmt": {"beta": 1.0, "keep": 0.5}, "fedgmt ": {"beta": 1.0, "keep": 0.5, "variant": "v2"},
    "fedscar": {"alpha": 0.0, "beta": 0.5, "prox": "square", "anchor": "global"},
    "fedscar ": {"alpha": 0.0, "beta": 0.5, "prox": "none", "variant": "lagged"},
    "fedwmsam": {"rho": 0.0, "alpha": 0.5}, "fedmoswa": {"gamma": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("entry", AGREEING)
def test_methods_that_make_clients_agree_find_the_optimum(entry):
    algorithm = Composition(entry.strip(), AGREEING[entry], (), "sgd").built()
    assert distance(algorithm, optimum(), 400) < CLOSE


@pytest.mark.parametrize(("alpha", "near"), [(0.1, True), (1.0, False)])
def test_feddc_as_printed_needs_a_small_alpha(alpha, near):
    """Its variates contain their own correction, so they swing from round to round, and a strong pull feeds that."""
    seen = play(Composition("feddc", {"alpha": alpha}, (), "sgd").built(), always(120))
    far = [float((s.server.x - optimum()).norm()) for s in seen]
    assert (far[-1] < far[20] / 2) == near
    assert (far[-1] > far[20]) != near


HARMLESS = tuple(name for name in NAMES if name in PARTS and name not in SHIFTS)
CONSENSUS = [ControlVariates(), ControlVariates(scale=0.5), ControlVariates(gain=0.5), DynamicRegularisation(1.0),
             DynamicRegularisation(0.5, prox="none"), DynamicRegularisation(1.0, "active"),
             DynamicRegularisation(1.0, order="official"), MomentumSAM(rho=0.0, alpha=0.5),
             GeometricBias(alpha=0.0, beta=0.5, prox="square", anchor="global")]  # fmt: skip


@st.composite
def agreeing(draw):
    """A part that makes clients agree, and up to two that should not keep it from that."""
    first = draw(st.sampled_from(CONSENSUS))
    more = [
        part_named(n) for n in draw(st.lists(st.sampled_from(HARMLESS), unique=True, max_size=2)) if n != first.name
    ]
    # FedWMSAM's momentum carries the decay of the round before: its limit is near the decayed optimum, not there.
    optimisers = ["sgd", "sgd, momentum"] + ["sgd, decay"] * (first.name != "momentum_sam")
    return Composition("fedavg", {}, (*more, first), draw(st.sampled_from(optimisers)))


@generated(3, 60, composition=agreeing())
def test_harmless_parts_keep_the_optimum(composition, algorithm):
    target = optimum(0.1 if composition.optimiser == "sgd, decay" else 0.0)
    assert distance(algorithm, target, 400) < CLOSE


@pytest.mark.parametrize("part", [ControlVariates(), DynamicRegularisation(1.0)], ids=lambda p: p.name)
def test_sam_inside_solves_for_the_gradients_uphill(part):
    """Σ_i g_i(x + ρ unit(g_i(x))) = 0, by hand."""
    x = limit(Composition("fedavg", {}, (SAM(0.05), part), "sgd").built())
    gradients = [a @ (x - b) for a, b in zip(A, B, strict=True)]
    total = sum(a @ (x + 0.05 * g / g.norm() - b) for a, b, g in zip(A, B, gradients, strict=True))
    assert float(total.norm()) < 1e-5
    assert float(sum(gradients).norm()) > 1e-3


def test_per_fedavg_with_control_variates_finds_the_optimum_after_one_step():
    alg = Composition("perfedavg", {"inner_lr": 0.1, "outer_lr": 0.2}, (ControlVariates(),), "sgd").built()
    wanted = root([a @ (EYE - 0.1 * a) for a in A])
    torch.testing.assert_close(limit(alg), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("entry", ["scaffold", "feddyn"])
def test_duals_count_clients_alike_whatever_the_weights(entry):
    """The optimum of the plain mean, also where models are averaged by samples."""
    alg = Composition(entry, {} if entry == "scaffold" else {"alpha": 1.0}, (), "sgd").built()
    torch.testing.assert_close(limit(alg, quadratics(weighting="samples")), optimum(), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- the others
SERVER_SIDE = [(), ("server_momentum",), ("ema",), ("nesterov_start",), ("server_adaptive",), ("swa",),
               ("server_momentum", "ema")]  # fmt: skip


@pytest.mark.parametrize("add", SERVER_SIDE, ids="+".join)
def test_the_bias_of_fedavg(add):
    """Clients with more steps and steeper losses pull harder: Σ (I − (I−ηA_i)^K_i)(x − b_i) = 0."""
    wanted = root([travelled(a, k) for a, k in zip(A, PROBLEM.steps, strict=True)])
    found = limit(Composition("fedavg", {}, tuple(map(part_named, add)), "sgd").built())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert float((wanted - optimum()).norm()) > 0.05


def test_the_bias_of_fednova():
    """Directions count alike: Σ (I − (I−ηA_i)^K_i)(x − b_i) / K_i = 0."""
    wanted = root([travelled(a, k) / k for a, k in zip(A, PROBLEM.steps, strict=True)])
    torch.testing.assert_close(limit(Composition("fednova", {}, (), "sgd").built()), wanted, rtol=0, atol=1e-6)


def test_the_bias_of_fedprox():
    """With μ in the Hessian, steps lead a share A(A+μ)⁻¹ of the way: less far, and more alike."""
    mu = 0.5
    there = [torch.linalg.solve(a + mu * EYE, travelled(a + mu * EYE, k) @ a)
             for a, k in zip(A, PROBLEM.steps, strict=True)]  # fmt: skip
    found = limit(Composition("fedprox", {"mu": mu}, (), "sgd").built())
    torch.testing.assert_close(found, root(there), rtol=0, atol=1e-6)


def test_weight_decay_is_a_loss():
    """For a method that makes clients agree: the optimum of f + (λ/2)‖w‖²."""
    for part in (ControlVariates(), DynamicRegularisation(1.0)):
        found = limit(Composition("fedavg", {}, (part,), "sgd, decay").built())
        torch.testing.assert_close(found, optimum(0.1), rtol=0, atol=1e-6)
