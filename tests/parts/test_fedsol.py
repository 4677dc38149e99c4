"""FedSoL: its vectors (T1 is with the quadratics), T2, T7, its properties, its costs."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from tiny import Spy, data, local_step, one_step, perceptron, same, train
from torch import nn

from steppe.core.algorithm import Algorithm
from steppe.core.client import by_autograd
from steppe.core.cost import cost
from steppe.core.errors import SettingError, SteppeError
from steppe.core.part import Part
from steppe.core.task import Task
from steppe.engine.quadratics import Problem, Quadratic, trace
from steppe.models import build
from steppe.parts.distillation import Distillation
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.proximal import Proximal
from steppe.parts.proximal_ascent import ProximalAscent
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

VECTORS = Path(__file__).parent.parent / "vectors"
SOFTMAX = json.loads((VECTORS / "softmax.json").read_text())
QUADRATIC = json.loads((VECTORS / "quadratic.json").read_text())
MOMENTUM = SGD(0.9, 0.01)
ABLATION = "fedsol_ablation"
PROXIMAL = ("kl", "ntd", "l2", "scaffold", "fednova", "feddyn", "moon")


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


def quadratic(problem):
    A, b, x = tensor(problem["A"]), tensor(problem["b"]), tensor(problem["x"])
    task = Task(Quadratic(x, [1, 1]), loss=lambda outputs, _: outputs, head="head")
    return task, {"x": torch.cat([A, b[:, None]], 1)[None], "y": torch.zeros(1)}


# ------------------------------------------------------------------------------------------------------ vectors
@pytest.mark.parametrize("on", ["all", "head", "body"])
def test_t1(on):
    case = next(c for c in QUADRATIC["cases"] if c["id"] == f"fedsol-family/T1 FedSoL-L2 {on}")
    out = trace("fedsol", Problem(**QUADRATIC["problems"]["sol"]), case["settings"])["rounds"]
    same(tensor([r["x"] for r in out]), tensor(case["x"]))
    same(tensor([out[0]["local"][i] for i in "01"]), tensor([case["locals"][0][i] for i in "01"]))


@pytest.mark.parametrize("which", range(7))
def test_t2_ablations(which):
    T2 = SOFTMAX["T2"]
    task, batch = quadratic(T2)
    settings = {"rho": T2["rho"], "beta": T2["beta"], "proximal": "l2"}
    algorithm = make_algorithm(ABLATION, SGD(), {"variant": f"a{which}", **settings})
    w = tensor(T2["w"])
    same(w - one_step(algorithm, task, task.x0, w, batch), tensor(T2[f"a{which}"]))


def softmax_client():
    T7 = SOFTMAX["T7"]
    model = nn.Sequential(OrderedDict(head=nn.Linear(2, 3, bias=False, dtype=torch.float64)))
    model.head.weight.data = tensor(T7["W"])
    return T7, Task(model), {"x": tensor(T7["X"]), "y": torch.tensor(T7["y"])}


@pytest.mark.parametrize(("name", "settings"), [("fedsol", {"rho": 2.0, "radius": "fixed"}), ("fedavg", {})])
def test_t7_two_steps(name, settings):
    T7, task, batch = softmax_client()
    optimiser = SGD(T7["momentum"])
    algorithm = make_algorithm(name, optimiser, settings)
    live_m, w = torch.zeros_like(task.x0), task.x0
    plain = Algorithm(algorithm.parts[:-1])
    for k in range(2):  # the momentum by hand, so that the part is asked through one step at a time
        live_m = T7["momentum"] * live_m + (w - one_step(plain, task, task.x0, w, batch, index=k))
        w = w - T7["lr"] * live_m
    same(w.view(3, 2), tensor(T7[f"{name}_W"]))


@pytest.mark.parametrize("radius", ["adaptive", "layer"])
def test_t7_adaptive_radius(radius):
    T7, task, batch = softmax_client()
    spy, w = Spy(), tensor(T7["fedavg_W"]).flatten()
    one_step(
        Algorithm((spy, *make_algorithm("fedsol", SGD(), {"rho": 2.0, "radius": radius}).parts)),
        task,
        task.x0,
        w,
        batch,
    )
    same((spy.asked[0] - w).view(3, 2), tensor(T7[f"eps_{radius}"]))


def test_t7_first_steps():
    T7, task, batch = softmax_client()
    spy = Spy()
    algorithm = Algorithm((spy, ProximalAscent(2.0, Distillation(), radius="fixed")))
    w = one_step(algorithm, task, task.x0, task.x0, batch, index=0, lr=T7["lr"])
    one_step(algorithm, task, task.x0, w, batch, index=1)
    same(spy.asked[0], task.x0, 0)
    same((spy.asked[1] - w).norm(), tensor(T7["log"][1]["eps"]))


# --------------------------------------------------------------------------------------------------- properties
@pytest.mark.parametrize("proximal", ["kl", "ntd", "l2", "moon"])
@pytest.mark.parametrize("on", ["all", "body"])
def test_radius_zero_is_fedavg(proximal, on):
    for radius in ("adaptive", "fixed"):
        algorithm = make_algorithm("fedsol", MOMENTUM, {"rho": 0.0, "on": on, "proximal": proximal, "radius": radius})
        same(train(algorithm)[0], train(Algorithm((MOMENTUM,)))[0], 0)


def test_radius_zero_of_the_head():
    algorithm = make_algorithm("fedsol", MOMENTUM, {"rho": 0.0, "on": "head"})
    same(train(algorithm)[0], train(Algorithm((MOMENTUM,)))[0], 1e-14)


@pytest.mark.parametrize(
    "settings", [{"on": "head", "proximal": "l2"}, {"on": "body", "proximal": "l2"}, {"on": "body"}]
)
def test_a_part_of_the_model_moves_by_the_whole_radius(settings):
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    spy = Spy()
    part = make_algorithm("fedsol", SGD(), {"rho": 2.0, "radius": "fixed", **settings}).parts[0]
    w = task.x0 + 0.1 * torch.sin(torch.arange(task.layout.size))
    one_step(Algorithm((spy, part)), task, task.x0, w, batch)
    moved = spy.asked[0] - w
    same(moved.norm(), tensor(2.0))
    assert not moved[~task.layout.mask(settings["on"])].any()


@pytest.mark.parametrize("on", ["all", "head"])
def test_a_factor_on_the_proximal_loss_cancels(on):
    one, seven = (
        train(Algorithm((ProximalAscent(0.5, Distillation(c), on, "fixed"), MOMENTUM)))[0] for c in (1.0, 7.0)
    )
    same(one, seven, 1e-9)


@pytest.mark.parametrize("radius", ["adaptive", "layer"])
def test_the_first_adaptive_step_is_fedavgs(radius):
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    algorithm = make_algorithm("fedsol", MOMENTUM, {"radius": radius, "first_step": "official"})
    plain = one_step(Algorithm((MOMENTUM,)), task, task.x0, task.x0, batch, index=0)
    same(one_step(algorithm, task, task.x0, task.x0, batch, index=0), plain, 0)


def test_on_a_quadratic_the_change_is_the_hessian_along_the_ascent():
    T2 = SOFTMAX["T2"]
    task, batch = quadratic(T2)
    w = tensor(T2["w"])
    direction = [
        w
        - one_step(
            make_algorithm("fedsol", SGD(), {"rho": rho, "proximal": "l2", "radius": "fixed"}), task, task.x0, w, batch
        )
        for rho in (0.0, 0.7)
    ]
    g_p = w - task.x0
    same(direction[1] - direction[0], 0.7 * tensor(T2["A"]) @ g_p / g_p.norm())


@pytest.mark.parametrize(
    ("name", "settings", "base", "base_settings"),
    [
        (ABLATION, {"variant": "a0"}, "fedavg", {}),
        (ABLATION, {"variant": "a1", "rho": 0.5}, "fedsol", {"rho": 0.5, "radius": "fixed"}),
        (ABLATION, {"variant": "a1", "rho": 0.5, "radius": "layer"}, "fedsol", {"rho": 0.5, "radius": "layer"}),
        (ABLATION, {"variant": "a2", "beta": 0.0, "radius": "adaptive"}, "fedavg", {}),
        (ABLATION, {"variant": "a3", "beta": 0.0, "radius": "adaptive"}, "fedsol", {"rho": 2.0}),
        (ABLATION, {"variant": "a6", "beta": 0.0, "radius": "adaptive"}, "fedsol", {"rho": 2.0}),
        (ABLATION, {"variant": "a5", "beta": 0.3, "proximal": "l2"}, "fedprox", {"mu": 0.3}),
        (ABLATION, {"variant": "a2", "beta": 0.0}, "fedavg", {}),
        (ABLATION, {"variant": "a3", "beta": 0.0, "rho": 0.5}, ABLATION, {"variant": "a1", "rho": 0.5}),
        (ABLATION, {"variant": "a6", "beta": 0.0, "rho": 0.5}, ABLATION, {"variant": "a1", "rho": 0.5}),
        (ABLATION, {"variant": "a4", "beta": 0.0, "prox_scale": 0.0, "rho": 0.5}, "fedsam", {"rho": 0.5}),
    ],
)
def test_ablations_reduce(name, settings, base, base_settings):
    same(
        train(make_algorithm(name, MOMENTUM, settings))[0],
        train(make_algorithm(base, MOMENTUM, base_settings))[0],
        1e-12,
    )


def test_ablation_4_at_beta_1_is_the_general_one():
    general = make_algorithm(ABLATION, MOMENTUM, {"variant": "a4", "rho": 0.5, "beta": 1.0 + 1e-12})
    assert "sam" in [p.name for p in make_algorithm(ABLATION, MOMENTUM, {"variant": "a4"}).parts]
    same(train(general)[0], train(make_algorithm(ABLATION, MOMENTUM, {"variant": "a4", "rho": 0.5}))[0])


def test_the_order_of_the_proximal_pull_does_not_matter():
    """FedDyn's pull may be handed to the optimiser as decay; as a proximal term it is the same gradient."""
    orders = [DynamicRegularisation(0.1, order=order) for order in ("textbook", "official")]
    a, b = (train(Algorithm((ProximalAscent(0.5, of, radius="fixed"), MOMENTUM)))[0] for of in orders)
    same(a, b)


