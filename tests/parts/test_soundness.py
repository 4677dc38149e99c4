"""Parts in combinations: what they read off a client's way, and what the server keeps of its clients' states."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import steppe
from steppe.core.algorithm import Algorithm
from steppe.core.errors import CompositionError, SteppeError
from steppe.core.server import Server
from steppe.core.task import Task
from steppe.engine.quadratics import Problem, trace, trace_algorithm
from steppe.parts.activation_norm import ActivationNorm
from steppe.parts.adamw import AdamW
from steppe.parts.client_momentum import ClientMomentum
from steppe.parts.consistent_sam import ConsistentSAM
from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.geometric_bias import GeometricBias
from steppe.parts.global_ascent import GlobalAscent
from steppe.parts.latest_mean import LatestMean
from steppe.parts.momentum_sam import MomentumSAM
from steppe.parts.nesterov import NesterovStart
from steppe.parts.norm_bound import NormBound
from steppe.parts.relaxed_start import RelaxedStart
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm, parse_addition

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "quadratic.json").read_text())
CLIENTS = [
    {"A": [[2.0, 0.3], [0.3, 1.0]], "b": [1.0, -2.0], "n": 10},
    {"A": [[1.0, 0.0], [0.0, 1.5]], "b": [-1.0, 1.0], "n": 30},
    {"A": [[0.7, 0.2], [0.2, 1.1]], "b": [3.0, 0.5], "n": 20},
]


def problem(rounds, **change):
    return Problem(**{"clients": CLIENTS, "x0": [0.2, -0.1], "rounds": rounds, "steps": [2, 4, 3], "lr": 0.05,
                      "weighting": "uniform", **change})  # fmt: skip


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


def gradient(i, w):
    return tensor(CLIENTS[i]["A"]) @ (w - tensor(CLIENTS[i]["b"]))


def kept(found, part, name):
    """The state of every client, 0 for those that never took part."""
    return [tensor(found["clients"][str(i)][part][name]) if str(i) in found["clients"] else tensor([0.0, 0.0])
            for i in range(3)]  # fmt: skip


def consistent(rounds, part, server, client=None, sign=1.0):
    for found in rounds:
        mean = sum(kept(found, part, client or server)) / 3
        torch.testing.assert_close(tensor(found["server"][part][server]), sign * mean, rtol=0, atol=1e-12)


PARTIAL = [[0, 1], [2], [0, 2], [1, 2, 0], [1], [0, 1, 2]] * 3


# -------------------------------------------------------------- activations of a module that is called several times
class Reused(nn.Module):
    def __init__(self, relus):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.relus = nn.ModuleList([nn.ReLU()] * 3 if relus == 1 else [nn.ReLU() for _ in range(3)])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for layer, relu in zip(self.layers, self.relus, strict=True):
            x = relu(layer(x))
        return self.head(x)


def test_every_call_of_an_activation_counts():
    torch.manual_seed(0)
    several = Reused(3)
    one = Reused(1)
    one.load_state_dict(several.state_dict())
    inputs, see = torch.randn(5, 4), frozenset({"activations"})
    shown = [Task(m).forward(Task(m).x0, inputs, {}, see).activations for m in (one, several)]
    assert len(shown[0]) == len(shown[1]) == 3
    for a, b in zip(*shown, strict=True):
        assert torch.equal(a, b)
    assert ActivationNorm(0.1).needs == see


# ------------------------------------------------------------------------- gradients that are read off the way
@pytest.mark.parametrize("lr", [0.05, 1e-9])  # the round's rate may have decayed to nothing; the outer one has not
def test_per_fedavg_with_control_variates_keeps_mean_directions(lr):
    add = ControlVariates()
    found = trace_algorithm(make_algorithm("perfedavg", SGD(), {"outer_lr": 0.05, "inner_lr": 0.0}, (add,)),
                            problem([[0, 1, 2]], lr=lr))["rounds"][0]  # fmt: skip
    for i, steps in enumerate((2, 4, 3)):
        w, total = tensor([0.2, -0.1]), torch.zeros(2).double()
        for _ in range(steps):
            g = gradient(i, w)
            w, total = w - 0.05 * g, total + g
        torch.testing.assert_close(kept(found, "control_variates", "c")[i], total / steps, rtol=0, atol=1e-9)


def test_per_fedavg_with_client_momentum_keeps_the_mean_direction():
    settings = {"outer_lr": 0.05, "inner_lr": 0.0}
    xs = [trace_algorithm(make_algorithm("perfedavg", SGD(), settings, (ClientMomentum(0.5),)),
                          problem([[0, 1, 2]] * 2, lr=lr, steps=1))["rounds"] for lr in (0.05, 1e-9)]  # fmt: skip
    want = sum(0.5 * gradient(i, tensor([0.2, -0.1])) for i in range(3)) / 3
    for rounds in xs:
        torch.testing.assert_close(tensor(rounds[0]["server"]["client_momentum"]["D"]), want, rtol=0, atol=1e-9)
    torch.testing.assert_close(tensor(xs[0][1]["x"]), tensor(xs[1][1]["x"]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaffold", {}),
        ("fedcm", {}),
        ("feddyn", {"variant": "official"}),
        ("fedsmoo", {"variant": "official"}),
        ("fednova", {"variant": "ccvr"}),
        ("fedsol", {"proximal": "scaffold"}),
        ("feddc", {}),
    ],
)
def test_adamw_hides_the_gradients(name, settings):
    with pytest.raises(CompositionError, match=f"{name}: .* derives gradients .* use the optimiser sgd"):
        make_algorithm(name, AdamW(), settings)


def test_adamw_goes_with_the_others():
    for name in ("fedavg", "feddyn", "fedsmoo", "fednova", "fedsam", "fedscar", "fedsol"):
        make_algorithm(name, AdamW())


def test_a_momentum_of_inner_gradients_hides_them_too():
    with pytest.raises(CompositionError, match="use variant=clean"):
        make_algorithm("perfedavg", SGD(0.9), {"variant": "official"}, (ControlVariates(),))


# -------------------------------------------------------------------------------------- starts that were moved
@pytest.mark.parametrize(
    "others",
    [
        (DynamicRegularisation(0.1, "active"),),
        (DynamicRegularisation(0.1, "all"),),
        (RelaxedStart(0.3, "official"),),
        (RelaxedStart(0.3, "paper"),),
        (GlobalAscent(0.2),),  # these two send another model than the global one
        (NesterovStart(0.5),),
        (GlobalAscent(0.2), NesterovStart(0.5), RelaxedStart(0.3)),
    ],
)
@pytest.mark.parametrize("variant", ["official", "lagged"])
def test_fedscars_dual_is_the_mean_of_its_clients(others, variant):
    rounds = trace_algorithm(Algorithm((GeometricBias(0.2, 0.8, 0.05, variant=variant), *others, SGD())),
                             problem(PARTIAL))["rounds"]  # fmt: skip
    consistent(rounds, "geometric_bias", "h")
    if others[0].name == "dynamic_regularisation" and others[0].over == "all":
        consistent(rounds, "dynamic_regularisation", "h")


@pytest.mark.parametrize("variant", ["official", "paper"])
def test_client_momentum_is_measured_from_the_start(variant):
    """One step each: D is the mean of the directions, wherever the clients began."""
    alpha, beta = 0.4, 0.5
    parts = (ClientMomentum(alpha), RelaxedStart(beta, variant), SGD())
    rounds = trace_algorithm(Algorithm(parts), problem(PARTIAL, steps=1))["rounds"]
    x, last, D = tensor([0.2, -0.1]), [tensor([0.2, -0.1])] * 3, torch.zeros(2).double()
    for active, found in zip(PARTIAL, rounds, strict=True):  # with everybody, moves of the start cancel in the mean
        starts = {i: x + beta * (x - last[i]) for i in active}
        directions = {i: alpha * gradient(i, w) + (1 - alpha) * D for i, w in starts.items()}
        for i in active:
            last[i] = starts[i] - 0.05 * directions[i]
        D, x = sum(directions.values()) / len(active), tensor(found["x"])
        torch.testing.assert_close(tensor(found["server"]["client_momentum"]["D"]), D, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------- bounded uploads
@pytest.mark.parametrize(
    ("parts", "part", "name", "client"),
    [
        ((ControlVariates(),), "control_variates", "c", "c"),
        ((DynamicRegularisation(0.1),), "dynamic_regularisation", "h", "h"),
        ((GeometricBias(0.2, 0.8, 0.05, variant="lagged"),), "geometric_bias", "h", "h"),
        ((RelaxedStart(0.3), ControlVariates()), "control_variates", "c", "c"),
        ((MomentumSAM(0.05),), "momentum_sam", "c", "c"),
        ((ConsistentSAM(0.05, "early"),), "consistent_sam", "mu", "mu"),
    ],
)
def test_what_the_server_takes_is_what_the_client_keeps(parts, part, name, client):
    rounds = trace_algorithm(Algorithm((*parts, NormBound(0.3), SGD())), problem(PARTIAL))["rounds"]
    free = trace_algorithm(Algorithm((*parts, SGD())), problem(PARTIAL))["rounds"]
    assert rounds[-1]["x"] != free[-1]["x"], "nothing was bounded"
    consistent(rounds, part, name, client)


def test_the_latest_mean_under_a_bound():
    rounds = trace_algorithm(Algorithm((LatestMean(), NormBound(0.3), SGD())), problem(PARTIAL))["rounds"]
    for found in rounds:
        own = [tensor(found["clients"][str(i)]["latest_mean"]["last"]) if str(i) in found["clients"]
               else tensor([0.2, -0.1]) for i in range(3)]  # fmt: skip
        torch.testing.assert_close(tensor(found["server"]["latest_mean"]["mean"]), sum(own) / 3, rtol=0, atol=1e-12)


def test_the_mean_bias_under_a_bound():
    """The server's b̄ is the mean of the clients' b_i, which decay in every round."""
    parts = (GeometricBias(0.2, 0.8, 0.05, variant="lagged"), NormBound(0.3), SGD())
    for t, found in enumerate(trace_algorithm(Algorithm(parts), problem(PARTIAL))["rounds"]):
        states = [each["geometric_bias"] for each in found["clients"].values()]
        mean = sum(0.8 ** (t - state["when"]) * tensor(state["b"]) for state in states) / 3
        torch.testing.assert_close(tensor(found["server"]["geometric_bias"]["bbar"]), mean, rtol=0, atol=1e-12)


def optimum():
    A, b = [tensor(c["A"]) for c in CLIENTS], [tensor(c["b"]) for c in CLIENTS]
    return torch.linalg.solve(sum(A), sum(a @ v for a, v in zip(A, b, strict=True)))


@pytest.mark.parametrize("limit", [0.3, 5.0])
def test_scaffold_under_a_bound_still_finds_the_optimum(limit):
    rounds = trace("scaffold", problem([[0, 1, 2]] * 120, lr=0.1), add=[f"norm_bound:limit={limit}"])["rounds"]
    assert float((tensor(rounds[-1]["x"]) - optimum()).norm()) < 1e-6


# -------------------------------------------------------------------------------------- FedSoL along SCAFFOLD's term
def test_fedsol_along_scaffolds_term_keeps_bounded_variates():
    rounds = trace("fedsol", problem(PARTIAL * 20), {"proximal": "scaffold", "rho": 0.1, "radius": "fixed"})["rounds"]
    largest = max(float(c.norm()) for found in rounds for c in kept(found, "proximal_ascent", "c"))
    assert largest < 10  # gradients in reach of the clients' optima are not longer
    consistent(rounds, "proximal_ascent", "c")


# --------------------------------------------------------------------------------------------------------- FedNova
def test_fednova_without_steps_stays_where_it_is():
    for variant in ("nova", "ccvr", "official"):
        result = steppe.run("fednova", rounds=2, epochs=0, clients=4, per_round=2, settings={"variant": variant})
        assert torch.equal(result.x, result.experiment.task.x0)


def test_a_run_says_where_an_algorithm_is_known_to_fail():
    def notes(name, **keys):
        return " ".join(steppe.run(name, rounds=1, epochs=0, clients=4, **keys).notes)

    official = {"settings": {"variant": "official"}}
    assert "diverges if all clients take part" in notes("fednova", per_round=4, **official)
    assert "diverges" not in notes("fednova", per_round=3, **official) + notes("fednova", per_round=4)
    assert "Set it near the drift" in notes("fedgf", per_round=4)
    assert "drift" not in notes("fedgf", per_round=4, settings={"threshold": 1.0})


def test_fednova_refuses_a_bound_on_its_uploads():
    for text in ("norm_bound:limit=1", "dp:clip=1,noise=0"):
        with pytest.raises(CompositionError, match="twice: use fedavg with max_steps"):
            make_algorithm("fednova", SGD(), {}, (parse_addition(text),))
    with pytest.raises(CompositionError, match="adds its dual to the update: use over=all"):
        make_algorithm("fednova", SGD(), {}, (DynamicRegularisation(1.0, "active"),))
    make_algorithm("fednova", SGD(), {}, (DynamicRegularisation(1.0), RelaxedStart()))


# ------------------------------------------------------------------------------------------------- rates of zero
@pytest.mark.parametrize("name", ["fedbabu", "perfedavg", "fedavg"])
def test_tuning_after_a_cosine_needs_a_rate(name):
    keys = {"rounds": 2, "clients": 4, "per_round": 2, "lr_schedule": "cosine", "personal": [1]}
    with pytest.raises(SteppeError, match="personal_lr"):
        steppe.run(name, **keys)
    tuned = steppe.run(name, **keys, personal_lr=0.05).summary["personal"]["1"]["mean"]
    assert 0 <= tuned <= 1


def test_a_cosine_without_tuning_needs_none():
    steppe.run("fedavg", rounds=1, clients=4, per_round=2, lr_schedule="cosine")
    steppe.run("local", rounds=1, clients=4, per_round=2, lr_schedule="cosine")  # judged as they are


# --------------------------------------------------------------------------------------- statistics of another model
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x.flatten(1)))))


@pytest.mark.parametrize("add", ["ema:keep=0.9", "swa:start_at=0,cycle=1", "latest_mean"])
def test_a_mean_of_models_is_judged_with_statistics_of_its_own(add):
    from steppe.evaluate.global_model import choose_evaluated_model

    torch.manual_seed(0)
    result = steppe.run("fedavg", model=Normed(), rounds=4, clients=4, per_round=2, add=[add], lr=0.3)
    x, buffers = choose_evaluated_model(result.experiment, result.server, 3)
    assert not torch.equal(x, result.server.x)
    task, federation = result.experiment.task, result.experiment.federation
    inputs = federation.plain(federation.data.train_inputs)
    hidden = torch.nn.functional.linear(
        inputs.flatten(1), *(task.layout.unflatten(x)[f"body.{k}"] for k in ("weight", "bias"))
    )
    torch.testing.assert_close(buffers["norm.running_mean"], hidden.mean(0), rtol=0.1, atol=0.05)
    stale = Server(x, {}, result.server.buffers).buffers["norm.running_mean"]
    assert float((stale - hidden.mean(0)).norm()) > 3 * float((buffers["norm.running_mean"] - hidden.mean(0)).norm())


def test_the_trained_model_keeps_its_averaged_statistics():
    from steppe.evaluate.global_model import choose_evaluated_model

    torch.manual_seed(0)
    result = steppe.run("fedavg", model=Normed(), rounds=2, clients=4, per_round=2, add=["ema:keep=0"])
    assert choose_evaluated_model(result.experiment, result.server, 1)[1] is result.server.buffers
