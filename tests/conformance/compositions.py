"""Compositions drawn from the registry, and a federation of quadratics on which any of them can be played.

Entries come from the catalogue with all their Literal settings, parts from the registry with settings out of their
declared types and ranges. A new entry or part is drawn by existing.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.algorithms import CATALOGUE
from steppe.config import resolve
from steppe.core.algorithm import Algorithm, States
from steppe.core.client import list_uploads
from steppe.core.part import Part
from steppe.core.ranges import Range, read_hints
from steppe.core.server import Server, choose_evaluated
from steppe.core.task import Outputs, Task
from steppe.data import Data, Partition, find_augmentation
from steppe.data.federation import Federation
from steppe.engine.play_round import play_round
from steppe.engine.quadratics import Exact, Problem, Quadratic
from steppe.executors.executor import Answers
from steppe.experiment import Experiment
from steppe.parts.adamw import AdamW
from steppe.parts.proximal_ascent import ProximalAscent
from steppe.parts.sgd import SGD
from steppe.registry import PARTS, make_algorithm, parse_addition
from steppe.runs.client_store import MemoryStore

OPTIMISERS: dict[str, Part] = {
    "sgd": SGD(),
    "sgd, momentum": SGD(0.5),
    "sgd, decay": SGD(decay=0.1),
    "sgd, clip": SGD(clip=0.5),
    "adamw": AdamW(decay=0.0),
}
CLIENTS, WIDTH = 4, 3
EVERYBODY = list(range(CLIENTS))
ROUNDS = 5  # of a generated schedule

# What a run would fill in, and what rounds of so few clients allow.
RUN: dict[str, dict[str, Any]] = {
    "dp": {"per_round": CLIENTS, "clients": CLIENTS, "seed": 1, "noise": 0.0},
    "swa": {"rounds": ROUNDS},
    "krum": {"bad": 0},
}

# The setting at which a part changes nothing; or None, and why there is none.
NEUTRAL: dict[str, str | None] = {
    "asam": "rho=0",
    "client_momentum": "alpha=1",
    "consistent_sam": "rho=0",
    "contrast": "mu=0",
    "control_variates": "scale=0",
    "distillation": "weight=0",
    "dp": f"clip=inf,noise=0,per_round={CLIENTS},clients={CLIENTS}",
    "dynamic_regularisation": None,  # x moves by the sum of all displacements, whatever alpha
    "ema": "keep=0",
    "geometric_bias": "alpha=0,beta=0",
    "global_ascent": "rho=0",
    "krum": f"bad=0,keep={CLIENTS}",
    "latest_mean": "",  # only judges
    "locally_estimated_sam": "rho=0",
    "server_ascent": "rho=0",
    "man": "weight=0",
    "median": None,  # of three or more is no mean
    "mixed_ascent": "rho=0,threshold=inf",
    "momentum_sam": None,  # alpha = 1, the plain gradient, divides by zero
    "nesterov_sam": "rho=0,gamma=0",
    "nesterov_start": "gamma=0",
    "norm_bound": "limit=inf",
    "proximal": "mu=0",
    "rate_cycle": "end=1,first=1",
    "relaxed_start": "beta=0",
    "sam": "rho=0",
    "server_adaptive": None,  # always divides by a root of squares
    "server_momentum": "lr=1,momentum=0",
    "swa": f"start_at=1,rounds={ROUNDS}",
    "trajectory_teacher": "weight=0",
    "trimmed_mean": "cut=0",
}


class Composition(NamedTuple):
    """An entry of the catalogue with settings, added parts, and an optimiser."""

    entry: str
    settings: dict[str, Any]
    add: tuple[Part, ...]
    optimiser: str

    def built(self, *more: Part) -> Algorithm:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # FedScar as printed
            return make_algorithm(self.entry, OPTIMISERS[self.optimiser], self.settings, (*self.add, *more))


def tame(hint: Any) -> list[Any]:
    """Some values of a declared type, inside its range and of a size that a few rounds survive."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) is Annotated:
        kind, limits = get_args(hint)[0], next((r for r in get_args(hint) if isinstance(r, Range)), None)
        some = (0, 1, 2, 3) if kind is int else (0.0, 0.05, 0.3, 0.7, 1.0, 2.0, math.inf)
        return [v for v in some if limits is None or v in limits]
    if hint is bool:
        return [False, True]
    return [v for kind in get_args(hint) for v in ([None] if kind is type(None) else tame(kind))]