# --------------------------------------------------------------------------------------------------- noise floor
def test_noise_is_no_direction():
    task = perceptron()
    noise = torch.randn(task.layout.size, dtype=torch.float64)
    noise = 1e-8 * noise / noise.norm()

    def length(first_step, dtype, index=1.0, of=None):
        x = task.x0.to(dtype)
        part = ProximalAscent(2.0, of or Distillation(), radius="fixed", first_step=first_step)
        s = local_step(task.layout, x, index=torch.tensor(index))
        return float(part.ascent(noise.to(dtype), x, s).norm())

    assert length("safe", torch.float32) == 0
    assert length("official", torch.float32) == pytest.approx(2, rel=1e-3)
    assert length("safe", torch.float64) == pytest.approx(2, rel=1e-3)
    assert length("safe", torch.float64, index=0.0) == 0  # at w = x a teacher's gradient can only be noise
    assert length("safe", torch.float64, index=0.0, of=Proximal(1.0)) == pytest.approx(2, rel=1e-3)


# ------------------------------------------------------------------------------------------- one pass of the body
@pytest.mark.parametrize("radius", ["adaptive", "layer", "fixed"])
@pytest.mark.parametrize("proximal", ["kl", "ntd"])
def test_head_ascent_with_and_without_feature_reuse(radius, proximal):
    part = make_algorithm("fedsol", MOMENTUM, {"rho": 0.5, "on": "head", "radius": radius, "proximal": proximal}).parts[
        0
    ]
    twice = Algorithm((Spy(), part, MOMENTUM))  # a part inside it, so that the body has to run twice
    same(train(Algorithm((part, MOMENTUM)))[0], train(twice)[0], 1e-12)
    assert not torch.equal(train(Algorithm((part, MOMENTUM)))[0], train(Algorithm((MOMENTUM,)))[0])


