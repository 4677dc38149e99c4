"""Any algorithm on a federation of quadratics, small enough to check by hand.

f_i(w) = ½ (w − b_i)ᵀ A_i (w − b_i), with exact gradients, in float64. `trace` returns the state after every round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from steppe.config import resolve
from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Sent, begin, end, step
from steppe.core.cost import cost
from steppe.core.errors import SteppeError, quote
from steppe.core.inputs import take
from steppe.core.part_class_checks import explain_missing_states
from steppe.core.server import Server
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.data import Data, Partition, find_augmentation
from steppe.data.federation import Federation
from steppe.engine.play_round import play_round
from steppe.executors.executor import Answers
from steppe.experiment import Experiment
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm, parse_addition
from steppe.runs.client_store import MemoryStore
from steppe.settings import explain


class Client(BaseModel):
    """One client's quadratic, and its number of samples n for weighting."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    A: list[list[float]]
    b: list[float]
    n: int = Field(1, ge=1)


class Problem(BaseModel):
    """The problem file. `tensors` are the sizes of the named tensors; the last one is the head."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    clients: list[Client] = Field(min_length=1)
    x0: list[float] = Field(min_length=1)
    tensors: list[int] | None = None
    rounds: list[list[int]]
    steps: int | list[int] = 1
    lr: float = Field(gt=0)
    lr_decay: float = Field(1.0, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0)
    weighting: Literal["samples", "uniform"] = "samples"

    @model_validator(mode="after")
    def check_consistent(self) -> Problem:
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
            raise ValueError(f"steps must be a positive number, or a list of {n}, one per client")
        self.steps = steps
        return self


def read_problem(given: str | Path | Mapping[str, Any]) -> Problem:
    """Check a problem: a JSON file, or the same as a dictionary."""
    name = str(given) if isinstance(given, str | Path) else "problem"
    try:
        content = json.loads(Path(given).read_text()) if isinstance(given, str | Path) else given
        if not isinstance(content, Mapping):
            form = "a JSON object" if isinstance(given, str | Path) else "a dictionary or the path of a JSON file"
            raise SteppeError(f"{name} is not {form}: it is {quote(content)}.")
        return Problem(**content)
    except FileNotFoundError:
        raise SteppeError(f"There is no problem file {name}.") from None
    except ValidationError as error:
        raise SteppeError(f"{name}: {explain(error, Problem)}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise SteppeError(f"{name} is not a JSON object: {error}.") from None


class Quadratic(nn.Module):
    """Named tensors whose concatenation is w; the output is the loss itself."""

    def __init__(self, x0: Tensor, sizes: list[int]) -> None:
        super().__init__()
        names = [f"tensor{i}" for i in range(len(sizes) - 1)] + ["head"]
        for name, piece in zip(names, torch.split(x0, sizes), strict=True):
            block = nn.Module()
            block.weight = nn.Parameter(piece.clone())
            self.add_module(name, block)

    def forward(self, inputs: Tensor) -> Tensor:  # (1, d, d + 1): A, and b as the last column
        w = torch.cat(list(self.parameters()))
        A, b = inputs[..., :-1], inputs[..., -1]
        return 0.5 * torch.einsum("ni,nij,nj->n", w - b, A, w - b)


def trace(
    name: str, problem: Problem, settings: dict[str, Any] | None = None, add: Sequence[str] = ()
) -> dict[str, Any]:
    """Run an algorithm and return every round's global model, server states and client states as nested lists."""
    optimiser = SGD(problem.momentum, problem.weight_decay, problem.clip)
    return trace_algorithm(make_algorithm(name, optimiser, settings, tuple(map(parse_addition, add))), problem)


@explain_missing_states()
def trace_algorithm(algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """Do the same as `trace` for an algorithm that is already built."""
    if algorithm.needs:
        wants = " and ".join(sorted(algorithm.needs))
        raise SteppeError(f"{algorithm.name} needs a model's {wants}, which a quadratic does not have: "
                          "trace an algorithm that uses only the parameters")  # fmt: skip
    x0 = torch.tensor(problem.x0, dtype=torch.float64)
    assert problem.tensors is not None
    task = Task(Quadratic(x0, problem.tensors), loss=lambda outputs, _: outputs, head="head")
    experiment = _build_experiment(algorithm, task, problem)
    executor = Exact(experiment, problem)
    store = MemoryStore(lambda: algorithm.client_state(x0))
    server = Server(x0, algorithm.server_state(x0), {})
    rounds = []
    for t, active in enumerate(problem.rounds):
        played = play_round(experiment, server, store, executor, t, active, problem.lr * problem.lr_decay**t)
        server = played.after
        clients = {str(i): _to_lists(row) for i, row in sorted(store.rows.items())}
        rounds.append({"x": server.x.tolist(), "server": _to_lists(server.state), "clients": clients, **played.facts})
    return {"algorithm": algorithm.name, "rounds": rounds}


def _build_experiment(algorithm: Algorithm, task: Task, problem: Problem) -> Experiment:
    """Build a federation whose clients hold one sample each: their quadratic."""
    both = [[[*row, b] for row, b in zip(c.A, c.b, strict=True)] for c in problem.clients]
    inputs, none = torch.tensor(both, dtype=torch.float64), torch.zeros(len(both))
    data = Data("quadratics", inputs, none, inputs[:0], none[:0], None)
    split = Partition(tuple(np.array([i]) for i in range(len(both))), "one each", 0)
    config = resolve({"clients": len(both), "per_round": 1, "weighting": problem.weighting, "dtype": "float64"})
    federation = Federation(data, split, 1, 1, find_augmentation("none"), 0, torch.float64)
    example = {"x": inputs[:1], "y": none[:1]}
    return Experiment(config, algorithm, task, federation, cost(algorithm, task, example))


class Exact:
    """An executor that trains clients with exact gradients, each for its own number of steps."""

    trusted = True

    def __init__(self, experiment: Experiment, problem: Problem) -> None:
        self.experiment, self.problem = experiment, problem

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        algorithm, task, data = self.experiment.algorithm, self.experiment.task, self.experiment.federation.data
        assert isinstance(self.problem.steps, list)
        replies, local = [], {}
        with torch.no_grad():
            for i, state in zip(ids, states, strict=True):
                steps = sent.lr.new_tensor(float(self.problem.steps[i]))
                batch = {"x": take(data.train_inputs, slice(i, i + 1)), "y": data.train_targets[i : i + 1]}
                live = begin(algorithm, task, sent, state, steps)
                for k in range(self.problem.steps[i]):
                    pair = (batch,) * algorithm.batches_per_step
                    live = step(algorithm, task, sent, live, pair, sent.lr.new_tensor(float(k)), steps)
                replies.append(end(algorithm, task, sent, live, steps))
                local[str(i)] = live.w.tolist()
        sizes = [c.n for c in self.problem.clients]
        return Answers(list(ids), stack(replies), [sizes[i] for i in ids], sum(sizes), {"local": local})

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _to_lists(states: States) -> dict[str, dict[str, Any]]:
    return {part: {k: v.tolist() for k, v in tensors.items()} for part, tensors in states.items() if tensors}
