"""One idea of one paper: its settings, its states, and its hooks."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from steppe.core.layout import Tensors
from steppe.core.ranges import check_setting, read_hints
from steppe.core.scopes import Aggregation, ClientRound, Forward, LocalStep, Oracle, ServerTurn
from steppe.core.task import Outputs


class Part:
    """One idea of one paper. Subclasses are frozen dataclasses whose fields are hyper-parameters.

    Every hook is optional; its default does nothing. Parts never call autograd: every gradient
    comes from the oracle or the scope, so that costs can be traced.
    """

    name: ClassVar[str]  # the namespace of its state and messages, and its name for `--add`
    citation: ClassVar[str] = ""  # BibTeX of the papers that introduced the idea
    addable: ClassVar[bool] = False  # whether it can be added to any algorithm by name
    outer: bool = False  # if added: around the algorithm's parts, not closest to the loss
    around_optimiser: bool = False  # belongs outside the local optimiser, not inside it
    down: tuple[str, ...] = ()  # entries of the server's state that are broadcast
    reduction: ClassVar[dict[str, str]] = {}  # upload -> "weights" (default), "mean", or "sum" (over all N)
    times: tuple[str, ...] = ()  # scalar uploads that only serve `mean_times`
    needs: frozenset[str] = frozenset()  # outputs of the model: "logits", "features", "activations"
    asks: int = 1  # number of calls of the wrapped oracle in `gradient`
    once: bool = False  # `gradient` writes state, so it must be called once per step
    alters_update: bool = False  # `finish` uploads something other than the client's displacement
    batches_per_step: int = 1  # batches per step
    needs_plain_steps: bool = False  # derives gradients from displacements, so steps must be along gradients
    frozen: str = ""  # "head" or "body": parameters that are not trained
    alone: bool = False  # clients train alone: nothing is sent, and a client continues from its last round

    def __post_init__(self) -> None:
        """Check the type and range of every setting. A subclass with further checks calls this first."""
        what = f"part {getattr(self, 'name', type(self).__name__)!r}"
        for key, hint in read_hints(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            object.__setattr__(self, key, check_setting(what, key, getattr(self, key), hint))

    def objection(self, others: tuple[Part, ...]) -> str:
        """Return why this part cannot be combined with the others, and what to use instead; empty if it can."""
        return ""

    def caution(self, per_round: int, clients: int) -> str:
        """Return a note to log at the start of a run with this part; empty if there is none."""
        return ""

    def has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Part, hook)

    def server_state(self, x: Tensor) -> Tensors:
        """Return the server's initial state; x is the initial model."""
        return {}

    def client_state(self, x: Tensor) -> Tensors:
        """Return the initial state that a client keeps between its rounds; x is the initial model."""
        return {}

    def round_state(self, x: Tensor) -> Tensors:
        """Return the initial state that a client keeps for one round only."""
        return {}

    def prepare(self, rows: Tensors, s: ServerTurn) -> None:
        """Prepare the server after `send`: may write s.state; rows are this part's states of the round's clients.

        s.x is the model that is sent. These states, and which clients will reply, are available only in a simulation.
        """

    def send(self, x: Tensor, s: ServerTurn) -> Tensor:
        """Return the model to broadcast instead of x."""
        return x

    def receive(self, s: ClientRound) -> None:
        """Prepare a client before its first step: may write s.state, for what stays constant during the round."""

    def start(self, w: Tensor, s: ClientRound) -> Tensor:
        """Return the point from which a client starts its round."""
        return w

    def observe(self, forward: Forward, s: LocalStep) -> Tensors:
        """Return what teachers predict for a batch: called once per batch, outside any gradient."""
        return {}

    def penalty(self, w: Tensor, out: Outputs, s: LocalStep) -> Tensor:
        """Return a term to add to the loss."""
        return torch.zeros_like(s.lr)

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        """Wrap the oracle: choose where the gradient is taken, and what is done to it."""
        return grad(w)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        """Return the update to upload, after the last step; may write s.up and s.state."""
        return delta

    def screen(self, norms: Tensor) -> Tensor:
        """Return a factor for each reply, from the norm over all its uploads, before anything is averaged."""
        return torch.ones_like(norms)

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        """Correct a client's state after `finish`, if a part screens its reply and the server uses only this share.

        A state whose running mean the server keeps must change by no more than the server's mean does.
        """

    def reduce(self, rows: Tensors, s: ServerTurn) -> Tensors:
        """Combine each upload over clients in place of the mean. At most one part of an algorithm does this."""
        raise NotImplementedError

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        """Apply the server's rule: turn the clients' mean update into the change of the global model."""
        return delta

    def settle(self, x: Tensor, s: Aggregation) -> None:
        """Update s.state on the server after all rules have been applied; x is the new global model."""

    def evaluated(self, x: Tensor, s: ServerTurn) -> Tensor:
        """Return the model to evaluate, if it is not the one that is trained."""
        return x

    def local_steps(self, epochs: int, batches: int) -> int:
        """Return the number of steps in a client's round, from its epochs and the batches per epoch."""
        return epochs * batches

    def counted(self, replies: int) -> int:
        """Return the number of replies that the server's rules assume."""
        return replies

    def stride(self, s: LocalStep) -> Tensor:
        """Return how far this step moves along a constant direction, in plain steps at the round's learning rate.

        Momentum lengthens it; a part with its own rate scales it. The strides of several parts multiply. Their sum over
        the round is `effective_steps`, by which a displacement must be divided to give a mean gradient.
        """
        return torch.ones_like(s.lr)


def make_placeholder(x: Tensor) -> Tensor:
    """Return read-only zeros of x's shape that use no memory, for a `round_state` that the first step replaces.

    >>> make_placeholder(torch.ones(3)).tolist()
    [0.0, 0.0, 0.0]
    """
    return x.new_zeros(()).expand_as(x)


def object_to_readers(others: tuple[Part, ...], because: str) -> str:
    """Return why an optimiser cannot be used with the first part that needs plain steps; empty if there is none."""
    reader = next((p.name for p in others if p.needs_plain_steps), None)
    return "" if reader is None else (
        f"'{reader}' derives gradients from a client's displacement, but {because}: "
        "use the optimiser sgd, or an algorithm without it (for FedDyn and FedSMOO, variant=paper works)"
    )  # fmt: skip


def unit(v: Tensor, eps: float = 1e-12, floor: float = 0.0) -> Tensor:
    """Scale v to length one, or to zero if its norm is at most `floor`, so that rounding errors are not amplified.

    >>> unit(torch.tensor([3.0, 4.0])).tolist(), unit(torch.zeros(2)).tolist()
    ([0.6000000238418579, 0.800000011920929], [0.0, 0.0])
    """
    return v * _to_length_one(v, eps, floor)


def ascend(w: Tensor, v: Tensor, radius: float | Tensor, eps: float = 1e-12) -> Tensor:
    """Return w + radius · unit(v), in one pass after the norm."""
    return torch.addcmul(w, v, radius * _to_length_one(v, eps, 0.0))


def _to_length_one(v: Tensor, eps: float, floor: float) -> Tensor:
    norm = v.square().sum().sqrt()  # not vector_norm: on a CPU it adds sequentially, with an error of 4e-5 in float32
    return torch.where(norm > floor, 1 / (norm + eps), 0.0)
