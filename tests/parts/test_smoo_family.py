"""FedCM, MoFedSAM, FedGAMMA, FedSpeed, FedSMOO, FedLESAM, FedDC: limits, properties, vmap, costs, additions."""

import json
from pathlib import Path

import pytest
import torch
from tiny import Spy, aggregation, data, number, one_step, perceptron, same, train
from torch import nn

from steppe.core.algorithm import Algorithm
from steppe.core.client import begin, end, step
from steppe.core.cost import cost
from steppe.core.errors import CompositionError, SettingError, SteppeError
from steppe.core.server import Server, broadcast
from steppe.core.task import Task
from steppe.engine.quadratics import Problem, trace, trace_algorithm
from steppe.models import build
from steppe.parts.client_momentum import ClientMomentum
from steppe.parts.consistent_sam import ConsistentSAM
from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.locally_estimated_sam import LocallyEstimatedSAM
from steppe.parts.relaxed_start import RelaxedStart
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm, parse_addition

QUADRATIC = json.loads((Path(__file__).parent.parent / "vectors" / "quadratic.json").read_text())
SMOO = QUADRATIC["problems"]["smoo"]
RECIPE = SGD(0.0, 0.01, 10.0)
ESTIMATED = ("paper", "paper_init", "last_round", "sum_norm", "official")


def toy(**change):
    return Problem(**{**SMOO, "rounds": SMOO["rounds"] * 2, **change})


def xs(name, settings=None, problem=None, add=()):
    return [r["x"] for r in trace(name, problem or toy(), settings, add)["rounds"]]


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("name", "settings", "base", "base_settings"),
    [
        ("fedcm", {"alpha": 1.0}, "fedavg", {}),
        ("mofedsam", {"rho": 0.0}, "fedcm", {}),
        ("mofedsam", {"rho": 0.2, "alpha": 1.0}, "fedsam", {"rho": 0.2, "eps": 1e-7}),
        ("fedgamma", {"rho": 0.0}, "scaffold", {}),
        ("fedspeed", {"rho": 0.0, "variant": "official"}, "feddyn", {"variant": "official"}),
        ("fedspeed", {"rho": 0.0, "variant": "norm"}, "feddyn", {"variant": "norm"}),
        ("fedspeed", {"rho": 0.3, "mix": 0.0, "variant": "norm"}, "feddyn", {"variant": "norm"}),
        ("fedsmoo", {"rho": 0.0}, "feddyn", {}),
        ("fedsmoo", {"rho": 0.0, "variant": "official"}, "feddyn", {"variant": "official"}),
        ("fedsmoo", {"rho": 0.0, "variant": "early"}, "feddyn", {"variant": "official"}),
        ("fedsmoo", {"rho": 0.0, "variant": "norm"}, "feddyn", {"variant": "norm"}),
        *[("fedlesam", {"rho": 0.0, "variant": v}, "fedavg", {}) for v in ESTIMATED],
        ("fedlesam_s", {"rho": 0.0}, "scaffold", {}),
        ("fedlesam_d", {"rho": 0.0}, "feddyn", {}),
        ("fedlesam_s", {"rho": 0.2, "control_scale": 0.0}, "fedlesam", {"rho": 0.2}),
    ],
)
def test_limits(name, settings, base, base_settings):
    assert xs(name, settings) == xs(base, base_settings)


def test_all_active_paper_and_official_means_agree():
    """The mean over the active is the mean over all, and an inactive clip makes both orders one."""
    everyone = toy(rounds=[[0, 1, 2]] * 4, clip=None)
    same(
        tensor(xs("fedspeed", {"variant": "paper"}, everyone)),
        tensor(xs("fedspeed", {"variant": "official"}, everyone)),
    )


def test_fedlesam_variants_agree_when_all_are_active():
    """The model received last is then the model of the round before."""
    everyone = toy(rounds=[[0, 1, 2]] * 4)
    paper, init, last = (tensor(xs("fedlesam", {"variant": v}, everyone)) for v in ESTIMATED[:3])
    same(paper, init)
    same(paper, last)


