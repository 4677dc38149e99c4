"""What a measure is: a function of a subject, a model with all that may be asked about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from torch import Tensor

from steppe import flatness
from steppe.core.errors import SteppeError
from steppe.core.layout import Tensors
from steppe.evaluate.accuracy import Score, score
from steppe.experiment import Experiment
from steppe.flatness import Estimate, Loss, Sample, Spectrum


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
    others: Sequence[tuple[str, Tensor]] = ()  # names and models of the runs that were given before this one
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
        return flatness.by_layer(self.hessian, self.experiment.task.layout, seed=self.seed, names=["all", *self.blocks])

    @property
    def blocks(self) -> list[str]:
        """The head and the body, where the model has both, and every layer."""
        layout = self.experiment.task.layout
        halves = [on for on in ("head", "body") if 0 < layout.size_of(on) < layout.size]
        return [*halves, *flatness.layers(layout)]

    @cached_property
    def round(self) -> Round:
        if self.play is None:
            raise SteppeError("This measure looks at the clients' models, and there is no round to take them from.")
        return self.play()

    @cached_property
    def clients(self) -> list[Loss]:
        """The losses of the round's clients, each over all of its training data."""
        return [self.loss_on(flatness.of_client(self.experiment.federation, i)) for i in self.round.ids]

    @cached_property
    def few(self) -> list[Loss]:
        """The same, each over at most as many examples as the sample has, because curvature takes many passes."""
        held, count = self.experiment.federation, len(self.sample)
        return [self.loss_on(flatness.of_client(held, i, count, self.seed)) for i in self.round.ids]

    @cached_property
    def given(self) -> Score:
        """On the test set: the model that the clients were given."""
        return self._judged(self.round.x)

    @cached_property
    def local(self) -> list[Score]:
        """On the test set: the clients' models at the end of their round."""
        return [self._judged(w) for w in self.round.local]

    def _judged(self, w: Tensor) -> Score:
        federation = self.experiment.federation
        data, targets = federation.data, federation.targets(federation.data.test_targets)
        return score(self.experiment.task, w, self.buffers, data.test_inputs, targets, federation.plain)


Kind = Literal["hessian", "sharpness", "clients", "drawn"]


@dataclass(frozen=True)
class Measure:
    of: Callable[[Subject], Any]
    kind: Kind  # `drawn` gives arrays, on request only
    usual: bool  # cheap enough to be computed when nobody says what to measure
    clients: bool  # needs a round of local training
    runs: int  # how many runs it takes: more than 1, and it looks at those that were given before
    products: int  # with the Hessian, where it takes many and their number is known
    blocks: bool  # that many for each block

    @property
    def about(self) -> str:
        return (self.of.__doc__ or "").strip().partition("\n")[0]


MEASURES: dict[str, Measure] = {}


def measure(kind: Kind, usual: bool = False, clients: bool = False,
            runs: int = 1, products: int = 0, blocks: bool = False,
            ) -> Callable[[Callable[[Subject], Any]], Callable[[Subject], Any]]:  # fmt: skip
    """The function below becomes a measure of its own name."""

    def register(function: Callable[[Subject], Any]) -> Callable[[Subject], Any]:
        asks = clients or kind == "clients"
        MEASURES[function.__name__] = Measure(function, kind, usual, asks, runs, products, blocks)
        return function

    return register
