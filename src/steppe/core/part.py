"""One idea of one paper, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from steppe.core.layout import Layout, Tensors
from steppe.core.task import Outputs, mean

# w -> a descent direction at w. Keywords: `on`, which of the step's batches; `head`, a function (w, features) ->
# shift that moves the head after the body has run, so that a head-only perturbation costs one pass of the body.
Oracle = Callable[..., Tensor]
Term = Callable[[Tensor, Outputs], Tensor]  # (w, what the model shows at w) -> a scalar


def _absent(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this is not available here: forwards belong to `observe`, gradients to `gradient`")


@dataclass
class Scope:
    """All that a part sees: of a client's round or step, or of the server's turn.

    `state`, `up` and `decay` are written to; they are born in the call and returned from it, so the
    functions around them stay pure.
    """

    layout: Layout
    x: Tensor  # the global model: as the clients received it; on the server, before the round's update
    lr: Tensor  # of this round
    round: Tensor  # its number, from 0
    state: Tensors  # this part's own, the client's or the server's
    down: Tensors = field(default_factory=dict)  # this part's broadcast
    up: Tensors = field(default_factory=dict)  # this part's upload; on the server, already reduced

    # on a client
    start: Tensor = field(default=None)  # type: ignore[assignment]  # where it began; x unless a part moved it
    relaxed: bool = False  # whether its update is not w − x: a part moved the start, or uploads something else
    w: Tensor = field(default=None)  # type: ignore[assignment]  # its parameters before this step
    index: Tensor = field(default=None)  # type: ignore[assignment]  # the step's number, from 0
    steps: Tensor = field(default=None)  # type: ignore[assignment]  # how many it takes this round
    effective_steps: Tensor = field(default=None)  # type: ignore[assignment]  # what they were worth; 1 without any
    batch: Tensors = field(default_factory=dict)  # x, y and, where padded, mask
    seen: Tensors = field(default_factory=dict)  # what `observe` computed for this batch
    decay: dict[str, float] = field(default_factory=dict)  # weight decay handed to the optimiser, by part
    spend: bool = False  # whether the tensors of `round_state` may be overwritten in place, to save memory traffic
    forward: Callable[[Tensor], Outputs] = _absent  # for `observe`: the model at any w on this batch
    gradient_of: Callable[..., Tensor] = _absent  # for `gradient`: (term, w) -> its gradient on this batch
    head_gradient_of: Callable[..., Tensor] = _absent  # (term, w, features) -> its gradient through the head alone
    innermost: bool = False  # no part inside this one changes the oracle

    # on the server
    clients: int = 1  # all of them
    active: int = 1  # those of this round
    share: float | Tensor = 1.0  # of all clients' weight, what this round's have
    ids: tuple[int, ...] = ()  # their numbers
    rows: Tensors = field(default_factory=dict)  # in `prepare`: their states, stacked, before the round
    everyone: Callable[[str], Tensor] = _absent  # the rows of one state, of all clients that ever took part
    sum_over_all: Callable[[], Tensor] = _absent  # (1/N) Σ over the round's clients of their updates
    # (name, how="weights") -> the mean update, each first times one of its scalar uploads
    mean_times: Callable[..., Tensor] = _absent

    def mean(self, each: Tensor) -> Tensor:
        """Over the real examples of the batch."""
        return mean(each, self.batch)


class Part:
    """One idea of one paper. Subclasses are frozen dataclasses whose fields are its hyper-parameters.

    Every hook is optional, and its default does nothing. Parts never differentiate by themselves: every
    gradient comes from the oracle or the scope, which is how costs can be derived.
    """

    name: ClassVar[str]  # the namespace of its state and messages
    down: tuple[str, ...] = ()  # entries of the server's state that are broadcast
    reduction: dict[str, str] = {}  # noqa: RUF012  # upload -> "weights" (default), "mean", or "sum" (over all N)
    times: tuple[str, ...] = ()  # scalar uploads that only serve `mean_times`
    needs: frozenset[str] = frozenset()  # of the model: "logits", "features", "activations"
    sensitive: bool = False  # normalises a gradient that may be mere rounding: wants full precision
    frozen: str = ""  # "head" or "body": parameters that this part keeps as they are
    asks: int = 1  # how often `gradient` calls the oracle that it wraps
    once: bool = False  # `gradient` writes state, so it must be called once a step
    repeats_inner: bool = False  # … unless the outer part means to call it again
    batches_per_step: int = 1
    around_optimiser: bool = False  # belongs outside the local optimiser, not inside it
    alters_update: bool = False  # its `finish` uploads something else than how far the client moved
    alone: bool = False  # clients keep to themselves: nothing travels, a round goes on where the last one stopped
    outer: bool = False  # where it goes when added to an algorithm: around its parts, not closest to the loss
    reads_states: bool = False  # its server rule looks at single clients' states, as only a simulation can
    fixed_count: int | None = None  # what the server's rules take for the number of replies, whoever replied

    def has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Part, hook)

    def server_state(self, x: Tensor) -> Tensors:
        """What the server keeps, at the start; x is the initial model."""
        return {}

    def client_state(self, x: Tensor) -> Tensors:
        """What a client keeps between its rounds, before the first; x is the initial model."""
        return {}

    def round_state(self, x: Tensor) -> Tensors:
        """What a client keeps for one round only."""
        return {}

    def prepare(self, s: Scope) -> None:
        """On the server, before the broadcast: may write s.state, knowing who will take part."""

    def send(self, x: Tensor, s: Scope) -> Tensor:
        """What is broadcast instead of x."""
        return x

    def receive(self, s: Scope) -> None:
        """On a client, before its first step: may write s.state, for what stays as it is during the round."""

    def start(self, w: Tensor, s: Scope) -> Tensor:
        """Where a client begins."""
        return w

    def observe(self, s: Scope) -> Tensors:
        """Once a batch, outside any gradient: what teachers say about it."""
        return {}

    def penalty(self, w: Tensor, out: Outputs, s: Scope) -> Tensor:
        """Added to the loss."""
        return torch.zeros_like(s.lr)

    def gradient(self, grad: Oracle, w: Tensor, s: Scope) -> Tensor:
        """Wraps the oracle: where the gradient is taken, and what is done to it."""
        return grad(w)

    def finish(self, delta: Tensor, s: Scope) -> Tensor:
        """After the last step: may write s.up and s.state; returns the update to upload."""
        return delta

    def screen(self, rows: Tensors, s: Scope) -> Tensors:
        """On the server, before anything is averaged: what becomes of the replies (`server.uploads`)."""
        return rows

    def reduce(self, rows: Tensors, s: Scope) -> Tensors:
        """Instead of the mean over clients: one value for each upload. At most one part of an algorithm does this."""
        raise NotImplementedError

    def server(self, delta: Tensor, s: Scope) -> Tensor:
        """The server's rule: from the clients' mean update to the change of the global model."""
        return delta

    def settle(self, x: Tensor, s: Scope) -> None:
        """On the server, when every part's rule has been applied: x is the new global model; may write s.state."""

    def evaluated(self, x: Tensor, s: Scope) -> Tensor:
        """The model that is judged, where it is not the one that is trained."""
        return x

    def local_steps(self, epochs: int, batches: int) -> int:
        """Steps of a client's round, from its epochs and the batches of one epoch."""
        return epochs * batches

    def stride(self, s: Scope) -> Tensor:
        """How far this step goes along a direction that stays the same, in plain steps at the round's learning rate.

        Momentum makes it longer, a rate of the part's own scales it. Several parts' strides multiply, and their sum
        over the round is `effective_steps`, by which whoever reads a gradient off a displacement must divide. Known
        in `finish`, when all steps have been taken.
        """
        return torch.ones_like(s.lr)


