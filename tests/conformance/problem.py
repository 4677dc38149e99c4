"""A small, awkward federation for everything in the catalogue: unequal clients, short batches, one-step clients."""

from functools import cache, partial
from inspect import signature

import torch
from torch import nn

from steppe.algorithms import CATALOGUE
from steppe.config import resolve
from steppe.core.server import Server
from steppe.core.task import Task
from steppe.data import find_augmentation, from_arrays
from steppe.data.federation import Federation
from steppe.data.partition import Partition
from steppe.engine.play_round import play_round
from steppe.executors.batched import Batched
from steppe.executors.captured import Captured
from steppe.executors.sequential import Sequential
from steppe.experiment import Experiment
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm
from steppe.runs.client_store import MemoryStore

CLIENTS, LR = 6, 0.05
LONELY = [[0, 1, 3, 4], [3], [5, 0, 2, 4]]  # a round of one client, who was there before


class Net(nn.Module):
    """Small, smooth, with convolutions, a named head and two taps."""

    head, taps = "classifier", ("act1", "act2")

    def __init__(self):
        super().__init__()
        self.conv, self.act1 = nn.Conv2d(1, 3, 3, stride=2), nn.ReLU()
        self.body, self.act2 = nn.Linear(27, 6), nn.ReLU()
        self.classifier = nn.Linear(6, 4)

    def forward(self, x):
        x = self.act1(self.conv(x)).flatten(1)
        return self.classifier(self.act2(self.body(x)))


@cache
def federation(device="cpu"):
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(50, 1, 8, 8, generator=g), torch.randint(4, (50,), generator=g)
    data = from_arrays(x, y, x[:8], y[:8], classes=4).to(device)
    order = torch.randperm(50, generator=g).numpy()
    sizes = [13, 3, 10, 11, 7, 6]  # with batches of 5: a short last batch, a single batch, full batches only
    ends = torch.tensor(sizes).cumsum(0).tolist()
    clients = tuple(order[e - n : e] for e, n in zip(ends, sizes, strict=True))
    return Federation(data, Partition(clients, "by hand", 0), 5, 2, find_augmentation("none"), 7, torch.float64)


@cache
def task(device="cpu"):
    torch.manual_seed(1)
    return Task(Net().double()).to(device)


def algorithm(name, settings=None, momentum=0.9, add=()):
    return make_algorithm(name, SGD(momentum, 1e-3, 10.0), settings or {}, add)


def run(alg, rounds=3, executor="sequential", schedule=None, state=None, device="cpu", **options):
    """Some rounds; returns (server, store). `state` goes on from an earlier return."""
    fed, tsk = federation(device), task(device)
    kinds = {"sequential": Sequential, "batched": Batched, "captured": partial(Captured, width=2)}
    work = kinds[executor](alg, tsk, fed, **options)
    server, store, first = state or (
        Server(tsk.x0, alg.server_state(tsk.x0), {}),
        MemoryStore(lambda: alg.client_state(tsk.x0)),
        0,
    )
    schedule = schedule or [[0, 1, 3, 4], [5, 2, 1], [3, 0, 5, 2, 4], [1, 0]]
    built = Experiment(resolve({"clients": CLIENTS}), alg, tsk, fed, None)
    for t in range(first, first + rounds):
        server = play_round(built, server, store, work, t, schedule[t % len(schedule)], LR * 0.9**t).after
    return server, store, first + rounds


def entries():
    """Every entry with its defaults, and once with every other variant that its settings offer."""
    from typing import Literal, get_args, get_origin, get_type_hints

    found = []
    for name, function in CATALOGUE.items():
        found.append((name, {}))
        for key, hint in get_type_hints(function).items():
            if key != "return" and get_origin(hint) is Literal:
                usual = signature(function).parameters[key].default
                found += [(name, {key: choice}) for choice in get_args(hint) if choice != usual]
    return found


def label(entry):
    name, settings = entry
    return name + "".join(f"-{k}={v}" for k, v in settings.items())
