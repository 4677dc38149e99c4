"""Measures of a trained model by name: what `steppe analyze` computes, and what a run may record every n rounds.

A measure is a function of a `Subject`; its name is the function's. To add one, write the function here and, if its
numbers belong in a table, a column in `report/analysis.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from steppe import flatness
from steppe.core.layout import Tensors
from steppe.errors import SteppeError, nearest
from steppe.evaluate.accuracy import Score, score
from steppe.flatness import Estimate, Loss, Sample, Spectrum

if TYPE_CHECKING:
    from steppe.simulate.setup import Experiment

RHO = 0.05  # radius of SAM's ball, and of the flatness distance
RHO_ASAM = 0.5  # of the adaptive ball, whose unit is a share of every weight
RHO_FEDSOL = 2.0  # FedSoL's, which its adaptive radius makes small
SIGMA = 0.01  # of the noise on every weight
# During training the memory that may be used is fixed, because how a sum is cut into chunks shows in its last digit,
# and a resumed run must end with the same bits.
FIXED_MEMORY = {"cpu": 1 << 30, "cuda": 4 << 30}


class Round(NamedTuple):
    """One round of local training, seen from outside."""

    ids: list[int]
    x: Tensor  # what the clients were given
    local: Tensor  # their models at its end, (n, P)
    after: Tensor  # the new global model


@dataclass
class Subject:
    """One model with all that a measure may ask about it. What several measures need is computed once."""

    experiment: Experiment
    w: Tensor
    buffers: Tensors
    sample: Sample
    seed: int = 0
    points: int = 21  # a side of a landscape
    play: Callable[[], Round] | None = None  # a round of local training, where one can be had
    reference: tuple[str, Tensor] | None = None  # another run's model, and its name
    memory_limit: int | None = None

    @cached_property
    def loss(self) -> Loss:
        return self.loss_on(self.sample)

    def loss_on(self, sample: Sample) -> Loss:
        return Loss(self.experiment.task, sample, self.buffers, memory_limit=self.memory_limit)

    @cached_property
    def hessian(self) -> flatness.Hessian:
        return self.loss.hessian(self.w)

    @cached_property
    def top(self) -> Spectrum:
        return flatness.spectrum(self.hessian, top=5, seed=self.seed)

    @cached_property
    def traces(self) -> dict[str, Estimate]:
        """Of the whole and of its parts: the same products give them all."""
        layout = self.experiment.task.layout
        parts = ["all", *_blocks(layout), *flatness.layers(layout)]
        return flatness.by_layer(self.hessian, layout, seed=self.seed, names=parts)

    @cached_property
    def round(self) -> Round:
        if self.play is None:
            raise SteppeError("This measure looks at the clients' models, and there is no round to take them from.")
        return self.play()

    @cached_property
    def clients(self) -> list[Loss]:
        """The losses of the round's clients, each over all of its training data."""
        return [self.loss_on(flatness.of_client(self.experiment.federation, i)) for i in self.round.ids]

    def judge(self, w: Tensor) -> Score:
        """On the test set."""
        federation = self.experiment.federation
        data, targets = federation.data, federation.targets(federation.data.test_targets)
        return score(self.experiment.task, w, self.buffers, data.test_inputs, targets, federation.plain)


Kind = Literal["hessian", "sharpness", "clients", "drawn"]


@dataclass(frozen=True)
class Measure:
    of: Callable[[Subject], Any]
    kind: Kind  # `clients` needs a round of local training; `drawn` gives arrays, on request only
    usual: bool  # cheap enough to be computed when nobody says what to measure

    @property
    def about(self) -> str:
        return (self.of.__doc__ or "").strip().partition("\n")[0]


MEASURES: dict[str, Measure] = {}


def _measure(kind: Kind, usual: bool = False) -> Callable[[Callable[[Subject], Any]], Callable[[Subject], Any]]:
    def register(function: Callable[[Subject], Any]) -> Callable[[Subject], Any]:
        MEASURES[function.__name__] = Measure(function, kind, usual)
        return function

    return register


