"""FedGF, FedSWA, FedMoSWA, FedWMSAM: their limits, what a cycle does to those who count steps, and costs."""

import pytest
import torch
from test_smoo_family import costs_of
from tiny import aggregation, number, same, train

from steppe.core.algorithm import Algorithm
from steppe.core.errors import SettingError
from steppe.engine.quadratics import Problem, trace, trace_algorithm
from steppe.parts.client_momentum import ClientMomentum
from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.mixed_ascent import MixedAscent
from steppe.parts.momentum_sam import MomentumSAM
from steppe.parts.normalised_averaging import NormalisedAveraging
from steppe.parts.rate_cycle import RateCycle
from steppe.parts.relaxed_start import RelaxedStart
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm, parse_addition

CLIENTS = [
    {"A": [[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 0.5]], "b": [1.0, -1.0, 0.5], "n": 30},
    {"A": [[0.5, 0.0, 0.2], [0.0, 1.5, 0.0], [0.2, 0.0, 1.0]], "b": [-0.5, 0.8, -1.0], "n": 10},
    {"A": [[1.0, -0.2, 0.0], [-0.2, 0.8, 0.3], [0.0, 0.3, 2.0]], "b": [0.2, 0.4, 1.2], "n": 20},
]
RECIPE = SGD(0.0, 0.001, 10.0)


def toy(**change):
    start = {"clients": CLIENTS, "x0": [0.5, -0.5, 0.25], "tensors": [2, 1], "rounds": [[0, 1], [1, 2], [0, 2], [1]],
             "steps": [3, 2, 4], "lr": 0.1, "lr_decay": 0.9, "weight_decay": 0.01}  # fmt: skip
    return Problem(**{**start, **change})


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


def xs(name, settings=None, problem=None, add=()):
    return tensor([r["x"] for r in trace(name, problem or toy(), settings, add)["rounds"]])


# ---------------------------------------------------------------------------------------------------------- FedGF
def test_fedgf_without_divergence_is_fedsam():
    same(xs("fedgf", {"rho": 0.1, "threshold": float("inf")}), xs("fedsam", {"rho": 0.1, "eps": 1e-16}), 1e-14)
    same(xs("fedgf", {"rho": 0.0, "threshold": float("inf")}), xs("fedavg"), 1e-14)


def told(x, state, distance):
    """What the server sees after a round in which the clients moved this far."""
    s = aggregation(None, x, state)
    s.up["distance"] = number(distance)
    return s


def test_fedgf_c_is_the_share_of_the_last_rounds():
    """The window forgets its oldest round, and is not full at first."""
    part, x = MixedAscent(0.1, threshold=1.0, window=3), tensor([0.0, 0.0])
    state, shares = part.server_state(x), []
    for distance in (2.0, 0.5, 2.0, 2.0, 0.5, 0.5, 0.5):
        part.settle(x + 1, told(x, state, distance))
        shares.append(float(state["c"]))
    assert shares == pytest.approx([1, 1 / 2, 2 / 3, 2 / 3, 2 / 3, 1 / 3, 0])


def test_fedgf_point_lies_back_along_the_update():
    part, x = MixedAscent(0.1, rho_global=0.5), tensor([1.0, 2.0])
    s = told(x, part.server_state(x), 1)
    part.settle(x + tensor([3.0, 4.0]), s)
    same(s.state["point"], tensor([4.0, 6.0]) - 0.5 * tensor([0.6, 0.8]))
    part.settle(x, s)  # nothing moved
    same(s.state["point"], x)


def test_fedgf_looks_at_the_servers_point_alone_once_c_is_one():
    """All gradients of the second round are the same, so the local steps add up to K times one step."""
    problem = toy(weight_decay=0.0, lr_decay=1.0, rounds=[[0, 1], [2]])
    first, second = trace("fedgf", problem, {"threshold": 1e-9})["rounds"]
    point, client = tensor(first["server"]["mixed_ascent"]["point"]), CLIENTS[2]
    g = tensor(client["A"]) @ (point - tensor(client["b"]))
    same(tensor(second["local"]["2"]), tensor(first["x"]) - 4 * 0.1 * g)


