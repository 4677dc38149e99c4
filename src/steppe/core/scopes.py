"""The arguments of a part's hooks: a client's round, one local step, the server before and after the replies.

`state`, `up` and `decay` may be written to. They are created in the call and returned from it, so the functions
around them stay pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from steppe.core.layout import Layout, Tensors
from steppe.core.losses import average_loss
from steppe.core.task import Outputs

# w -> a descent direction at w. Keywords: `on`, which of the step's batches; `head`, a function (w, features) ->
# shift that moves the head after the body has run, so that a head-only perturbation costs one pass of the body.
Oracle = Callable[..., Tensor]
Forward = Callable[[Tensor], Outputs]  # the model at any w on the step's batch, in evaluation mode
Term = Callable[[Tensor, Outputs], Tensor]  # (w, the model's outputs at w) -> a scalar


@dataclass
class OnClient:
    """The common fields of a client's round and of one step of it."""

    layout: Layout
    x: Tensor  # the global model as the client received it
    lr: Tensor  # of this round
    round: Tensor  # its number, from 0
    state: Tensors  # this part's state on this client
    down: Tensors  # this part's broadcast
    start: Tensor  # where the client starts; x unless a part moved it


@dataclass
class ClientRound(OnClient):
    """For `receive`, `start`, `finish` and `shrink`: a client before its first and after its last step."""

    update_differs: bool  # whether the update is not w − x: another part moves the start, or uploads something else
    w: Tensor  # the client's parameters now
    steps: Tensor  # number of steps in this round
    effective_steps: Tensor  # at the end: the sum of the strides (`Part.stride`); 1 if there was no step
    up: Tensors = field(default_factory=dict)  # this part's upload, for `finish` to fill


@dataclass
class LocalStep(OnClient):
    """For `observe`, `penalty` and `gradient`: one step of a client on one batch."""

    w: Tensor  # the client's parameters before this step
    index: Tensor  # the step's number, from 0
    steps: Tensor  # number of the client's steps in this round
    batch: Tensors  # x, y and, where padded, mask
    decay: dict[str, float]  # weight decay handed to the optimiser, by part
    spend: bool  # whether the tensors of `round_state` may be overwritten in place, to save memory traffic
    innermost: bool  # no part inside this one changes the oracle
    gradient_of: Callable[[Term, Tensor], Tensor]  # (term, w) -> its gradient on this batch
    head_gradient_of: Callable[[Term, Tensor, Tensor], Tensor]  # (term, w, features) -> … through the head alone
    seen: Tensors = field(default_factory=dict)  # what `observe` computed for this batch

    def mean(self, each: Tensor) -> Tensor:
        """Average over the real examples of the batch."""
        return average_loss(each, self.batch)


@dataclass
class ServerTurn:
    """For `send`, `prepare`, `reduce` and `evaluated`."""

    layout: Layout
    x: Tensor  # the global model before the round's update; for `prepare`, as it is sent
    lr: Tensor  # of this round
    round: Tensor  # its number, from 0
    state: Tensors  # this part's state on the server
    clients: int  # number of all clients


@dataclass
class Aggregation(ServerTurn):
    """For `server` and `settle`: the server with the combined replies of the clients."""

    up: Tensors  # this part's uploads, combined by its `reduction`
    active: int  # number of clients whose replies are used
    share: float | Tensor  # their share of all clients' weight
    sum_over_all: Callable[[], Tensor]  # (1/N) Σ over the round's clients of their updates
    mean_times: Callable[..., Tensor]  # (name, how="weights"): the mean of the updates times a scalar upload
    states_of_all: Callable[[str], Tensor]  # the rows of one state, of all clients that have taken part