def literals(name: str) -> dict[str, list[Any]]:
    return {k: tame(h) for k, h in read_hints(CATALOGUE[name]).items() if get_origin(h) is Literal}


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(sorted(CATALOGUE)))
    settings = {k: draw(st.sampled_from(v)) for k, v in literals(name).items() if draw(st.booleans())}
    if settings.get("first_step") == "official":  # along rounding noise, by design
        del settings["first_step"]
    return name, settings


@st.composite
def parts(draw: st.DrawFn, names: tuple[str, ...]) -> Part:
    """Any addable part, each of its settings at the default or at some value of its declared type and range."""
    name = draw(st.sampled_from(names))
    kind, settings = PARTS[name], {}
    for key, hint in read_hints(kind).items():
        must = inspect.signature(kind).parameters[key].default is inspect.Parameter.empty
        if key not in {"eps", *RUN.get(name, {})} and tame(hint) and (must or draw(st.booleans())):
            settings[key] = draw(st.sampled_from(tame(hint)))
    if settings.get("estimate", "corrected") != "corrected":
        settings.pop("gain", None)  # refused with it
    if settings.get("order") == "official":
        settings.pop("last", None)  # the same
    return kind(**RUN.get(name, {}), **settings)


def compositions(without: tuple[str, ...] = (), having: tuple[str, ...] = ()) -> st.SearchStrategy[Composition]:
    """Up to two parts added to any entry; `having` makes one of these parts likely."""
    names = tuple(name for name in PARTS if name not in without)
    some = st.lists(parts(names), max_size=2)
    if having:
        some |= st.builds(lambda first, rest: [first, *rest][:2], parts(having), some)
    added = some.map(lambda drawn: tuple({p.name: p for p in drawn}.values()))
    together = st.tuples(entries(), added, st.sampled_from(list(OPTIMISERS)))
    return together.map(lambda drawn: Composition(*drawn[0], drawn[1], drawn[2]))


class Turn(NamedTuple):
    """A round: who is called, whose reply is lost on the way, and whose is not finite."""

    called: list[int]
    lost: frozenset[int] = frozenset()
    spoiled: frozenset[int] = frozenset()


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """Partial rounds, empty ones, lost replies and refused ones; a run stops where all that came is refused."""
    called = draw(st.permutations(EVERYBODY))[: draw(st.sampled_from([CLIENTS, 3, 2, 2, 1, 0]))]
    some = st.frozensets(st.sampled_from(called)) if called else st.just(frozenset())
    lost, spoiled = draw(some), draw(some)
    came = set(called) - lost
    return Turn(called, lost, frozenset() if came <= spoiled else spoiled)


schedules = st.lists(turns(), min_size=ROUNDS, max_size=ROUNDS)


