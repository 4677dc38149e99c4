"""The conformance suite for your own part or algorithm, for pytest:

    from steppe.testing import conforms

    def test_my_part():
        conforms(LookBack(0.1), neutral=LookBack(0.0))

It takes a few seconds on a tiny federation in float64, and raises an AssertionError that says what does not hold.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from steppe.api import run
from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Sent
from steppe.core.cost import trace_round
from steppe.core.part import Part
from steppe.core.part_class_checks import PartSlip
from steppe.core.scopes import LocalStep, Oracle
from steppe.core.server import Server
from steppe.engine.play_round import play_round
from steppe.engine.read_call import Asked
from steppe.engine.result import Result
from steppe.executors.executor import Answers
from steppe.executors.sequential import Sequential
from steppe.experiment import Experiment
from steppe.runs.client_store import MemoryStore

KEYS: dict[str, Any] = {"clients": 6, "per_round": 3, "rounds": 3, "epochs": 1, "batch": 5, "lr": 0.1, "momentum": 0.5,
                        "partition": "lda(0.5)", "dtype": "float64", "workers": 0, "device": "cpu",
                        "checkpoint_every": 1}  # fmt: skip
CALLED, LOST = [[0, 1, 3, 4], [5, 2, 1], [3, 0, 5, 2, 4]], [[3], [1, 5], [0, 4]]
CLOSE = 1e-8  # relative, in float64: executors add in different orders


class _Net(nn.Module):
    """A model with everything that a part may need: activations, features, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.act, self.head = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.act(self.body(x)))
        return out


def conforms(algorithm: Asked, *, neutral: Asked | None = None, **options: Any) -> None:
    """Check a part, several parts, an algorithm, a function that returns parts, or a name.

    - Every number of a few rounds is finite.
    - Hooks return what they must, write only states that are declared, and change nothing in place.
    - One client after the other, and all of them under vmap, give the same numbers.
    - A run that was interrupted continues to the same bits.
    - Costs can be traced without data, and `asks` is the number of gradients that `gradient` computes.
    - A sampled client that does not reply has no effect.
    - With the neutral setting, nothing changes compared with FedAvg.

    algorithm  as in `steppe.run`
    neutral    the same with a setting that should change nothing, if there is one
    options    keys of the run, in addition to those of the tiny one
    """
    with torch.random.fork_rng(devices=[]):
        one = _run_and_read(algorithm, options)
        _check_finite(one)
        _check_executors(one, algorithm, options)
        _check_resume(one, algorithm, options)
        _check_costs(one.experiment)
        _check_absence(one.experiment)
        if neutral is not None:
            _check_neutral(neutral, options)


def _run(algorithm: Asked, options: dict[str, Any], **more: Any) -> Result:
    return run(algorithm, _Net(), _make_blobs(), progress=False, **{**KEYS, **options, **more})