# ------------------------------------------------------------------------------------------------- the Hessian
@_measure("hessian", usual=True)
def lambda1(s: Subject) -> Any:
    """the five largest eigenvalues of the Hessian and λ1/λ5, with residuals"""
    return _ends(s.top)


@_measure("hessian")
def smallest(s: Subject) -> Any:
    """the smallest eigenvalue of the Hessian, with its residual"""
    return _ends(flatness.spectrum(s.hessian, top=0, bottom=1, seed=s.seed))


@_measure("hessian", usual=True)
def trace(s: Subject) -> Any:
    """the trace of the Hessian by Hutchinson's 100 probes, ± standard error"""
    return s.traces["all"]


@_measure("hessian")
def trace_pp(s: Subject) -> Any:
    """the trace by Hutch++ with 99 products: better where a few eigenvalues dominate"""
    return flatness.hutch_plus_plus(s.hessian, seed=s.seed)


@_measure("hessian")
def per_layer(s: Subject) -> Any:
    """trace and largest eigenvalue of the Hessian's blocks: every layer, the head, the body"""
    tops = {name: flatness.spectrum(s.loss.hessian(s.w, name), top=1, seed=s.seed).top
            for name in s.traces if name != "all"}  # fmt: skip
    return {"trace": {name: t for name, t in s.traces.items() if name != "all"},
            "lambda1": {name: {"value": float(p.values[0]), "error": float(p.residuals[0])}
                        for name, p in tops.items()}}  # fmt: skip


@_measure("drawn")
def density(s: Subject) -> Any:
    """the density of all eigenvalues by stochastic Lanczos quadrature, ± standard error"""
    return flatness.density(s.hessian, seed=s.seed)


# ---------------------------------------------------------------------------------------------------- sharpness
@_measure("sharpness", usual=True)
def loss(s: Subject) -> Any:
    """the loss on the sample, ± standard error over examples"""
    return s.loss.estimate(s.w)


@_measure("sharpness", usual=True)
def sharpness(s: Subject) -> Any:
    """rise of the loss after SAM's one step of length 0.05"""
    return flatness.worst_loss(s.loss, s.w, RHO)


@_measure("sharpness")
def ascent(s: Subject) -> Any:
    """rise to the worst loss met in five ascent steps inside that ball"""
    return flatness.worst_loss(s.loss, s.w, RHO, steps=5)


@_measure("sharpness", usual=True)
def asam(s: Subject) -> Any:
    """rise after ASAM's step of length 0.5, which a rescaling of the weights cannot change"""
    return flatness.worst_loss(s.loss, s.w, RHO_ASAM, adaptive=True)


@_measure("sharpness", usual=True)
def lpf(s: Subject) -> Any:
    """mean loss under Gaussian noise of 0.01 on every weight (100 draws)"""
    return flatness.noisy_loss(s.loss, s.w, SIGMA, seed=s.seed)


@_measure("sharpness", usual=True)
def gradient_norm(s: Subject) -> Any:
    """length of the gradient over the whole sample"""
    return flatness.gradient_norm(s.loss, s.w)


# ------------------------------------------------------------------------- clients: one round from the final model
@_measure("clients", usual=True)
def consistency(s: Subject) -> Any:
    """mean squared distance of the clients' models from their mean, and from the new global model"""
    return flatness.consistency(s.round.local, s.round.after)


@_measure("clients", usual=True)
def divergence(s: Subject) -> Any:
    """mean distance of the clients' models from the one they were given, and of pairs"""
    return flatness.divergence(s.round.x, s.round.local)


@_measure("clients", usual=True)
def alignment(s: Subject) -> Any:
    """cosines of the clients' gradients at the model that they were given"""
    return flatness.alignment(flatness.gradients(s.clients, s.round.x))


@_measure("clients", usual=True)
def flatness_discrepancy(s: Subject) -> Any:
    """FedScar's flatness discrepancy: as its code computes it, and as its poster defines it"""
    r = s.round
    return flatness.flatness_discrepancy(s.clients, r.x, r.after, r.local, s.loss)


@_measure("clients")
def flatness_distance(s: Subject) -> Any:
    """our stand-ins for FedNSAM's flatness distance, whose definition is not public"""
    return flatness.flatness_distance(s.clients, s.loss, s.round.after, s.round.local, RHO)