def test_inside_parts_see_the_shifted_head():
    """A pull inside FedSoL acts at w + ε, so features cannot be reused; a factor 0 of it changes nothing."""
    head = make_algorithm("fedsol", MOMENTUM, {"on": "head", "radius": "fixed"}).parts[0]
    same(train(Algorithm((Proximal(0.0), head, MOMENTUM)))[0], train(Algorithm((head, MOMENTUM)))[0], 1e-12)


@pytest.mark.parametrize(("on", "proximal"), [
    (on, proximal) for on in ("all", "head", "body") for proximal in PROXIMAL
    if (on, proximal) != ("head", "moon")  # test_refusals
])  # fmt: skip
def test_under_vmap(on, proximal):
    algorithm = make_algorithm("fedsol", MOMENTUM, {"rho": 0.5, "on": on, "proximal": proximal})
    same(train(algorithm, batched=True), train(algorithm))


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_ablations_under_vmap(which, beta):
    algorithm = make_algorithm(ABLATION, MOMENTUM, {"variant": f"a{which}", "rho": 0.5, "beta": beta})
    same(train(algorithm, batched=True), train(algorithm))


def test_the_reported_loss_is_the_training_loss():
    loss = train(make_algorithm("fedsol", SGD()), rounds=1)[3]
    assert bool((loss > 1).all())  # cross entropy of four classes, not a divergence that starts at 0


