"""One idea of one paper: its settings, its states, and its hooks."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from steppe.core.layout import Tensors
from steppe.core.ranges import checked, hints_of
from steppe.core.scopes import Aggregation, ClientRound, Forward, LocalStep, Oracle, ServerTurn
from steppe.core.task import Outputs


class Part:
    """One idea of one paper. Subclasses are frozen dataclasses whose fields are its hyper-parameters.

    Every hook is optional, and its default does nothing. Parts never differentiate by themselves: every
    gradient comes from the oracle or the scope, which is how costs can be derived.
    """

    name: ClassVar[str]  # the namespace of its state and messages, and its name for `--add`
    citation: ClassVar[str] = ""  # BibTeX of the papers that the idea is from
    addable: ClassVar[bool] = False  # whether it can be added to any algorithm by its name
    outer: bool = False  # where it then goes: around the algorithm's parts, not closest to the loss
    around_optimiser: bool = False  # belongs outside the local optimiser, not inside it
    down: tuple[str, ...] = ()  # entries of the server's state that are broadcast
    reduction: ClassVar[dict[str, str]] = {}  # upload -> "weights" (default), "mean", or "sum" (over all N)
    times: tuple[str, ...] = ()  # scalar uploads that only serve `mean_times`
    needs: frozenset[str] = frozenset()  # of the model: "logits", "features", "activations"
    asks: int = 1  # how often `gradient` calls the oracle that it wraps
    once: bool = False  # `gradient` writes state, so it must be called once per step
    alters_update: bool = False  # `finish` uploads something else than how far the client moved
    batches_per_step: int = 1  # batches that a step takes
    needs_plain_steps: bool = False  # reads gradients off the way that the client went, so steps must be along them
    frozen: str = ""  # "head" or "body": parameters that stay as they are
    alone: bool = False  # clients keep to themselves: nothing travels, a round goes on where the last one stopped

    def __post_init__(self) -> None:
        """Check the type and range of every setting. A subclass with further checks calls this first."""
        what = f"part {getattr(self, 'name', type(self).__name__)!r}"
        for key, hint in hints_of(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            object.__setattr__(self, key, checked(what, key, getattr(self, key), hint))

    def objection(self, others: tuple[Part, ...]) -> str:
        """Why this part makes no sense with the others of an algorithm, and what to take instead; empty if it does."""
        return ""

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

    def prepare(self, rows: Tensors, s: ServerTurn) -> None:
        """On the server, after `send`: may write s.state; rows are this part's states of the round's clients.

        s.x is the model that is sent. Only a simulation knows these states, and who will reply.
        """

    def send(self, x: Tensor, s: ServerTurn) -> Tensor:
        """What is broadcast instead of x."""
        return x

    def receive(self, s: ClientRound) -> None:
        """On a client, before its first step: may write s.state, for what stays as it is during the round."""

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        """Where a client begins."""
        return w

    def observe(self, forward: Forward, s: LocalStep) -> Tensors:
        """Once per batch, outside any gradient: what teachers say about it."""
        return {}

    def penalty(self, w: Tensor, out: Outputs, s: LocalStep) -> Tensor:
        """Added to the loss."""
        return torch.zeros_like(s.lr)

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        """Wraps the oracle: where the gradient is taken, and what is done to it."""
        return grad(w)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        """After the last step: may write s.up and s.state; returns the update to upload."""
        return delta

    def screen(self, norms: Tensor) -> Tensor:
        """Before anything is averaged: what each reply is multiplied by, from its norm over all its uploads."""
        return torch.ones_like(norms)

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        """On a client, after `finish`: the server takes this share of what it sent, because a part screens replies.

        States of which the server keeps a running mean must not run ahead of it.
        """

    def reduce(self, rows: Tensors, s: ServerTurn) -> Tensors:
        """Instead of the mean over clients: one value for each upload. At most one part of an algorithm does this."""
        raise NotImplementedError

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        """The server's rule: from the clients' mean update to the change of the global model."""
        return delta

    def settle(self, x: Tensor, s: Aggregation) -> None:
        """On the server, when every part's rule has been applied: x is the new global model; may write s.state."""

    def evaluated(self, x: Tensor, s: ServerTurn) -> Tensor:
        """The model that is judged, where it is not the one that is trained."""
        return x

    def local_steps(self, epochs: int, batches: int) -> int:
        """Steps of a client's round, from its epochs and the batches of one epoch."""
        return epochs * batches

    def counted(self, replies: int) -> int:
        """What the server's rules take for the number of replies."""
        return replies

    def stride(self, s: LocalStep) -> Tensor:
        """How far this step goes along a direction that stays the same, in plain steps at the round's learning rate.

        Momentum makes it longer, a rate of the part's own scales it. Several parts' strides multiply, and their sum
        over the round is `effective_steps`, by which whoever reads a gradient off a displacement must divide.
        """
        return torch.ones_like(s.lr)


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