@_measure("clients")
def proximal_effect(s: Subject) -> Any:
    """FedSoL's proximal loss at the clients' models, and cos(g_u, g_p)"""
    if s.experiment.federation.data.classes is None:
        raise SteppeError("proximal_effect compares class probabilities, and this task has no classes: leave it out.")
    each = [flatness.proximal_effect(f, w, s.round.x, RHO_FEDSOL)
            for f, w in zip(s.clients, s.round.local, strict=True)]  # fmt: skip
    cosines = [e.cosine for e in each if e.cosine is not None]
    return {"loss": Estimate.of([e.loss for e in each]), "cosine": Estimate.of(cosines) if cosines else None}


@_measure("clients")
def radius_profile(s: Subject) -> Any:
    """FedSoL's adaptive radius, its mean in every tensor"""
    return flatness.radius_profile(s.experiment.task.layout, s.round.local, s.round.x)


@_measure("clients", usual=True)
def forgetting(s: Subject) -> Any:
    """test accuracy that local training loses: of the model given to the clients, minus their mean"""
    return flatness.forgetting(s.judge(s.round.x), [s.judge(w) for w in s.round.local])


@_measure("clients")
def lambda1_clients(s: Subject) -> Any:
    """largest eigenvalue of each client's own Hessian at the final model, and their mean"""
    pairs = [flatness.spectrum(f.hessian(s.w), top=1, seed=s.seed).top for f in s.clients]
    values = [float(p.values[0]) for p in pairs]
    return {"mean": Estimate.of(values), "each": values, "residuals": [float(p.residuals[0]) for p in pairs],
            "ids": s.round.ids}  # fmt: skip


# --------------------------------------------------------------------------------------------------- landscapes
@_measure("drawn")
def landscape(s: Subject) -> Any:
    """the loss over the plane of the Hessian's two leading eigenvectors"""
    axes = [flatness.ticks(s.points)] * 2
    return flatness.landscape(s.loss, s.w, s.top.top.vectors[:2], axes, "eigenvectors", s.seed)


@_measure("drawn")
def landscape_clients(s: Subject) -> Any:
    """each client's loss over that same plane"""
    axes, rows = [flatness.ticks(s.points)] * 2, s.top.top.vectors[:2]
    return {f"client-{i}": flatness.landscape(f, s.w, rows, axes, "eigenvectors", s.seed)
            for i, f in zip(s.round.ids, s.clients, strict=True)}  # fmt: skip


@_measure("drawn")
def landscape_random(s: Subject) -> Any:
    """the loss over two random directions, filter-normalised"""
    rows = flatness.filter_normalised(s.experiment.task.layout, s.w, s.seed)
    return flatness.landscape(s.loss, s.w, rows, [flatness.ticks(s.points)] * 2, "random", s.seed)


@_measure("drawn")
def plane(s: Subject) -> Any:
    """the loss over the plane through the global model and two clients' models"""
    if len(s.round.local) < 2:
        raise SteppeError("The plane goes through two clients' models: choose at least 2 clients.")
    names = ("global", *(f"client {i}" for i in s.round.ids[:2]))
    rows, marks = flatness.plane([s.round.x, *s.round.local[:2]], names)
    at = np.array(list(marks.values()))
    low, high = at.min(0), at.max(0)
    axes = [np.linspace(a - 0.25 * (b - a), b + 0.25 * (b - a), s.points) for a, b in zip(low, high, strict=True)]
    return flatness.landscape(s.loss, s.round.x, rows, axes, "plane", marks=marks)


@_measure("drawn")
def line(s: Subject) -> Any:
    """the loss from the initial model to the final one, and beyond"""
    if s.experiment.named_model is None:
        raise SteppeError("The line starts at the initial model, which is not kept for a module of your own: "
                          "leave it out, or use steppe.flatness.interpolation.")  # fmt: skip
    return flatness.interpolation(s.loss, s.experiment.task.x0, s.w, 2 * s.points - 1, names=("initial", "final"))