# -------------------------------------------------------------------------------------------------------- costs
@pytest.fixture(scope="module")
def cnn():
    task = Task(build("cnn", 10, (3, 32, 32)))
    batch = {"x": torch.zeros(50, 3, 32, 32), "y": torch.zeros(50, dtype=torch.int64)}
    return task, batch


@pytest.mark.parametrize(
    ("name", "settings", "vectors", "passes"),
    [  # vectors: down, up, kept; passes: gradients, forwards
        ("fedsol", {}, (1, 1, 0), (2, 1)),
        ("fedsol", {"on": "body"}, (1, 1, 0), (2, 1)),
        ("fedsol", {"on": "head"}, (1, 1, 0), (1, 1)),
        ("fedsol", {"proximal": "ntd"}, (1, 1, 0), (2, 1)),
        ("fedsol", {"proximal": "l2"}, (1, 1, 0), (1, 0)),
        ("fedsol", {"proximal": "scaffold"}, (2, 2, 1), (1, 0)),
        ("fedsol", {"proximal": "feddyn"}, (1, 1, 1), (1, 0)),
        ("fedsol", {"proximal": "fednova"}, (2, 1, 1), (1, 0)),
        ("fedsol", {"proximal": "moon"}, (1, 1, 1), (2, 2)),
        (ABLATION, {"variant": "a0"}, (1, 1, 0), (1, 0)),
        (ABLATION, {"variant": "a1"}, (1, 1, 0), (2, 1)),
        (ABLATION, {"variant": "a2"}, (1, 1, 0), (3, 1)),
        (ABLATION, {"variant": "a3"}, (1, 1, 0), (2, 1)),
        (ABLATION, {"variant": "a4"}, (1, 1, 0), (2, 1)),
        (ABLATION, {"variant": "a5"}, (1, 1, 0), (1, 1)),
        (ABLATION, {"variant": "a6"}, (1, 1, 0), (2, 1)),
    ],
)
def test_costs(cnn, name, settings, vectors, passes):
    c = cost(make_algorithm(name, SGD(), settings), *cnn)
    assert (round(c.down, 3), round(c.up, 3), round(c.kept, 3)) == vectors
    assert (c.gradients, c.forwards) == passes


def test_flops(cnn):
    plain = cost(make_algorithm("fedavg", SGD()), *cnn).flops
    ratio = {on: cost(make_algorithm("fedsol", SGD(), {"on": on}), *cnn).flops / plain for on in ("all", "head")}
    assert ratio["all"] == pytest.approx(7 / 3, rel=0.05)
    assert ratio["head"] == pytest.approx(4 / 3, rel=0.05)
    assert cost(make_algorithm("fedsol", SGD(), {"proximal": "l2"}), *cnn).flops == plain


# ------------------------------------------------------------------------------------------------------ refusals
def test_refusals():
    with pytest.raises(SteppeError, match="features"):
        make_algorithm("fedsol", SGD(), {"on": "head", "proximal": "moon"})
    with pytest.raises(SettingError, match="rho"):
        ProximalAscent(-1.0, Proximal(1.0))
    with pytest.raises(SteppeError, match="logits"):
        trace("fedsol", Problem(**QUADRATIC["problems"]["sol"]))


def test_any_part_can_be_the_term():
    """The term's states and messages are its own, under FedSoL's name; its penalty stays out of the loss."""

    class Pull(Part):
        name = "pull"

        def penalty(self, w, out, s):
            return (w - s.x).square().sum() / 2

        def server_state(self, x):
            return {"v": torch.ones_like(x)}

        def server(self, delta, s):
            s.state["v"] = s.state["v"] + 1
            return delta

    ours = ProximalAscent(0.5, Pull(), radius="fixed")
    assert ours.has("server")
    assert not ours.has("penalty")
    assert not ours.has("observe")
    x, server, _, _ = train(Algorithm((ours, MOMENTUM)), differentiate=by_autograd)
    same(x, train(Algorithm((ProximalAscent(0.5, Proximal(1.0), radius="fixed"), MOMENTUM)))[0])
    assert bool((server["proximal_ascent"]["v"] == 3).all())
