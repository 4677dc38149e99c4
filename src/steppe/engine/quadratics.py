"""A microscope: any algorithm on a federation of quadratics that can be checked by hand.

f_i(w) = ½ (w − b_i)ᵀ A_i (w − b_i), exact gradients, float64. `trace` returns every round's state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import begin, end, step
from steppe.core.errors import RunFailed, SteppeError
from steppe.core.server import Server, aggregate, broadcast
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.parts.sgd import SGD
from steppe.registry import make, parse_addition


class Client(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    A: list[list[float]]
    b: list[float]
    n: int = Field(1, ge=1)


class Problem(BaseModel):
    """The problem file. `tensors` are the sizes of the named tensors, the last one being the head."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    clients: list[Client] = Field(min_length=1)
    x0: list[float] = Field(min_length=1)
    tensors: list[int] | None = None
    rounds: list[list[int]]
    steps: int | list[int] = 1
    lr: float = Field(gt=0)
    lr_decay: float = Field(1.0, gt=0)
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    weighting: Literal["samples", "uniform"] = "samples"

    @model_validator(mode="after")
    def consistent(self) -> Problem:
        d, n = len(self.x0), len(self.clients)
        if self.tensors is None:
            self.tensors = [d]
        if sum(self.tensors) != d or min(self.tensors) < 1:
            raise ValueError(f"tensors {self.tensors} must be positive and add up to the {d} numbers of x0")
        for i, c in enumerate(self.clients):
            if len(c.b) != d or len(c.A) != d or any(len(row) != d for row in c.A):
                raise ValueError(f"client {i} needs a {d}×{d} matrix A and {d} numbers b, because x0 has {d}")
        for t, active in enumerate(self.rounds):
            if not active or len(set(active)) < len(active) or not all(0 <= i < n for i in active):
                raise ValueError(f"round {t} names clients {active}: at least one, each once, from 0 to {n - 1}")
        steps = [self.steps] * n if isinstance(self.steps, int) else self.steps
        if len(steps) != n or min(steps) < 1:
            raise ValueError(f"steps must be a positive number, or a list of {n}, one for each client")
        self.steps = steps
        return self


class Quadratic(nn.Module):
    """Named tensors whose concatenation is w; the output is the loss itself."""

    def __init__(self, x0: Tensor, sizes: list[int]) -> None:
        super().__init__()
        names = [f"tensor{i}" for i in range(len(sizes) - 1)] + ["head"]
        for name, piece in zip(names, torch.split(x0, sizes), strict=True):
            block = nn.Module()
            block.weight = nn.Parameter(piece.clone())
            self.add_module(name, block)

    def forward(self, inputs: Tensor) -> Tensor:  # (1, d, d + 1): A beside b
        w = torch.cat(list(self.parameters()))
        A, b = inputs[..., :-1], inputs[..., -1]
        return 0.5 * torch.einsum("ni,nij,nj->n", w - b, A, w - b)


def trace(
    name: str, problem: Problem, settings: dict[str, Any] | None = None, add: Sequence[str] = ()
) -> dict[str, Any]:
    """Every round's global model, server states and client states, as nested lists of float64."""
    optimiser = SGD(problem.momentum, problem.weight_decay, problem.clip)
    return trace_algorithm(make(name, optimiser, settings, tuple(map(parse_addition, add))), problem)


def trace_algorithm(algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    if algorithm.needs:
        wants = " and ".join(sorted(algorithm.needs))
        raise SteppeError(f"{algorithm.name} needs a model's {wants}, which a quadratic does not have: "
                          "trace an algorithm that works on parameters alone")  # fmt: skip
    x0 = torch.tensor(problem.x0, dtype=torch.float64)
    assert problem.tensors is not None
    assert isinstance(problem.steps, list)
    task = Task(Quadratic(x0, problem.tensors), loss=lambda outputs, _: outputs, head="head")
    batches = []
    for c in problem.clients:
        A, b = torch.tensor(c.A, dtype=torch.float64), torch.tensor(c.b, dtype=torch.float64)
        batches.append({"x": torch.cat([A, b[:, None]], 1)[None], "y": torch.zeros(1)})
    server = Server(x0, algorithm.server_state(x0), {})
    states: dict[int, States] = {}
    sizes = [float(c.n) if problem.weighting == "samples" else 1.0 for c in problem.clients]
    rounds = []
    for t, active in enumerate(problem.rounds):
        lr = torch.tensor(problem.lr * problem.lr_decay**t, dtype=torch.float64)
        mine = [states.get(i) or algorithm.client_state(x0) for i in active]
        now = torch.tensor(float(t), dtype=torch.float64)
        server, sent = broadcast(algorithm, task.layout, server, lr, now, stack(mine), len(problem.clients))
        replies, locals_ = [], {}
        with torch.no_grad():
            for i, state in zip(active, mine, strict=True):
                steps = torch.tensor(float(problem.steps[i]), dtype=torch.float64)
                live = begin(algorithm, task, sent, state, steps)
                for k in range(problem.steps[i]):
                    pair = (batches[i],) * algorithm.batches_per_step
                    live = step(algorithm, task, sent, live, pair, torch.tensor(float(k)).double(), steps)
                replies.append(end(algorithm, task, sent, live, steps))
                locals_[str(i)] = live.w.tolist()
        states.update({i: reply.state for i, reply in zip(active, replies, strict=True)})

        def everyone(part: str, state: str) -> Tensor:
            return torch.stack([s[part][state] for _, s in sorted(states.items())])

        weights = torch.tensor([sizes[i] for i in active], dtype=torch.float64)
        server = aggregate(algorithm, task.layout, server, sent, stack(replies), weights, len(problem.clients),
                           everyone, sum(sizes))  # fmt: skip
        if not all(math.isfinite(v) for v in server.x.tolist()):
            raise RunFailed(f"{algorithm.name} diverged in round {t}: the global model is {server.x.tolist()}")
        clients = {str(i): _plain(s) for i, s in sorted(states.items())}
        rounds.append({"x": server.x.tolist(), "server": _plain(server.state), "clients": clients, "local": locals_})
    return {"algorithm": algorithm.name, "rounds": rounds}


def _plain(states: States) -> dict[str, dict[str, Any]]:
    return {part: {k: v.tolist() for k, v in tensors.items()} for part, tensors in states.items() if tensors}