def test_feddc_of_one_client():
    """Nobody to compare with in the first round: a proximal round and its own drift."""
    alone = toy(rounds=[[0]], clients=SMOO["clients"][:1])
    paper, official = xs("feddc", {"variant": "paper"}, alone), xs("feddc", {"variant": "official"}, alone)
    same(tensor(paper), tensor(official))
    (prox,) = xs("fedprox", {"mu": 0.1}, alone)
    same(tensor(paper[0]), 2 * tensor(prox) - tensor(SMOO["x0"]))


# --------------------------------------------------------------------------------------------------- properties
def test_fedcm_first_round_is_slow_and_d_is_the_mean_direction():
    first = trace("fedcm", toy(weight_decay=0.0), {"alpha": 0.25})["rounds"][0]
    slow = trace("fedavg", toy(weight_decay=0.0, lr=0.025))["rounds"][0]
    same(tensor(first["x"]), tensor(slow["x"]))
    same(tensor(first["server"]["client_momentum"]["D"]), (tensor(SMOO["x0"]) - tensor(first["x"])) / (2 * 0.1))


def test_fedcm_counts_each_clients_own_steps():
    out = trace("fedcm", toy(steps=[1, 3, 2]), {"alpha": 1.0})["rounds"][0]
    moved = {i: tensor(w) - tensor(SMOO["x0"]) for i, w in out["local"].items()}
    same(tensor(out["server"]["client_momentum"]["D"]), -(moved["0"] / 1 + moved["1"] / 3) / 2 / 0.1)


def test_fedsmoo_common_direction():
    ones = {}
    for variant in ("paper", "official", "early", "norm"):
        rounds = trace("fedsmoo", toy(), {"rho": 0.3, "variant": variant})["rounds"]
        s = [tensor(r["server"]["consistent_sam"]["s"]) for r in rounds]
        same(torch.stack([torch.linalg.vector_norm(v) for v in s]), torch.full((6,), 0.3).double(), 1e-6)
        ones[variant] = s[0]
    assert ones["early"] @ ones["official"] < 0, "the early scripts have the opposite sign"
    # early: the running mean on the server is that of all clients' duals
    last = trace("fedsmoo", toy(), {"variant": "early"})["rounds"][-1]
    mus = torch.stack([tensor(c["consistent_sam"]["mu"]) for c in last["clients"].values()])
    same(tensor(last["server"]["consistent_sam"]["mu"]), mus.mean(0))


def test_fedsmoo_dual_moves_every_step():
    """In the first round s = 0, so μ adds up one ascent of length ρ a step."""
    mu = tensor(trace("fedsmoo", toy(), {"rho": 0.3})["rounds"][0]["clients"]["0"]["consistent_sam"]["mu"])
    assert 0.3 < torch.linalg.vector_norm(mu) <= 0.6


def asked(part, task, x, w, state=None, down=None):
    """Where a part asks for the gradient, in a client's round that received x."""
    spy = Spy()
    algorithm = Algorithm((spy, part))
    server = Server(x, algorithm.server_state(task.x0), {})
    if down:
        server.state[part.name].update(down)
    sent = broadcast(algorithm, task.layout, server, number(0.1), number(0))[1]
    live = begin(algorithm, task, sent, state or algorithm.client_state(task.x0), number(2))
    batch = {k: v[0, 0] for k, v in data().items()}
    with torch.no_grad():
        step(algorithm, task, sent, live._replace(w=w), (batch,), number(0), number(2))
        reply = end(algorithm, task, sent, live, number(2))
    return spy.asked, reply.state