@_measure("drawn")
def line_runs(s: Subject) -> Any:
    """the loss from the first of several runs' models to this one's"""
    if s.reference is None:
        return None  # this is the first
    name, other = s.reference
    if other.shape != s.w.shape:
        raise SteppeError(f"There is no line to the model of {name}, which has another number of parameters.")
    return flatness.interpolation(s.loss, other.to(s.w), s.w, 2 * s.points - 1, names=(name, "this"))


@_measure("drawn")
def line_clients(s: Subject) -> Any:
    """the global loss from the model that clients were given to each of theirs"""
    return {f"client-{i}": flatness.interpolation(s.loss, s.round.x, w, s.points, names=("global", f"client {i}"))
            for i, w in zip(s.round.ids, s.round.local, strict=True)}  # fmt: skip


def _ends(found: Spectrum) -> dict[str, Any]:
    """A spectrum without its vectors."""

    def told(pairs: flatness.Pairs) -> dict[str, Tensor]:
        return {"values": pairs.values, "residuals": pairs.residuals}

    first = {"lambda1": found.lambda1, "ratio": found.ratio} if len(found.top.values) else {}
    return {**first, "top": told(found.top), "bottom": told(found.bottom), "converged": found.converged,
            "products": found.products}  # fmt: skip


def _blocks(layout: Any) -> list[str]:
    return [on for on in ("head", "body") if 0 < layout.size_of(on) < layout.size]


# --------------------------------------------------------------------------------------------------- their names
GROUPS: dict[str, Callable[[Measure], bool]] = {
    "usual": lambda m: m.usual,
    "hessian": lambda m: m.kind == "hessian",
    "clients": lambda m: m.kind == "clients",
    "numbers": lambda m: m.kind != "drawn",
}


def chosen(words: Iterable[str]) -> list[str]:
    """Names of measures and of groups as names of measures, in the registry's order.

    >>> chosen(["smallest", "lambda1"])
    ['lambda1', 'smallest']
    """
    found: set[str] = set()
    for word in words:
        if word in GROUPS:
            found |= {name for name, m in MEASURES.items() if GROUPS[word](m)}
        else:
            known(word)
            found.add(word)
    return [name for name in MEASURES if name in found]


def known(name: str) -> Measure:
    if name not in MEASURES:
        raise SteppeError(f"there is no measure {name!r}{nearest(name, [*MEASURES, *GROUPS])}")
    return MEASURES[name]


# ------------------------------------------------------------------------------------------------ during training
def schedule(words: Sequence[str]) -> dict[str, int]:
    """`name` or `name:every` as name -> rounds between two of them.

    >>> schedule(["lambda1:10", "gradient_norm"])
    {'lambda1': 10, 'gradient_norm': 1}
    """
    found = {}
    for word in words:
        name, colon, every = word.partition(":")
        if known(name).kind == "drawn":
            raise SteppeError(f"measure {word!r}: {name} is not for training; steppe analyze computes it afterwards")
        if colon and not (every.isdecimal() and int(every) > 0):
            raise SteppeError(f"measure {word!r}: write it as {name}:10, for every tenth round")
        found[name] = int(every) if colon else 1
    return found


def needs_clients(words: Sequence[str]) -> bool:
    """Whether any of them looks at the clients' models."""
    return any(MEASURES[name].kind == "clients" for name in schedule(words))


class During:
    """The measures of a run's configuration, each in its rounds. They never change what is trained."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.every = experiment, schedule(experiment.config.measure)

    def due(self, round_: int, anybody: bool = True) -> list[str]:
        """Those of this round; in a round that nobody answered there are no clients to look at."""
        names = [name for name, every in self.every.items() if round_ % every == 0]
        return [name for name in names if anybody or MEASURES[name].kind != "clients"]

    @cached_property
    def sample(self) -> Sample:
        return flatness.of_training_data(self.experiment.federation)

    def taken(self, names: list[str], w: Tensor, buffers: Tensors,
              played: Callable[[], Round] | None) -> dict[str, Any]:  # fmt: skip
        limit = FIXED_MEMORY.get(w.device.type, 1 << 30)
        subject = Subject(self.experiment, w, buffers, self.sample, play=played, memory_limit=limit)
        return {name: flatness.as_json(MEASURES[name].of(subject)) for name in names}
