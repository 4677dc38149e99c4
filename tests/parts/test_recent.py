"""FedNSAM, FedGloSS, FedGMT, FedScar, and what is judged in the global model's place (EMA, SWA, the latest mean)."""

import json
import math
import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from test_smoo_family import costs_of
from tiny import aggregation, number, same, train
from torch import nn

from steppe.core.algorithm import Algorithm
from steppe.core.client import begin, end, step
from steppe.core.errors import SettingError
from steppe.core.server import Server, aggregate, broadcast, choose_evaluated
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.engine.quadratics import Problem, trace
from steppe.parts.geometric_bias import GeometricBias
from steppe.parts.global_ascent import GlobalAscent
from steppe.parts.sam import ramped
from steppe.parts.sgd import SGD
from steppe.parts.swa import SWA
from steppe.parts.trajectory_teacher import TrajectoryTeacher
from steppe.registry import make_algorithm, parse_addition

VECTORS = Path(__file__).parent.parent / "vectors"
QUADRATIC = json.loads((VECTORS / "quadratic.json").read_text())
LONG = json.loads((VECTORS / "fedscar_longrun.json").read_text())
GMT = json.loads((VECTORS / "softmax.json").read_text())["FedGMT"]
RECENT = QUADRATIC["problems"]["recent"]
RECIPE = SGD(0.0, 0.001, 10.0)


def toy(**change):
    rounds = [[0, 1], [0, 2], [1, 2], [2], [0, 1]]
    return Problem(**{**RECENT, "rounds": rounds, "weight_decay": 0.001, "clip": 10.0, **change})


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


def xs(name, settings=None, problem=None, add=()):
    return [r["x"] for r in trace(name, problem or toy(), settings, add)["rounds"]]


# ------------------------------------------------------------------------------------------ FedNSAM and FedGloSS
@pytest.mark.parametrize("variant", ["intended", "released", "per_step"])
def test_fednsam_without_momentum_and_radius_is_fedavg(variant):
    settings = {"rho": 0.0, "gamma": 0.0, "variant": variant}
    same(tensor(xs("fednsam", settings)), tensor(xs("fedavg")))


def test_fednsam_released_does_not_accumulate():
    a, b = (trace("fednsam", toy(), {"variant": v})["rounds"] for v in ("intended", "released"))
    assert a[0]["x"] == b[0]["x"]
    for t, r in enumerate(b[1:], 1):
        before = tensor(b[t - 1]["x"]) + 0.85 * tensor(b[t - 1]["server"]["nesterov_start"]["m"])
        p = [RECENT["clients"][int(i)]["n"] for i in r["local"]]
        mean = sum(n * (tensor(w) - before) for n, w in zip(p, r["local"].values(), strict=True)) / sum(p)
        same(tensor(r["server"]["nesterov_start"]["m"]), 1.85 * mean)


def test_fedgloss_without_its_radius_is_feddyn():
    same(tensor(xs("fedgloss", {"rho": 0.0, "rho_client": 0.0})), tensor(xs("feddyn", {"alpha": 0.1})))


def test_fedgloss_sends_the_ascended_model():
    """At distance ρ against the last mean update; the model itself in the first round."""
    part, x = GlobalAscent(0.3), tensor([1.0, 2.0])
    state = part.server_state(x)
    scope = aggregation(None, x, state)
    assert torch.equal(part.send(x, scope), x)
    part.server(tensor([3.0, -4.0]), scope)
    same(part.send(x, scope), x + tensor([-0.18, 0.24]))


def test_ramp():
    radii = [ramped(0.2, 10, number(t)) for t in (0, 5, 10, 99)]
    same(torch.stack(radii), tensor([1e-3, 0.1005, 0.2, 0.2]))
    assert ramped(0.2, 0, number(3)) == 0.2
    assert xs("fedgloss", {"ramp": 1})[2:] != xs("fedgloss", {"ramp": 3})[2:]


# ------------------------------------------------------------------------------------------------------- FedGMT
def softmax_task(W):
    model = nn.Sequential(OrderedDict(head=nn.Linear(2, 2, bias=False, dtype=torch.float64)))
    model.head.weight.data = tensor(W)
    return Task(model)


