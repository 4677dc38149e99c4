"""MAN: its vectors, its place beside other parts, its cost."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from tiny import data, number, one_step, perceptron, same, train
from torch import nn

from steppe.core.algorithm import Algorithm
from steppe.core.client import begin, end, step
from steppe.core.cost import cost
from steppe.core.server import Server, aggregate, broadcast
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.parts.activation_norm import ActivationNorm
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

MAN = json.loads((Path(__file__).parent.parent / "vectors" / "softmax.json").read_text())["MAN"]


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


def problem():
    p = MAN["problem"]
    layers = {"one": nn.Linear(2, 2, False), "act": nn.ReLU(), "two": nn.Linear(2, 2, False)}
    model = nn.Sequential(OrderedDict(layers)).double()
    model.one.weight.data, model.two.weight.data = tensor(p["W1"]), tensor(p["W2"])
    batches = [{"x": tensor(c["X"]), "y": torch.tensor(c["y"])} for c in p["clients"]]
    return p, Task(model), batches


def activation(task, w, batch):
    return task.forward(w, batch["x"], {}, frozenset({"activations"})).activations[0].square().mean()


def test_at_the_start():
    _, task, batches = problem()
    want, w = MAN["at_start"], task.x0
    out = task.forward(w, batches[0]["x"], {}, frozenset({"activations"}))
    same(out.activations[0], tensor(want["hidden"]))
    same(activation(task, w, batches[0]), tensor(want["act"]))
    same(task.loss(out.logits, batches[0]) + want["weight"] / 2 * activation(task, w, batches[0]), tensor(want["loss"]))
    gradient = w - one_step(Algorithm((ActivationNorm(want["weight"]),)), task, w, w, batches[0])
    same(gradient.view(2, 2, 2), tensor([want["dW1"], want["dW2"]]))


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_rounds(weight):
    p, task, batches = problem()
    optimiser = SGD(p["momentum"], p["weight_decay"], p["clip"])
    algorithm = make_algorithm("fedavg", optimiser, add=(ActivationNorm(weight),))
    server, steps = Server(task.x0, algorithm.server_state(task.x0), {}), number(p["steps"])
    for t, want in enumerate(MAN[f"weight {weight:g}"]):
        server, sent = broadcast(algorithm, task.layout, server, number(p["lr"]), number(t))
        replies = []
        with torch.no_grad():
            for batch in batches:
                live = begin(algorithm, task, sent, algorithm.client_state(task.x0), steps)
                for k in range(p["steps"]):
                    live = step(algorithm, task, sent, live, (batch,), number(k), steps)
                replies.append(end(algorithm, task, sent, live, steps))
        server = aggregate(algorithm, task.layout, server, sent, stack(replies), tensor([1.0, 1.0]), 2)
        same(server.x.view(2, 2, 2), tensor([want["W1"], want["W2"]]))
        same(activation(task, server.x, batches[0]), tensor(want["act0"]))


def test_weight_zero_is_nothing():
    plain = make_algorithm("scaffold", SGD(0.9))
    same(train(plain.plus(ActivationNorm(0.0)))[0], train(plain)[0], 0)


def test_both_passes_of_sam_have_it():
    """SAM on the sum of loss and penalty, by hand."""
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}

    def gradient(w):
        w = w.detach().requires_grad_()
        out = task.forward(w, batch["x"], {}, frozenset({"activations"}))
        total = task.loss(out.logits, batch) + 0.1 * sum(a.square().mean() for a in out.activations)
        return torch.autograd.grad(total, w)[0]

    g = gradient(task.x0)
    want = gradient(task.x0 + 0.3 * g / g.norm())
    got = task.x0 - one_step(Algorithm((ActivationNorm(0.2), SAM(0.3))), task, task.x0, task.x0, batch)
    same(got, want)


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "fedsol"])
def test_under_vmap(name):
    algorithm = make_algorithm(name, SGD(0.9), add=(ActivationNorm(0.3),))
    assert algorithm.name == f"{name}+man"
    same(train(algorithm, batched=True), train(algorithm))


def test_it_costs_no_pass():
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    plain = make_algorithm("fedavg", SGD())
    assert cost(plain.plus(ActivationNorm()), task, batch) == cost(plain, task, batch)
