"""Where compositions stand still on strongly convex quadratics, with all clients in every round.

A method that makes clients agree (SCAFFOLD, FedDyn and kin) must find the optimum of the mean loss, or of the loss that
it states; the others find what can be computed by hand.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st

from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.geometric_bias import GeometricBias
from steppe.parts.momentum_sam import MomentumSAM
from steppe.parts.relaxed_start import RelaxedStart
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


def alike(curvature, steps, rate=PROBLEM.lr):
    """Clients of one curvature whose optima differ, and the optimum of their mean."""
    eye = (curvature * EYE).tolist()
    clients = [c.model_copy(update={"A": eye}) for c in PROBLEM.clients]
    return quadratics(clients=clients, steps=[steps] * len(clients), lr=rate), sum(B) / len(B)


@pytest.mark.parametrize(
    ("steps", "alpha", "stable"), [(1, 0.1, False), (2, 0.5, True), (2, 3.0, False), (3, 1.0, True)]
)
def test_feddc_as_printed_is_stable_as_it_says(steps, alpha, stable):
    """How far variates and duals are from their means grows as worked out by hand: (c, h) ↦ M (c, h)."""
    a, rate = 1.0, 0.1
    phi = (1 - (1 - rate * (a + alpha)) ** steps) / (rate * steps * (a + alpha))
    pull = alpha * rate * steps
    M = torch.tensor([[-phi, -phi], [-pull * phi, 1 - pull * phi]]).double()
    assert stable == (phi * (2 + pull) < 2) == (float(torch.linalg.eigvals(M).abs().max()) < 1)
    seen = play(Composition("feddc", {"alpha": alpha}, (), "sgd").built(), always(60), alike(a, steps, rate)[0])

    def apart(found):  # the variate of client 0 from the mean; −h_i would do as well
        rows = torch.stack([found.rows[i]["control_variates"]["c"] for i in sorted(found.rows)])
        duals = torch.stack([found.rows[i]["dynamic_regularisation"]["h"] for i in sorted(found.rows)])
        return torch.stack([rows[0] - rows.mean(0), duals[0] - duals.mean(0)])

    still = torch.stack([torch.zeros(3).double(), a * (alike(a, steps)[1] - B[0])])  # c_i = 0, and h_i the gradient
    for before, after in pairwise(seen[10:]):
        torch.testing.assert_close(apart(after) - still, M @ (apart(before) - still), rtol=1e-7, atol=1e-7)


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
    # FedWMSAM's limit is that of another decay: see test_momentum_makes_decay_stronger.
    optimisers = ["sgd", "sgd, momentum"] + ["sgd, decay"] * (first.name != "momentum_sam")
    # Uploads that do not vanish at the optimum: see test_duals_within_the_update_are_bounded_with_it.
    if getattr(first, "over", "") == "active" or getattr(first, "gain", None) is not None:
        more = [p for p in more if p.name != "norm_bound"]
    entry = draw(st.sampled_from(["fedavg", "fednova"]))
    return Composition(entry, {}, (*more, first), draw(st.sampled_from(optimisers)))


@generated("a method that makes clients agree finds the optimum with other parts", 3, 60, 40, composition=agreeing())
def test_harmless_parts_keep_the_optimum(composition, algorithm):
    alpha = next((p.alpha for p in composition.add if p.name == "client_momentum"), 1.0)  # which scales g, not decay
    target = optimum(0.1 / alpha if composition.optimiser == "sgd, decay" else 0.0)
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


@pytest.mark.parametrize(("entry", "alpha"), [("fedcm", 0.2), ("fedwmsam", 0.5)])
def test_momentum_makes_decay_stronger(entry, alpha):
    """α g(w) + (1−α) D + λ w vanishes with D where g(w) + (λ/α) w does."""
    more = {"rho": 0.0, "adapt": 0.0} if entry == "fedwmsam" else {}
    steps = PROBLEM.steps if entry == "fedwmsam" else [1] * len(A)  # FedCM does not make clients agree
    found = limit(Composition(entry, {"alpha": alpha, **more}, (), "sgd, decay").built(), quadratics(steps=steps))
    torch.testing.assert_close(found, optimum(0.1 / alpha), rtol=0, atol=1e-6)
    assert float((found - optimum(0.1)).norm()) > 0.01


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_the_official_order_of_feddyn_with_a_clip(alpha):
    """clip(g − h_i − αx) + αx = 0 needs α‖x‖ ≤ clip: the optimum, if it is so near to 0; else the ball's edge."""
    clip = 0.5
    found = limit(Composition("feddyn", {"alpha": alpha, "variant": "official"}, (), "sgd, clip").built())
    inside = float(optimum().norm()) < clip / alpha
    assert inside == (alpha == 0.5)
    assert (float((found - optimum()).norm()) < CLOSE) == inside
    assert float(found.norm()) == pytest.approx(min(clip / alpha, float(optimum().norm())), abs=1e-5)
    textbook = limit(Composition("feddyn", {"alpha": alpha}, (), "sgd, clip").built())
    torch.testing.assert_close(textbook, optimum(), rtol=0, atol=1e-6)