def federate(algorithm, problem, weights, rounds=None):
    """The rounds of a softmax-linear problem, whole batches; yields (server, sent, states, local models)."""
    task = softmax_task(problem["W"])
    server, states = Server(task.x0, algorithm.server_state(task.x0), {}), {}
    batches = [{"x": tensor(c["X"]), "y": torch.tensor(c["y"])} for c in problem["clients"]]
    steps = number(problem["steps"])
    for t, ids in enumerate(rounds or problem["rounds"]):
        mine = [states.get(i) or algorithm.client_state(task.x0) for i in ids]
        lr, now = number(problem["lr"] * problem["lr_decay"] ** t), number(t)
        server, sent = broadcast(algorithm, task.layout, server, lr, now, stack(mine), len(batches))
        replies, locals_ = [], {}
        with torch.no_grad():
            for i, state in zip(ids, mine, strict=True):
                live = begin(algorithm, task, sent, state, steps)
                for k in range(problem["steps"]):
                    live = step(algorithm, task, sent, live, (batches[i],), number(k), steps)
                replies.append(end(algorithm, task, sent, live, steps))
                locals_[i] = live.w
        states.update({i: r.state for i, r in zip(ids, replies, strict=True)})
        shares = tensor([float(weights[i]) for i in ids])
        server = aggregate(algorithm, task.layout, server, sent, stack(replies), shares, len(batches))
        yield server, sent, states, locals_


@pytest.mark.parametrize(("variant", "weights"), [("official", [2, 1, 1]), ("paper", [1, 1, 1])])
def test_fedgmt_vectors(variant, weights):
    """The duals are stored like gradients: −1/β times the sums of displacements that the vectors hold."""
    problem = GMT["problem"]
    algorithm = make_algorithm(
        "fedgmt", SGD(problem["momentum"], problem["weight_decay"]), {**GMT["settings"], "variant": variant}
    )
    for (server, _, states, locals_), want in zip(federate(algorithm, problem, weights), GMT[variant], strict=True):
        same(server.x, tensor(want["w"]))
        same(server.state["trajectory_teacher"]["e"], tensor(want["e"]))
        for i, w in locals_.items():
            same(w, tensor(want["local"][str(i)]))
        for i, state in states.items():
            same(-10 * state["dynamic_regularisation"]["h"], tensor(want["h"][str(i)]))


def test_fedgmt_gradient():
    """The penalty's own gradient, and the loss, at one point with a given teacher."""
    g = GMT["gradient"]
    task, client = softmax_task(g["W"]), GMT["problem"]["clients"][0]
    algorithm = Algorithm((TrajectoryTeacher(),))
    server = Server(task.x0, {"trajectory_teacher": {"e": tensor(g["e"]).flatten()}}, {})
    sent = broadcast(algorithm, task.layout, server, number(1), number(0))[1]
    live = begin(algorithm, task, sent, algorithm.client_state(task.x0), number(1))
    batch = {"x": tensor(client["X"]), "y": torch.tensor(client["y"])}
    after = step(algorithm, task, sent, live, (batch,), number(0), number(1))
    same(task.x0 - after.w, tensor(g["gradient"]))
    same(after.core["loss"], number(g["loss"]))


def test_fedgmt_v2_is_fedgmt_when_all_are_active():
    problem, rounds = GMT["problem"], [[0, 1, 2]] * 4
    a, b = (
        [r[0].x for r in federate(make_algorithm("fedgmt", RECIPE, {"variant": v}), problem, [1, 1, 1], rounds)]
        for v in ("official", "v2")
    )
    same(torch.stack(a), torch.stack(b))


def test_fedgmt_without_teacher_is_a_dual_without_pull():
    problem, rounds = GMT["problem"], [[0, 1], [1, 2], [0, 2]]
    a = [r[0].x for r in federate(make_algorithm("fedgmt", RECIPE, {"weight": 0.0}), problem, [1, 1, 1], rounds)]
    dual = make_algorithm("fedavg", RECIPE, add=(parse_addition("dynamic_regularisation:alpha=0.1,prox=none"),))
    b = [r[0].x for r in federate(dual, problem, [1, 1, 1], rounds)]
    same(torch.stack(a), torch.stack(b))


# ------------------------------------------------------------------------------------------------------ FedScar
def test_fedscar_without_bias_and_dual_is_fedavg():
    same(tensor(xs("fedscar", {"alpha": 0.0, "beta": 0.0})), tensor(xs("fedavg")))
    same(tensor(xs("fedscar", {"alpha": 0.0, "variant": "lagged"})), tensor(xs("fedscar", {"alpha": 0.0})))