def test_fedlesam_memory():
    """No perturbation the first time; then of length ρ, back towards the model received last."""
    task = perceptron()
    part = LocallyEstimatedSAM(0.5)
    x1, x2 = task.x0 + 0.1, task.x0 - 0.3
    (where,), state = asked(part, task, x1, task.x0)
    assert torch.equal(where, task.x0)
    assert torch.equal(state[part.name]["old"], x1)
    (where,), state = asked(part, task, x2, task.x0, state)
    shift = where - task.x0
    same(torch.linalg.vector_norm(shift), number(0.5), 1e-6)
    assert torch.cosine_similarity(shift, x1 - x2, dim=0) > 1 - 1e-9
    (where,), _ = asked(LocallyEstimatedSAM(0.5, "paper_init"), task, x1, task.x0)
    same(torch.linalg.vector_norm(where - task.x0), number(0.5), 1e-6)


def test_fedlesam_scalings():
    """On a network with convolutions: the radius of each reading, and the released indexing."""
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).double())
    new = task.x0 + torch.randn_like(task.x0)
    ascent = {}
    for variant in ESTIMATED[2:]:
        part = LocallyEstimatedSAM(1.0, variant)
        state = part.server_state(task.x0)
        part.settle(new, aggregation(task.layout, task.x0, state))
        ascent[variant] = state["ascent"]
    back = task.x0 - new
    same(ascent["last_round"], back / torch.linalg.vector_norm(back), 1e-6)
    same(ascent["sum_norm"], back / sum(torch.linalg.vector_norm(p) for p in task.layout.pieces(back)), 1e-6)
    # as published: tensor j moves by one number, entry j of the first convolution in PyTorch's own order
    first = torch.cat([p.flatten() for p in task.layout.pieces(back)])[:4]
    for j, piece in enumerate(task.layout.pieces(ascent["official"])):
        same(piece, torch.full_like(piece, float(first[j] / (first.abs().sum() + 1e-7))))


def test_duals_have_one_sign():
    """h_i ← h_i − α Δ_i for all of the family, and the server's is their mean over all clients."""
    for name in ("fedspeed", "fedsmoo", "fedlesam_d"):
        rounds = trace(name, toy(), {"variant": "official"})["rounds"]
        x, w = tensor(SMOO["x0"]), tensor(rounds[0]["local"]["0"])
        same(tensor(rounds[0]["clients"]["0"]["dynamic_regularisation"]["h"]), -0.1 * (w - x))
        last = rounds[-1]
        mine = torch.stack([tensor(c["dynamic_regularisation"]["h"]) for c in last["clients"].values()])
        same(tensor(last["server"]["dynamic_regularisation"]["h"]), mine.mean(0))


def test_feddc_is_control_variates_and_a_dual():
    assert [p.name for p in make_algorithm("feddc", RECIPE, {"variant": "official"}).parts] == [
        "control_variates", "dynamic_regularisation", "sgd"]  # fmt: skip
    # at α → 0 the drift's pull vanishes from the steps, but not from the server
    out = trace("feddc", toy(), {"variant": "official", "alpha": 1e-9})["rounds"]
    plain = trace("scaffold", toy())["rounds"]
    same(tensor(out[0]["local"]["0"]), tensor(plain[0]["local"]["0"]), 1e-7)


# ------------------------------------------------------------------------------------------- executors and costs
MINE = [
    ("fedcm", {}), ("mofedsam", {}), ("fedgamma", {}), ("fedspeed", {"mix": 0.5}),
    ("fedspeed", {"variant": "official"}), ("feddc", {}), ("feddc", {"variant": "official"}),
    *[("fedsmoo", {"variant": v}) for v in ("paper", "official", "early", "norm")],
    *[("fedlesam", {"variant": v}) for v in ESTIMATED], ("fedlesam_s", {}), ("fedlesam_d", {"variant": "official"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), MINE)
def test_vmap_equals_loop(name, settings):
    algorithm = make_algorithm(name, SGD(0.9, 0.01, 10.0), settings)
    same(train(algorithm, batched=True), train(algorithm))


# persistent vectors of a client, down, up, gradients a step: the table of the specification
COSTS = {
    "fedcm": (0, 2, 1, 1),
    "mofedsam": (0, 2, 1, 2),
    "fedgamma": (1, 2, 2, 2),
    "fedspeed": (1, 1, 1, 2),
    "fedsmoo": (2, 2, 2, 2),
    "fedlesam": (1, 1, 1, 1),
    "fedlesam_s": (2, 2, 2, 1),
    "fedlesam_d": (2, 1, 1, 1),
    "feddc": (2, 2, 2, 1),
}


def costs_of(algorithm):
    task = Task(nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)))
    c = cost(algorithm, task, {"x": torch.zeros(4, 100), "y": torch.zeros(4, dtype=torch.int64)})
    return round(c.kept, 2), round(c.down, 2), round(c.up, 2), c.gradients, c.forwards