class SettingError(ValueError):
    """A hyper-parameter is out of its range; the text names it."""


def require(**settings: tuple[float, float, float]) -> None:
    """Check `name=(value, low, high)`.

    >>> require(rho=(-1, 0, float("inf")))
    Traceback (most recent call last):
    steppe.core.part.SettingError: rho is -1, but must be at least 0
    """
    for name, (value, low, high) in settings.items():
        if not low <= value <= high:  # also catches nan
            bound = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
            raise SettingError(f"{name} is {value:g}, but must be {bound}")


def nothing(x: Tensor) -> Tensor:
    """Zeros of x's shape that take no memory: for a `round_state` that the first step replaces. Not to be written to.

    >>> nothing(torch.ones(3)).tolist()
    [0.0, 0.0, 0.0]
    """
    return x.new_zeros(()).expand_as(x)


def unit(v: Tensor, eps: float = 1e-12, floor: float = 0.0) -> Tensor:
    """v at length one; zero where its norm is at most `floor`, because noise must not become an ascent.

    >>> unit(torch.tensor([3.0, 4.0])).tolist(), unit(torch.zeros(2)).tolist()
    ([0.6000000238418579, 0.800000011920929], [0.0, 0.0])
    """
    return v * _to_length_one(v, eps, floor)


def ascended(w: Tensor, v: Tensor, radius: float | Tensor, eps: float = 1e-12, floor: float = 0.0) -> Tensor:
    """w + radius · unit(v), in one pass after the norm."""
    return torch.addcmul(w, v, radius * _to_length_one(v, eps, floor))


def _to_length_one(v: Tensor, eps: float, floor: float) -> Tensor:
    norm = v.square().sum().sqrt()  # not vector_norm: on a CPU it adds in a row, and is off by 4e-5 in float32
    return torch.where(norm > floor, 1 / (norm + eps), 0.0)