def test_fedscar_poster_warns():
    with pytest.warns(UserWarning, match="diverges"):
        make_algorithm("fedscar", RECIPE, {"variant": "poster"})


def test_fedscar_needs_states_on_the_server():
    """A federation without them is told what to choose; `lagged` needs none."""
    task = softmax_task([[0.1, 0.2], [0.3, 0.4]])
    for variant in ("official", "lagged"):
        algorithm = Algorithm((GeometricBias(variant=variant), RECIPE))
        server = Server(task.x0, algorithm.server_state(task.x0), {})
        if variant == "official":
            with pytest.raises(SettingError, match="lagged"):
                broadcast(algorithm, task.layout, server, number(0.1), number(0))
        else:
            broadcast(algorithm, task.layout, server, number(0.1), number(0))


@pytest.mark.parametrize("variant", ["official", "lagged"])
def test_fedscar_running_means_are_the_means_over_everybody(variant):
    """Every client's bias decays every round, also of those who are away: made up for lazily, it is the same mean."""
    rounds = trace("fedscar", toy(rounds=toy().rounds * 3), {"alpha": 0.2, "keep": 0.7, "variant": variant})["rounds"]
    for t, r in enumerate(rounds):
        mine = [c["geometric_bias"] for c in r["clients"].values()]
        b = sum(0.7 ** (t - c["when"]) * tensor(c["b"]) for c in mine) / 3
        same(tensor(r["server"]["geometric_bias"]["bbar"]), b)
        same(tensor(r["server"]["geometric_bias"]["h"]), sum(tensor(c["h"]) for c in mine) / 3)


def long_run(settings, kind):
    rounds = [[0, 1, 2]] * 400 if kind == "full" else [LONG["pairs"][c] for c in LONG["partial_rounds"]]
    problem = Problem(**{**LONG["problem"], "rounds": rounds})
    last = trace("fedscar", problem, settings)["rounds"][-50:]
    x = np.array([r["x"] for r in last])

    def loss(i, w):
        c = LONG["problem"]["clients"][int(i)]
        gap = np.array(w) - np.array(c["b"])
        return c["n"] * 0.5 * gap @ np.array(c["A"], float) @ gap, c["n"]

    gaps = []
    for r in last:
        pairs = [(loss(i, r["x"])[0] - loss(i, w)[0], loss(i, w)[1]) for i, w in r["local"].items()]
        gaps.append(abs(sum(p[0] for p in pairs)) / sum(p[1] for p in pairs))
    return {
        "distance": np.linalg.norm(x, axis=1).mean(),
        "oscillation": np.linalg.norm(x - x.mean(0), axis=1).mean(),
        "flatness_discrepancy": np.mean(gaps),
    }


@pytest.mark.parametrize(
    ("row", "kind"),
    [("code", "full"), ("code, alpha=.01 beta=.01", "partial"), ("var, sq, z", "full"),
     *(pytest.param(row, "partial", marks=pytest.mark.slow) for row in ("prox sq, anchor z", "no bias (alpha=0)"))],
)  # fmt: skip
def test_fedscar_long_run(row, kind):
    """400 rounds; the figures of the specification, as closely as each can be expected."""
    row = next(r for r in LONG["rows"] if r["id"] == f"FedScar_longrun/{row}")
    want = row[kind]
    for key, value in long_run(row["settings"], kind).items():
        if want["rtol"] is None:
            assert value < 10 * want[key]
        else:
            np.testing.assert_allclose(value, want[key], rtol=max(want["rtol"], 1e-9), err_msg=key)