@pytest.mark.parametrize("name", COSTS)
def test_costs(name):
    assert costs_of(make_algorithm(name, RECIPE)) == (*COSTS[name], 0)


@pytest.mark.parametrize(("variant", "down", "kept"), [("paper_init", 1, 1), ("last_round", 2, 0), ("official", 2, 0)])
def test_fedlesam_as_released_sends_the_direction(variant, down, kept):
    assert costs_of(make_algorithm("fedlesam", RECIPE, {"variant": variant})) == (kept, down, 1, 1, 0)


# ------------------------------------------------------------------------------------ compositions and additions
def test_a_dual_inside_two_gradients_is_refused():
    with pytest.raises(CompositionError, match="more than once per step"):
        Algorithm((ConsistentSAM(0.1), SAM(0.1), RECIPE))
    with pytest.raises(CompositionError, match="more than once per step"):
        make_algorithm("fedsam", RECIPE, add=(parse_addition("consistent_sam:rho=0.1"),))
    Algorithm((SAM(0.1), ConsistentSAM(0.1), RECIPE))


def test_a_momentum_that_does_not_scale_the_pull_is_refused():
    with pytest.raises(CompositionError, match="pulled towards 0: use order=textbook"):
        make_algorithm("fedlesam_d", RECIPE, {"variant": "last_round"}, (parse_addition("client_momentum"),))
    make_algorithm("fedlesam_d", RECIPE, {"variant": "paper"}, (parse_addition("client_momentum"),))


def test_the_same_part_twice_is_refused():
    with pytest.raises(CompositionError, match="share one state"):
        make_algorithm("fedlesam_d", RECIPE, add=(parse_addition("dynamic_regularisation:alpha=0.1"),))


def test_settings_are_checked():
    for part, value in ((ConsistentSAM, -1.0), (LocallyEstimatedSAM, -1.0), (ClientMomentum, 2.0)):
        with pytest.raises(SettingError):
            part(value)
    with pytest.raises(SettingError, match="mix"):
        make_algorithm("fedspeed", RECIPE, {"mix": 1.5})
    with pytest.raises(SettingError, match="did you mean 'paper_init'"):
        make_algorithm("fedlesam", RECIPE, {"variant": "paper_ini"})


@pytest.mark.parametrize(
    ("name", "base", "add"),
    [
        ("mofedsam", ("fedsam", {"eps": 1e-7}), "client_momentum"),
        ("fedgamma", ("fedsam", {"eps": 1e-7}), "control_variates"),
        ("fedgamma", ("scaffold", {}), "sam:rho=0.1,eps=1e-7"),
        ("fedlesam_s", ("scaffold", {}), "locally_estimated_sam:rho=.1"),
        ("fedlesam_d", ("fedlesam", {}), "dynamic_regularisation:alpha=0.1"),
        ("fedsmoo", ("feddyn", {}), "consistent_sam"),
    ],
)
def test_an_addition_finds_its_place(name, base, add):
    """Where the gradient is taken goes inside, a correction of the result outside: the papers' own combinations."""
    assert xs(name) == xs(*base, add=[add])


