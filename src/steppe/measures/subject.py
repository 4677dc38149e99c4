"""A measure is a function of a `Subject`: a model with everything that measures need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from torch import Tensor

from steppe import flatness
from steppe.core.errors import SteppeError, take_first_line
from steppe.core.layout import Tensors
from steppe.evaluate.score import Score, score
from steppe.experiment import Experiment
from steppe.flatness import Estimate, Loss, Sample, Spectrum


class Round(NamedTuple):
    """The models of one round of local training."""

    ids: list[int]
    x: Tensor  # the model that the clients received
    local: Tensor  # the clients' models at the end of the round, (n, P)
    after: Tensor  # the new global model


@dataclass
class Subject:
    """One model with everything that measures need. Quantities that several measures share are computed once."""

    experiment: Experiment
    w: Tensor
    buffers: Tensors
    sample: Sample
    seed: int = 0
    points: int = 21  # points per side of a landscape
    play: Callable[[], Round] | None = None  # runs a round of local training, if possible
    others: Sequence[tuple[str, Tensor]] = ()  # names and models of the runs listed before this one
    memory_limit: int | None = None

    @cached_property
    def loss(self) -> Loss:
        """Return the loss on the sample."""
        return self.make_loss_on(self.sample)

    def make_loss_on(self, sample: Sample) -> Loss:
        """Return the loss on another sample."""
        return Loss(self.experiment.task, sample, self.buffers, memory_limit=self.memory_limit)

    @cached_property
    def hessian(self) -> flatness.Hessian:
        """Return the Hessian of the loss at the model."""
        return self.loss.hessian(self.w)

    @cached_property
    def top(self) -> Spectrum:
        """Return the five largest eigenvalues with their eigenvectors."""
        return flatness.spectrum(self.hessian, top=5, seed=self.seed)

    @cached_property
    def traces(self) -> dict[str, Estimate]:
        """Return the traces of the Hessian and of its blocks, all from the same products."""
        return flatness.by_layer(self.hessian, self.experiment.task.layout, seed=self.seed, names=["all", *self.blocks])

    @property
    def blocks(self) -> list[str]:
        """Return the names of the Hessian's blocks: head and body, if the model has both, and layers within them."""
        layout = self.experiment.task.layout
        halves = [on for on in ("head", "body") if 0 < layout.size_of(on) < layout.size]
        masks = [layout.mask(on) for on in halves]
        named = {on: flatness.block(layout, on) for on in flatness.layers(layout)}
        return [*halves, *(on for on, mask in named.items() if not any(mask.equal(half) for half in masks))]

    @cached_property
    def round(self) -> Round:
        """Run one round of local training and return its models."""
        if self.play is None:
            raise SteppeError("This measure needs the clients' models, but there is no round to take them from.")
        return self.play()

    @cached_property
    def clients(self) -> list[Loss]:
        """Return the losses of the round's clients, each over all of its training data."""
        return [self.make_loss_on(flatness.of_client(self.experiment.federation, i)) for i in self.round.ids]

    @cached_property
    def few(self) -> list[Loss]:
        """Return the same losses over at most as many examples as the sample has: curvature needs many passes."""
        held, count = self.experiment.federation, len(self.sample)
        return [self.make_loss_on(flatness.of_client(held, i, count, self.seed)) for i in self.round.ids]

    @cached_property
    def given(self) -> Score:
        """Evaluate the model that the clients received on the test set."""
        return self._judge(self.round.x)

    @cached_property
    def local(self) -> list[Score]:
        """Evaluate the clients' models at the end of the round on the test set."""
        return [self._judge(w) for w in self.round.local]

    def _judge(self, w: Tensor) -> Score:
        federation = self.experiment.federation
        data, targets = federation.data, federation.targets(federation.data.test_targets)
        return score(self.experiment.task, w, self.buffers, data.test_inputs, targets, federation.plain)


Kind = Literal["hessian", "sharpness", "clients", "drawn"]


@dataclass(frozen=True)
class Measure:
    """A measure's function and its properties."""

    of: Callable[[Subject], Any]
    kind: Kind  # `drawn` measures are arrays, computed on request only
    usual: bool  # cheap enough to be computed by default
    clients: bool  # needs a round of local training
    runs: int  # the number of runs it compares; if more than 1, it uses the runs listed before this one
    products: int  # products with the Hessian, if many and known in advance
    blocks: bool  # `products` counts per block

    @property
    def about(self) -> str:
        """Return the help text: the first line of the docstring."""
        return take_first_line(self.of.__doc__)


MEASURES: dict[str, Measure] = {}


def measure(kind: Kind, usual: bool = False, clients: bool = False,
            runs: int = 1, products: int = 0, blocks: bool = False,
            ) -> Callable[[Callable[[Subject], Any]], Callable[[Subject], Any]]:  # fmt: skip
    """Register the decorated function as a measure under its own name."""

    def register(function: Callable[[Subject], Any]) -> Callable[[Subject], Any]:
        asks = clients or kind == "clients"
        MEASURES[function.__name__] = Measure(function, kind, usual, asks, runs, products, blocks)
        return function

    return register
