"""FedNova: T3, the reference for its corrections, its limits and costs."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from tiny import data, perceptron, same, train

from steppe.core.cost import cost
from steppe.engine.quadratics import Problem, trace
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

HERE = Path(__file__).parent.parent
QUADRATIC = json.loads((HERE / "vectors" / "quadratic.json").read_text())
_spec = importlib.util.spec_from_file_location("reference_quadratic", HERE / "references" / "quadratic.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
CASES = [c for c in QUADRATIC["cases"] if c["algorithm"] == "fednova"]


def close(a, b):
    np.testing.assert_allclose(np.array(a, float), np.array(b, float), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_t3(case):
    problem = {**QUADRATIC["problems"][case["problem"]], **case["change"]}
    rounds = trace("fednova", Problem(**problem), case["settings"])["rounds"]
    close([r["x"] for r in rounds], case["x"])
    close([[r["local"][i] for i in "01"] for r in rounds], [[w[i] for i in "01"] for w in case["locals"]])
    if case["settings"]["variant"] == "official":
        for i in "01":
            close(rounds[0]["clients"][i]["normalised_averaging"]["d"], case["extra"]["d"][0][i])


@pytest.mark.parametrize("variant", ["nova", "ccvr", "official"])
def test_against_the_reference(variant):
    """Unequal sizes, steps and participation: the mean over all clients is by size, absent ones included."""
    problem = {**QUADRATIC["problems"]["sol"], "steps": [3, 1], "rounds": [[0, 1], [1], [0], [0, 1]]}
    rounds = trace("fednova", Problem(**problem), {"variant": variant})["rounds"]
    want = reference.run("fednova", problem, {"variant": variant})
    close([r["x"] for r in rounds], want["x"])
    if variant == "ccvr":
        close([r["server"]["normalised_averaging"]["d"] for r in rounds], want["server"]["d"])


def test_equal_steps_are_fedavg():
    same(train(make_algorithm("fednova", SGD(0.9)))[0], train(make_algorithm("fedavg", SGD(0.9)))[0], 1e-14)


@pytest.mark.parametrize("variant", ["nova", "ccvr", "official"])
def test_under_vmap(variant):
    algorithm = make_algorithm("fednova", SGD(0.9), {"variant": variant})
    same(train(algorithm, batched=True), train(algorithm))


@pytest.mark.parametrize(("variant", "down", "kept"), [("nova", 1, 0), ("ccvr", 2, 1), ("official", 1, 1)])
def test_costs(variant, down, kept):
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    c = cost(make_algorithm("fednova", SGD(), {"variant": variant}), task, batch)
    assert (c.down, c.kept, c.gradients, c.forwards) == (down, kept, 1, 0)
    assert c.up == 1 + 2 / task.layout.size  # two scalars