def _make_blobs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make three overlapping classes in six dimensions."""
    g = torch.Generator().manual_seed(1)
    y = torch.arange(120) % 3
    x = torch.randn(120, 6, generator=g) + nn.functional.one_hot(y, 6) * 1.5
    return x[:90], y[:90], x[90:], y[90:]


def _name(of: Result | Experiment) -> str:
    return (of if isinstance(of, Experiment) else of.experiment).algorithm.name


def _check_finite(one: Result) -> None:
    wrong = [f"{key} in round {r['round']}" for r in one.history for key, v in r.items()
             if isinstance(v, float) and not math.isfinite(v)]  # fmt: skip
    assert not wrong, f"{_name(one)} is not finite: {', '.join(wrong)}"
    assert not torch.equal(one.server.x, one.experiment.task.x0), f"{_name(one)} does not move the global model"


def _run_and_read(algorithm: Asked, options: dict[str, Any]) -> Result:
    try:
        return _run(algorithm, options, executor="sequential")
    except PartSlip as error:
        raise AssertionError(str(error)) from error


def _check_executors(one: Result, algorithm: Asked, options: dict[str, Any]) -> None:
    other = _run(algorithm, options, executor="batched")
    told = [note for note in other.notes if "one after the other" in note]
    assert not told, (f"{_name(one)} fails when clients are batched under vmap: use no .item(), no branch on a tensor "
                      f"and no random stream in a hook ({told[0]})")  # fmt: skip
    gap = _measure_distance(one.server, other.server)
    assert gap < CLOSE, (f"{_name(one)} gives other numbers when clients are batched: they differ by {gap:.1g}. "
                         "The usual causes are random numbers (torch.rand, a generator: draw by steppe.core.keyed "
                         "instead), and what a part keeps outside its states")  # fmt: skip


def _check_resume(one: Result, algorithm: Asked, options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="steppe-") as folder:
        again = {"executor": "sequential", "out": Path(folder) / "run"}
        with suppress(KeyboardInterrupt):
            _run(algorithm, options, watch=_interrupt_run, **again)
        two = _run(algorithm, options, resume=True, **again)
    same = all(torch.equal(p, q) for p, q in zip(tree_leaves(one.server), tree_leaves(two.server), strict=True))
    assert same, (
        f"{_name(one)} does not resume to the same bits: a part keeps something outside client_state and server_state"
    )


def _interrupt_run(record: dict[str, Any]) -> None:
    if record["round"] == 2:
        raise KeyboardInterrupt


def _check_costs(experiment: Experiment) -> None:
    algorithm, task = experiment.algorithm, experiment.task
    batch = {"x": torch.zeros(5, 6), "y": torch.zeros(5, dtype=torch.int64)}
    try:
        found = trace_round(algorithm, task, batch)
    except Exception as error:
        raise AssertionError(f"The cost of {algorithm.name} cannot be traced without data: a hook reads numbers, or "
                             f"makes tensors on another device ({error!r})") from error  # fmt: skip
    assert found.meter.gradients >= 1, f"{algorithm.name} takes no gradient in a step"
    for place, part in enumerate(algorithm.parts):
        if part.has("gradient"):
            watched, counts = _watch(part)
            parts = (*algorithm.parts[:place], watched, *algorithm.parts[place + 1 :])
            trace_round(Algorithm(parts, algorithm.name), task, batch)
            asked = max(counts, default=0)
            assert asked <= part.asks, (
                f"'{part.name}' says asks = {part.asks}, but its gradient asks {asked} times per step: write "
                f"asks = {asked}"
            )


def _watch(part: Part) -> tuple[Part, list[int]]:
    """Return a copy of the part whose `gradient` counts its calls of the oracle that it wraps."""
    watched, counts, own = copy.copy(part), list[int](), part.gradient

    def gradient(grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        counts.append(0)
        here = len(counts) - 1

        def counted(*args: Any, **more: Any) -> Tensor:
            counts[here] += 1
            return grad(*args, **more)

        return own(counted, w, s)

    object.__setattr__(watched, "gradient", gradient)
    return watched, counts


class _Losing(Sequential):
    """Trains all sampled clients; some replies are lost."""

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        answers = super().__call__(sent, ids, states)
        keep = [k for k, i in enumerate(ids) if i not in LOST[int(sent.round)]]
        replies = tree_map(lambda v: v[keep], answers.replies)
        return Answers([ids[k] for k in keep], replies, [answers.sizes[k] for k in keep], answers.samples, {})


def _check_absence(experiment: Experiment) -> None:
    never = [[i for i in ids if i not in lost] for ids, lost in zip(CALLED, LOST, strict=True)]
    one, two = _play(experiment, Sequential, never), _play(experiment, _Losing, CALLED)
    same = one[1].keys() == two[1].keys() and all(
        torch.equal(p, q) for p, q in zip(tree_leaves(one), tree_leaves(two), strict=True)
    )
    assert same, f"With {experiment.algorithm.name}, a client that does not reply leaves a trace on the server"


def _play(experiment: Experiment, executor: Any, schedule: list[list[int]]) -> tuple[Server, dict[int, States]]:
    algorithm, task = experiment.algorithm, experiment.task
    server = Server(task.x0, algorithm.server_state(task.x0), task.buffers)
    store = MemoryStore(lambda: algorithm.client_state(task.x0))
    trains = executor(algorithm, task, experiment.federation)
    for t, ids in enumerate(schedule):
        server = play_round(experiment, server, store, trains, t, ids, experiment.lr(t)).after
    return server, {i: store.rows[i] for i in store.list_known()}


def _check_neutral(neutral: Asked, options: dict[str, Any]) -> None:
    one, plain = _run(neutral, options), _run("fedavg", options)
    gap = _measure_distance(one.server.x, plain.server.x)
    assert gap < CLOSE, f"{_name(one)} should be neutral, but moves the model away from FedAvg's by {gap:.1g}"


def _measure_distance(one: Any, two: Any) -> float:
    """Return the largest difference, relative to the larger of 1 and the number itself."""
    pairs = zip(tree_leaves(one), tree_leaves(two), strict=True)
    gaps = [((p - q).abs() / p.abs().clamp(min=1)).max() for p, q in pairs if p.numel()]
    return max((float(gap) for gap in gaps), default=0.0)