def test_server_momentum_goes_around_the_dual():
    """The server's momentum sees the corrected update, not the mean alone."""
    plain, both = (trace("feddyn", toy(), add=a)["rounds"][0] for a in ((), ["server_momentum:lr=0.5"]))
    x0 = tensor(SMOO["x0"])
    same(tensor(both["x"]) - x0, 0.5 * (tensor(plain["x"]) - x0))


def test_parse_addition():
    assert parse_addition("man:weight=0.2").weight == 0.2
    assert parse_addition("control_variates:scale=1,divisor=steps") == ControlVariates("steps", 1.0)
    assert parse_addition("dynamic_regularisation:alpha=1e-2,prox=none").alpha == 0.01
    for text, message in {
        "smo": "there is no part 'smo'",
        "sam": "needs a value for rho",
        "sam:rho": "is not a setting",
        "sam:rho=big": "must be a number",
        "sam:rho=0.1,rhu=1": "has no setting 'rhu'; did you mean 'rho'",
        "control_variates:divisor=step": "did you mean 'steps'",
    }.items():
        with pytest.raises(SteppeError, match=message):
            parse_addition(text)


def test_relaxed_start():
    """FedInit: the start lies beyond x, away from the client's last model, and everything is measured from it."""
    problem = toy(rounds=[[0], [0]], weighting="uniform")
    algorithm = Algorithm((RelaxedStart(0.5), ControlVariates(), DynamicRegularisation(0.1), SGD()))
    one, two = trace_algorithm(algorithm, problem)["rounds"]
    w1, x1, w2 = tensor(one["local"]["0"]), tensor(one["x"]), tensor(two["local"]["0"])
    start = x1 + 0.5 * (x1 - w1)
    h1, h2 = (tensor(r["clients"]["0"]["dynamic_regularisation"]["h"]) for r in (one, two))
    same(h2, h1 - 0.1 * (w2 - start))
    c1, c2 = (tensor(r["clients"]["0"]["control_variates"]["c"]) for r in (one, two))
    server = tensor(one["server"]["control_variates"]["c"])
    same(c2, c1 - server - (w2 - start) / (2 * 0.09))
    # the server's dual is the mean of all clients' duals here too
    same(tensor(two["server"]["dynamic_regularisation"]["h"]), h2 / 3)
    assert xs("feddyn", add=["relaxed_start:beta=0"]) == xs("feddyn")


def test_one_step_of_mofedsam_by_hand():
    task = perceptron()
    batch = {k: v[0, 0] for k, v in data().items()}
    plain = Algorithm((SAM(0.1, 1e-7),))
    mo = Algorithm((SAM(0.1, 1e-7), ClientMomentum(0.25)))
    x = task.x0
    same(x - one_step(mo, task, x, x, batch), 0.25 * (x - one_step(plain, task, x, x, batch)))


def test_a_dual_of_the_head_keeps_the_heads_numbers():
    """The head is the end of every image model's vector, so `last` can name it."""
    for name in ("cnn", "lenet", "mlp", "resnet18-gn"):
        layout = Task(build(name, 10, (3, 32, 32))).layout
        assert layout.mask("head")[-layout.head_size :].all()
    task = Task(build("cnn", 10, (3, 32, 32)))
    batch = {"x": torch.zeros(2, 3, 32, 32), "y": torch.zeros(2, dtype=torch.int64)}
    dual = parse_addition(f"dynamic_regularisation:alpha=0.1,prox=none,last={task.layout.head_size}")
    found = cost(make_algorithm("fedavg", RECIPE, add=(dual,)), task, batch)
    assert found.bytes_kept == 4 * 5130
    assert (found.down, found.up) == (1, 1)
    with pytest.raises(SettingError, match="the model has 3 numbers"):
        dual.client_state(torch.zeros(3))
    with pytest.raises(SettingError, match="needs order = textbook"):
        DynamicRegularisation(0.1, order="official", last=2)
