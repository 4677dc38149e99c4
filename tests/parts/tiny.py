"""A small federation for tests of parts: a perceptron in float64, three clients, padded batches."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import vmap

from steppe.core.algorithm import Algorithm
from steppe.core.client import begin, by_autograd, by_transform, end, step
from steppe.core.part import Part
from steppe.core.scopes import Aggregation, LocalStep
from steppe.core.server import Server, aggregate, broadcast
from steppe.core.stacking import stack, take_row
from steppe.core.task import Task

CLIENTS, STEPS, BATCH, CLASSES = 3, 3, 6, 4


def number(v):
    return torch.tensor(float(v), dtype=torch.float64)


def perceptron(seed=0):
    torch.manual_seed(seed)
    layers = {"first": nn.Linear(5, 8), "act": nn.ReLU(), "second": nn.Linear(8, 6), "act2": nn.ReLU()}
    return Task(nn.Sequential(OrderedDict(layers, head=nn.Linear(6, CLASSES))).double())


def data(seed=0, batches_per_step=1):
    """Batches of all clients: (C, T, B, …)."""
    g = torch.Generator().manual_seed(seed)
    shape = (CLIENTS, STEPS * batches_per_step, BATCH)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[1, -1, 2:] = False  # a short last batch
    x = torch.randn(*shape, 5, generator=g, dtype=torch.float64)
    return {"x": x, "y": torch.randint(CLASSES, shape, generator=g), "mask": mask}


def train(algorithm: Algorithm, task=None, rounds=2, batched=False, lr=0.1, differentiate=None, weights=(3, 2, 1)):
    """(x, server's states, clients' states, losses) after some rounds; under vmap, or one client after the other."""
    task = perceptron() if task is None else task
    per = algorithm.batches_per_step
    everything, steps = data(batches_per_step=per), number(STEPS)
    server = Server(task.x0, algorithm.server_state(task.x0), {})
    states = stack([algorithm.client_state(task.x0)] * CLIENTS)
    differentiate = differentiate or (by_transform if batched else by_autograd)

    def local(sent, state, batches):
        live = begin(algorithm, task, sent, state, steps)
        for k in range(STEPS):
            pair = tuple({n: t[k * per + j] for n, t in batches.items()} for j in range(per))
            live = step(algorithm, task, sent, live, pair, number(k), steps, differentiate)
        return end(algorithm, task, sent, live, steps)

    for t in range(rounds):
        server, sent = broadcast(algorithm, task.layout, server, number(lr), number(t), states, CLIENTS)
        with torch.no_grad():
            if batched:
                replies = vmap(lambda s, b: local(sent, s, b))(states, everything)  # noqa: B023
            else:
                replies = stack([local(sent, take_row(states, i), take_row(everything, i)) for i in range(CLIENTS)])
        states = replies.state
        shares, everyone = torch.tensor(weights).double(), lambda part, name: states[part][name]  # noqa: B023
        server = aggregate(algorithm, task.layout, server, sent, replies, shares, CLIENTS, everyone)
    return server.x, server.state, states, replies.loss


def one_step(algorithm: Algorithm, task, x, w, batch, index=1, lr=1.0, state=None):
    """A client's parameters after one step from w, having received x."""
    server = Server(x, algorithm.server_state(task.x0), {})
    sent = broadcast(algorithm, task.layout, server, number(lr).to(x), number(0).to(x))[1]
    live = begin(algorithm, task, sent, state or algorithm.client_state(task.x0), number(5).to(x))
    with torch.no_grad():
        batches = (batch,) * algorithm.batches_per_step
        return step(algorithm, task, sent, live._replace(w=w), batches, number(index).to(x), number(5).to(x)).w


def local_step(layout, x, state=None, down=None, index=None, batch=None):
    """What a part sees in a step from w = x, where every gradient that it asks for is 1."""
    one = torch.ones((), dtype=x.dtype)
    return LocalStep(layout, x, 0.1 * one, 0 * one, state or {}, down or {}, x, x, one if index is None else index,
                     4 * one, batch or {}, {}, False, False, lambda term, w: torch.ones_like(w),
                     lambda term, w, features: torch.ones_like(w))  # fmt: skip


def aggregation(layout, x, state):
    """What a server's rule sees that looks at the mean update and its own state alone."""
    return Aggregation(layout, x, number(0.1), number(0), state, 1, {}, 1, 1.0, None, None, None)


def same(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@dataclass(frozen=True)
class Spy(Part):
    """Notes where the gradients of those inside it are asked for."""

    name = "spy"

    def __post_init__(self):
        object.__setattr__(self, "asked", [])

    def gradient(self, grad, w, s):
        self.asked.append(w)
        return grad(w)