def test_fedwmsam_under_a_bound_still_finds_the_optimum():
    """v_i is of order 1 and counts in the norm, so a small limit shrinks every upload: slower, and not elsewhere."""
    settings = {"rho": 0.0, "alpha": 0.5}
    bounded, free = (play(Composition("fedwmsam", settings, add, "sgd").built(), always(400), until=stands_still)
                     for add in ((part_named("norm_bound"),), ()))  # fmt: skip
    torch.testing.assert_close(bounded[-1].judged, optimum(), rtol=0, atol=CLOSE)
    assert len(bounded) > 3 * len(free)


# ------------------------------------------------------------------------------------------- what is known to fail
def test_duals_within_the_update_are_bounded_with_it():
    """FedSpeed as printed uploads w_i − h_i/α, and h_i does not vanish: a bound biases it, but not `official`."""
    settings, bound = {"rho": 0.0, "alpha": 1.0}, (part_named("norm_bound"),)
    printed = limit(Composition("fedspeed", settings, bound, "sgd").built())
    assert 0.1 < float((printed - optimum()).norm()) < 0.3
    assert distance(Composition("fedmoswa", {"gamma": 0.5}, bound, "sgd").built(), optimum()) > 0.1  # so is c_i⁺ − c
    official = limit(Composition("fedspeed", {**settings, "variant": "official"}, bound, "sgd").built())
    torch.testing.assert_close(official, optimum(), rtol=0, atol=CLOSE)


def test_duals_within_the_update_have_its_weights():
    """The optimum of the mean by samples, where `over=all` finds that of the plain mean."""
    sizes = [c.n for c in PROBLEM.clients]
    found = limit(
        Composition("fedspeed", {"rho": 0.0, "alpha": 1.0}, (), "sgd").built(), quadratics(weighting="samples")
    )
    torch.testing.assert_close(found, root([n * a for n, a in zip(sizes, A, strict=True)]), rtol=0, atol=CLOSE)


def test_fednova_as_released_diverges_with_all_clients():
    """D_t = g(x_t) − D_{t−1} and x_{t+1} = x_t − ηD_t: the roots of z² + ηa z − 1 are on both sides of the circle."""
    a, rate = 1.2, 0.2
    problem, target = alike(a, 1, rate)
    seen = play(Composition("fednova", {"variant": "official"}, (), "sgd").built(), always(120), problem)
    grows = (rate * a + ((rate * a) ** 2 + 4) ** 0.5) / 2
    far = [float((s.server.x - target).norm()) for s in seen]
    assert far[-1] / far[-2] == pytest.approx(grows, rel=1e-3)
    assert grows > 1.1
    nova, ccvr = (distance(Composition("fednova", {"variant": variant}, (), "sgd").built(), optimum(), 60)
                  for variant in ("nova", "ccvr"))  # fmt: skip
    assert 0.05 < ccvr < nova < 0.12  # biased, and standing still


def test_fedsol_along_feddyns_term_keeps_the_model_but_not_the_duals():
    seen = play(Composition("fedsol", {"proximal": "feddyn", "rho": 0.05}, (), "sgd").built(), always(150))
    h = [
        max(float(row["proximal_ascent"]["h"].norm()) for row in s.rows.values())
        for s in (seen[49], seen[99], seen[149])
    ]
    assert h[2] - h[1] == pytest.approx(h[1] - h[0], rel=1e-3)  # by α‖Δ_i‖ per round
    assert h[2] > 9
    assert float((seen[149].server.x - seen[99].server.x).norm()) < 1e-4
    assert float(seen[149].server.state["proximal_ascent"]["h"].norm()) < 1e-4


@pytest.mark.parametrize("add", [(), ("relaxed_start",), ("geometric_bias",)], ids="+".join)
def test_fednovas_d_is_the_mean_of_all_while_all_take_part(add):
    alg = Composition("fednova", {"variant": "ccvr"}, tuple(map(part_named, add)), "sgd, momentum").built()
    for problem in (PROBLEM, quadratics(weighting="samples")):
        for found in play(alg, always(6), problem):
            sizes = torch.tensor([float(c.n) for c in problem.clients]).double()
            shares = sizes / sizes.sum() if problem.weighting == "samples" else torch.full_like(sizes, 1 / len(A))
            own = torch.stack([found.rows[i]["normalised_averaging"]["d"] for i in range(len(A))])
            torch.testing.assert_close(
                found.server.state["normalised_averaging"]["d"], shares @ own, rtol=0, atol=1e-12
            )


def test_fednovas_directions_are_measured_from_the_start():
    """Both kinds of a relaxed start begin the second round alike and upload something else."""
    found = [play(Composition("fednova", {"variant": "ccvr"}, (RelaxedStart(0.5, kind),), "sgd").built(), always(2))
             for kind in ("official", "paper")]  # fmt: skip
    for i in range(len(A)):
        official, paper = (seen[-1].rows[i]["normalised_averaging"]["d"] for seen in found)
        torch.testing.assert_close(official, paper, rtol=0, atol=1e-12)
    assert float((found[0][-1].server.x - found[1][-1].server.x).norm()) > 0.01