def test_fedscar_poster_diverges():
    """Printed dual: 1e29 and more in 400 rounds on a convex problem; the released one stays near the optimum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert long_run({"alpha": 0.1, "beta": 0.06, "variant": "poster"}, "partial")["distance"] > 1e12


# --------------------------------------------------------------------------------------- what is judged instead
def judged(text, rounds=12):
    """What is evaluated after each round, and the global models, for FedDyn, whose server has a rule of its own."""
    problem = {**GMT["problem"], "lr_decay": 0.9}
    add = parse_addition(text)
    add = SWA(add.start_at, add.cycle, rounds) if isinstance(add, SWA) else add
    algorithm = make_algorithm("feddyn", RECIPE, add=(add,))
    schedule = ([[0, 1], [1, 2], [0, 2], [2]] * 3)[:rounds]
    seen = []
    for t, (server, _, _, locals_) in enumerate(federate(algorithm, problem, [2, 1, 1], schedule)):
        shown = choose_evaluated(algorithm, softmax_task(problem["W"]).layout, server, number(0), number(t))
        seen.append((shown, server.x, locals_))
    return tensor(problem["W"]).flatten(), seen


def test_ema_follows_the_new_global_model():
    e, seen = judged("ema:keep=0.75")
    for shown, x, _ in seen:
        e = 0.75 * e + 0.25 * x
        same(shown, e)


def test_swa_averages_late_models():
    _, seen = judged("swa:start_at=0.5,cycle=2")  # from round 6 on: 8 and 10
    for t, (shown, x, _) in enumerate(seen):
        want = x if t < 8 else seen[8][1] if t < 10 else (seen[8][1] + seen[10][1]) / 2
        same(shown, want)
    with pytest.raises(SettingError, match="rounds"):
        trace("fedavg", toy(), add=["swa"])


def test_latest_mean():
    x0, seen = judged("latest_mean")
    latest = dict.fromkeys(range(3), x0)
    for shown, _, locals_ in seen:
        latest |= locals_
        same(shown, sum(latest.values()) / 3)


@pytest.mark.parametrize("text", ["ema", "swa:rounds=5", "latest_mean", "relaxed_start:beta=0"])
def test_judging_changes_no_training(text):
    same(tensor(xs("fedsmoo", add=[text])), tensor(xs("fedsmoo")))


# ------------------------------------------------------------------------------------------- executors and costs
MINE = [
    *[("fednsam", {"variant": v}) for v in ("intended", "released", "per_step")],
    ("fedgloss", {"ramp": 3}), ("fedgloss", {"variant": "official"}),
    *[("fedgmt", {"variant": v}) for v in ("official", "paper", "v2")],
    ("fedscar", {}), ("fedscar", {"rho": 0.1, "prox": "square", "anchor": "global"}), ("fedscar", {"scale": "var"}),
    ("fedscar", {"variant": "lagged", "anchor": "start"}), ("fedscar", {"variant": "poster"}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "settings"), MINE)
def test_vmap_equals_loop(name, settings):
    algorithm = make_algorithm(name, SGD(0.9, 0.01, 10.0), settings)
    same(train(algorithm, batched=True, rounds=3), train(algorithm, rounds=3))


@pytest.mark.parametrize("add", ["ema", "swa:rounds=2,cycle=1,start_at=0", "latest_mean", "relaxed_start"])
def test_additions_vmap_equals_loop(add):
    algorithm = make_algorithm("fedsmoo", SGD(0.9, 0.01, 10.0), add=(parse_addition(add),))
    same(train(algorithm, batched=True), train(algorithm))


# a client's vectors, down, up, gradients and further forwards a step: the table of the specification
COSTS = [
    ("fednsam", {}, (0, 1, 1, 2, 0)),
    ("fednsam", {"variant": "per_step"}, (0, 2, 1, 1, 0)),
    ("fedgloss", {}, (1, 1, 1, 2, 0)),
    ("fedgloss", {"rho_client": 0.0}, (1, 1, 1, 1, 0)),
    ("fedgmt", {}, (1, 2, 1, 1, 1)),
    ("fedgmt", {"variant": "v2"}, (2, 1, 1, 1, 1)),
    ("fedscar", {}, (3, 2, 1, 1, 0)),
    ("fedscar", {"rho": 0.1}, (3, 2, 1, 2, 0)),
    ("fedscar", {"variant": "lagged"}, (3, 2, 3, 1, 0)),
]


@pytest.mark.parametrize(("name", "settings", "want"), COSTS)
def test_costs(name, settings, want):
    assert costs_of(make_algorithm(name, RECIPE, settings)) == want


def test_additions_cost_what_they_say():
    for text, want in {
        "ema": (0, 1, 1),
        "latest_mean": (1, 1, 2),
        "relaxed_start": (1, 1, 1),
        "swa:rounds=10": (0, 1, 1),
    }.items():
        assert costs_of(make_algorithm("fedavg", RECIPE, add=(parse_addition(text),)))[:3] == want


def test_settings_are_checked():
    for name, settings in [("fedgmt", {"beta": 0.0}), ("fedgmt", {"keep": 1.5}), ("fedgloss", {"beta": -1.0}),
                           ("fedscar", {"keep": math.nan}), ("fednsam", {"gamma": 2.0})]:  # fmt: skip
        with pytest.raises(SettingError):
            make_algorithm(name, RECIPE, settings)