# --------------------------------------------------------------------------------------------------- the rate cycle
def test_a_flat_cycle_is_none():
    same(xs("fedswa", {"end": 1.0, "server_lr": 1.0}), xs("fedavg"), 1e-14)
    same(xs("fedmoswa", {"end": 0.4, "server_lr": 1.2})[0], xs("fedswa", {"end": 0.4, "server_lr": 1.2})[0], 1e-14)
    for name in ("scaffold", "fedsmoo", "fedwmsam", "perfedavg"):
        same(xs(name, add=["rate_cycle:end=1"]), xs(name), 1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_cycle_is_a_schedule_of_pytorch(momentum):
    """One client alone, against torch's SGD with a LambdaLR of its own."""
    problem = toy(clients=CLIENTS[:1], rounds=[[0]], steps=[5], momentum=momentum)
    w = tensor(problem.x0).requires_grad_()
    optimiser = torch.optim.SGD([w], lr=0.1, momentum=momentum, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 2.0 * ((1 - k / 5) + k / 5 * 0.3))
    A, b = tensor(CLIENTS[0]["A"]), tensor(CLIENTS[0]["b"])
    for _ in range(5):
        optimiser.zero_grad()
        (0.5 * (w - b) @ A @ (w - b)).backward()
        optimiser.step()
        schedule.step()
    same(xs("fedavg", problem=problem, add=["rate_cycle:end=0.3,first=2"])[0], w.detach(), 1e-14)


def constant(**change):
    """Gradients that hardly depend on w: −A b, with A tiny and b far away. What each client's is, and the problem."""
    slopes = [[1.0, -2.0, 0.5], [0.3, 0.4, -1.0], [-2.0, 1.0, 0.0]]
    tiny = (1e-9 * torch.eye(3)).tolist()
    clients = [
        {"A": tiny, "b": [-1e9 * v for v in slope], "n": n} for slope, n in zip(slopes, (30, 10, 20), strict=True)
    ]
    return tensor(slopes), toy(clients=clients, weight_decay=0.0, **change)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("around", [(), (RateCycle(0.1),), (RateCycle(0.0, 2.0),)], ids=["plain", "cycle", "official"])
def test_who_reads_a_gradient_off_a_displacement_finds_it(momentum, around):
    """Where the gradient is constant, SCAFFOLD's c_i, FedCM's D and FedNova's d_i are it, whatever the steps were."""
    slopes, problem = constant(momentum=momentum, rounds=[[0, 1, 2]])
    sgd = SGD(momentum)

    def first(part):
        return trace_algorithm(Algorithm((part, sgd, *around)), problem)["rounds"][0]

    scaffold, nova = first(ControlVariates()), first(NormalisedAveraging("ccvr"))
    for i in range(3):
        same(tensor(scaffold["clients"][str(i)]["control_variates"]["c"]), slopes[i], 1e-6)
        same(tensor(nova["clients"][str(i)]["normalised_averaging"]["d"]), slopes[i], 1e-6)
    weighted = (slopes * tensor([3.0, 1.0, 2.0])[:, None]).sum(0) / 6
    same(tensor(first(ClientMomentum(1.0))["server"]["client_momentum"]["D"]), weighted, 1e-6)


def test_meta_steps_have_a_rate_of_their_own():
    slopes, problem = constant(rounds=[[0, 1, 2]])
    c = trace("perfedavg", problem, {"outer_lr": 0.03}, ["control_variates"])["rounds"][0]["clients"]
    for i in range(3):
        same(tensor(c[str(i)]["control_variates"]["c"]), slopes[i], 1e-6)


# -------------------------------------------------------------------------------------------------------- FedMoSWA
def test_fedmoswa_is_scaffold_while_all_are_active():
    plain, everyone = {"end": 1.0, "server_lr": 1.0, "gamma": 1.0}, toy(rounds=[[0, 1, 2]] * 4)
    same(xs("fedmoswa", plain, everyone), xs("scaffold", problem=everyone), 1e-13)
    assert not torch.allclose(xs("fedmoswa", plain), xs("scaffold"))


def test_gain_does_not_go_with_the_plain_estimate():
    with pytest.raises(SettingError, match="leave it out"):
        ControlVariates(estimate="plain", gain=0.2)


# -------------------------------------------------------------------------------------------------------- FedWMSAM
@pytest.mark.parametrize("others", [(), (RelaxedStart(0.2),), (DynamicRegularisation(0.1, "active"),)],
                         ids=["alone", "moved start", "another update"])  # fmt: skip
def test_fedwmsams_server_knows_the_mean_of_the_clients(others):
    """c is the mean of all c_i although no c_i is sent; also where the update is not how far a client moved."""
    algorithm = Algorithm((MomentumSAM(0.1), *others, SGD(0.5, 0.01)))
    for r in trace_algorithm(algorithm, toy())["rounds"]:
        mine = sum(tensor(c["momentum_sam"]["c"]) for c in r["clients"].values()) / 3
        same(tensor(r["server"]["momentum_sam"]["c"]), mine, 1e-13)


def test_fedwmsam_without_radius_and_variates_is_fedcm():
    """One client: c = c_i after every round, so D_i = M."""
    problem = toy(clients=CLIENTS[:1], rounds=[[0]] * 4, steps=[3])
    same(xs("fedwmsam", {"rho": 0.0, "adapt": 0.0}, problem), xs("fedcm", {"alpha": 0.1}, problem), 1e-13)


def test_fedwmsam_alpha_grows_where_clients_agree_with_the_momentum():
    problem = toy(clients=CLIENTS[:1], rounds=[[0]] * 4, steps=[3])

    def alphas(**settings):
        return [r["server"]["momentum_sam"]["alpha"] for r in trace("fedwmsam", problem, settings)["rounds"]]

    assert alphas()[-1] > 0.11
    assert alphas(aligned=False) == pytest.approx([0.1] * 4)
    assert alphas(variant="official") == pytest.approx([0.1] * 4)


# -------------------------------------------------------------------------------------------- executors and costs


@pytest.mark.parametrize("add", ["rate_cycle", "mixed_ascent", "momentum_sam"])
def test_additions_vmap_equals_loop(add):
    algorithm = make_algorithm("scaffold", SGD(0.9, 0.01, 10.0), add=(parse_addition(add),))
    same(train(algorithm, batched=True), train(algorithm))


# a client's vectors kept, down, up, gradients and further forwards a step: the table of the specification
COSTS = {"fedgf": (0, 2, 1, 2, 0), "fedswa": (0, 1, 1, 1, 0), "fedmoswa": (1, 2, 2, 1, 0), "fedwmsam": (1, 3, 1, 1, 0)}


@pytest.mark.parametrize("name", COSTS)
def test_costs(name):
    assert costs_of(make_algorithm(name, RECIPE)) == COSTS[name]


@pytest.mark.parametrize(("name", "settings"), [
    ("fedgf", {"rho": -1.0}), ("fedgf", {"rho_global": -1.0}), ("fedgf", {"window": 0}), ("fedswa", {"end": -0.1}),
    ("fedmoswa", {"gamma": -0.1}), ("fedwmsam", {"alpha": 1.0}), ("fedwmsam", {"adapt": 2.0}),
])  # fmt: skip
def test_settings_are_checked(name, settings):
    with pytest.raises(SettingError):
        make_algorithm(name, RECIPE, settings)