class Outright(Task):
    """A model whose logits, features and activations are its parameters; the loss is a client's quadratic of them."""

    def _run(self, w: Tensor, *_: Any, **__: Any) -> Outputs:
        return Outputs(w[None], w[None], (w[None],), {})

    def head_forward(self, w: Tensor, features: Tensor) -> Tensor:
        return w[None]

    def loss(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        gap = outputs[0] - batch["x"][0, :, -1]
        return 0.5 * gap @ batch["x"][0, :, :-1] @ gap


def quadratics(seed: int = 0, **change: Any) -> Problem:
    """Clients whose optima are a unit apart; their Hessians have eigenvalues from 0.6 to 1.8."""
    draw = np.random.default_rng(seed)
    clients = []
    for i in range(CLIENTS):
        turn = np.linalg.qr(draw.normal(size=(WIDTH, WIDTH)))[0]
        A = turn @ np.diag(draw.uniform(0.6, 1.8, WIDTH)) @ turn.T
        clients.append({"A": ((A + A.T) / 2).tolist(), "b": draw.normal(size=WIDTH).tolist(), "n": 1 + i})
    x0 = draw.normal(size=WIDTH).tolist()
    return Problem(**{"clients": clients, "x0": x0, "tensors": [2, 1], "rounds": [[0]], "steps": [2, 3, 1, 2],
                      "lr": 0.2, "weighting": "uniform", **change})  # fmt: skip


PROBLEM = quadratics()


class Unreliable(Exact):
    """Exact gradients; some replies are lost, some are not finite."""

    trusted = False
    turn: Turn

    def __call__(self, sent: Any, ids: Any, states: Any) -> Answers:
        answers = super().__call__(sent, ids, states)
        for k, i in enumerate(ids):
            if i in self.turn.spoiled:
                answers.replies.update[k] = torch.nan
        keep = [k for k, i in enumerate(ids) if i not in self.turn.lost]
        replies = tree_map(lambda v: v[keep], answers.replies)
        return answers._replace(ids=[ids[k] for k in keep], replies=replies, sizes=[answers.sizes[k] for k in keep])


@cache
def _stage(problem: str) -> tuple[Problem, Task, Federation, Any]:
    given = Problem.model_validate_json(problem)
    task = Outright(Quadratic(torch.tensor(given.x0, dtype=torch.float64), given.tensors or []), head="head")
    both = torch.tensor([[[*row, b] for row, b in zip(c.A, c.b, strict=True)] for c in given.clients],
                        dtype=torch.float64)  # fmt: skip
    targets = torch.tensor([c.n % WIDTH for c in given.clients])  # goes with the client, whatever its number
    data = Data("quadratics", both, targets, both[:0], targets[:0], None)
    split = Partition(tuple(np.array([i]) for i in range(len(both))), "one each", 0)
    federation = Federation(data, split, 1, 1, find_augmentation("none"), 0, torch.float64)
    config = resolve({"clients": len(both), "per_round": 1, "weighting": given.weighting, "dtype": "float64",
                      "nonfinite": "drop"})  # fmt: skip
    return given, task, federation, config


class Seen(NamedTuple):
    """After a round: the server, the clients' states, the model that is judged, and what was uploaded."""

    server: Server
    rows: dict[int, States]
    judged: Tensor
    uploads: frozenset[str]


def play(algorithm: Algorithm, schedule: list[Turn], problem: Problem = PROBLEM, until: Any = None) -> list[Seen]:
    """Play rounds by the library's own round; `until` may stop them early."""
    given, task, federation, config = _stage(problem.model_dump_json())
    experiment = Experiment(config, algorithm, task, federation, None)
    executor = Unreliable(experiment, given)
    store = MemoryStore(lambda: algorithm.client_state(task.x0))
    server, seen, sent = Server(task.x0, algorithm.server_state(task.x0), {}), [], frozenset[str]()
    for t, turn in enumerate(schedule):
        rate = given.lr * given.lr_decay**t
        if turn.called:  # an empty round is none, as in a run
            executor.turn = turn
            played = play_round(experiment, server, store, executor, t, turn.called, rate)
            server, sent = played.after, frozenset(list_uploads(algorithm, played.replies))
        now, lr = task.x0.new_tensor(float(t)), task.x0.new_tensor(rate)
        judged = choose_evaluated(algorithm, task.layout, server, lr, now, len(given.clients))
        seen.append(Seen(server, dict(store.rows), judged, sent))
        if until is not None and until(seen):
            break
    return seen


def always(rounds: int) -> list[Turn]:
    return [Turn(EVERYBODY)] * rounds


def neutral(name: str) -> Part | None:
    """The part at the setting at which it changes nothing."""
    setting = NEUTRAL[name]
    return None if setting is None else parse_addition(f"{name}:{setting}")


# Settings that are multiplied where the loss is, and divided where the learning rate is (-1).
GRADIENT_LIKE = {
    "proximal": {"mu": 1}, "dynamic_regularisation": {"alpha": 1}, "sgd": {"decay": 1, "clip": 1}, "man": {"weight": 1},
    "distillation": {"weight": 1}, "trajectory_teacher": {"weight": 1}, "contrast": {"mu": 1},
    "look_ahead": {"inner_lr": -1}, "fixed_rate": {"lr": -1},
}  # fmt: skip


def scaled(algorithm: Algorithm, factor: int) -> Algorithm:
    """The algorithm for a loss that is `factor` times as large."""

    def one(part: Part) -> Part:
        powers = GRADIENT_LIKE.get(part.name, {})
        change: dict[str, Any] = {k: getattr(part, k) * float(factor) ** power for k, power in powers.items()
                                  if getattr(part, k) is not None}  # fmt: skip
        if isinstance(part, ProximalAscent):
            change = {"of": one(part.of)}
        return dataclasses.replace(part, **change) if change else part

    return Algorithm(tuple(map(one, algorithm.parts)), algorithm.name)
