"""The server's pure functions: broadcast before a round, aggregate after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Reply, Sent, list_uploads
from steppe.core.errors import CompositionError
from steppe.core.layout import Layout, Tensors
from steppe.core.part import Part
from steppe.core.part_class_checks import explain_missing_states
from steppe.core.scopes import Aggregation, ServerTurn
from steppe.core.stacking import joint_norms, scale_rows

StatesOfAll = Callable[[str, str], Tensor]  # (part, state) -> rows of all clients that have taken part


class Server(NamedTuple):
    """The server's state."""

    x: Tensor
    state: States
    buffers: Tensors  # running statistics, under their own policy


class Portion(NamedTuple):
    """Some of the round's replies, if the others are on other ranks."""

    places: list[int]  # their positions among the round's clients
    summed: Callable[[Tensor], Tensor]  # sums over all ranks, which call it for the same sums in the same order


@explain_missing_states()
def broadcast(algorithm: Algorithm, layout: Layout, server: Server, lr: Tensor, round_: Tensor,
              rows: States | None = None, clients: int = 1) -> tuple[Server, Sent]:  # fmt: skip
    """Return what is sent this round, and the server after `prepare`. Rows: the states of the round's clients."""
    state = {name: dict(tensors) for name, tensors in server.state.items()}
    x = server.x

    def turn(p: Part, model: Tensor) -> ServerTurn:
        return ServerTurn(layout, model, lr, round_, state[p.name], clients)

    for p in algorithm.using("send"):
        x = p.send(x, turn(p, server.x))
    for p in algorithm.using("prepare"):  # clients will see the model that is sent
        p.prepare({} if algorithm.guards else (rows or {}).get(p.name, {}), turn(p, x))
    down = {p.name: {k: state[p.name][k] for k in p.down} for p in algorithm.parts if p.down}
    return server._replace(state=state), Sent(x, down, server.buffers, lr, round_)


@explain_missing_states()
def aggregate(algorithm: Algorithm, layout: Layout, server: Server, sent: Sent, replies: Reply, weights: Tensor,
              clients: int, states_of_all: StatesOfAll | None = None, total: float | None = None,
              portion: Portion | None = None) -> Server:  # fmt: skip
    """Combine each upload with one matrix product, then apply each part's rule. Replies are stacked: (n, P).

    A part may scale the rows first, and one part may replace the mean (median, noise, …); its value then replaces
    the mean, whatever the weights, and n/N times the value replaces the sum over all N clients.
    `total` is the weight of all clients together; without it, absent clients are assumed to weigh as much as present
    ones. With a `portion`, the replies are some of the round's, the weights are those of all, and no part screens or
    reduces.
    """
    count = algorithm.counted(len(weights))
    shares = {"weights": weights / weights.sum(), "mean": torch.full_like(weights, 1 / max(count, 1)),
              "sum": torch.full_like(weights, 1 / clients)}  # fmt: skip
    state = {name: dict(tensors) for name, tensors in server.state.items()}
    rows = list_uploads(algorithm, replies)

    def turn(p: Part) -> ServerTurn:
        return ServerTurn(layout, server.x, sent.lr, sent.round, state[p.name], clients)

    if replies.buffers and algorithm.using("screen"):
        raise CompositionError(f"'{algorithm.using('screen')[0].name}' bounds what clients upload, but a bound has no "
                               "meaning for running statistics (batch norm): use a model with group norm")  # fmt: skip

    for p in algorithm.using("screen"):
        rows = scale_rows(rows, p.screen(joint_norms(rows)))
    centres: Tensors | None = None
    for p in algorithm.using("reduce"):
        centres = p.reduce(rows, turn(p))
        if algorithm.frozen:  # clients cannot change these, so noise must not either
            still = layout.mask(algorithm.frozen, server.x.device)
            centres = {k: v.masked_fill(still, 0.0) if v.shape == still.shape else v for k, v in centres.items()}

    @cache  # a part with two hooks needs it twice
    def reduced(name: str, how: str = "weights") -> Tensor:
        if centres is not None:
            return centres[name] * (count / clients) if how == "sum" else centres[name]
        share = shares[how].to(rows[name].dtype)
        share = share if portion is None else share[portion.places]
        together: Tensor = torch.tensordot(share, rows[name], dims=1)
        return together if portion is None else portion.summed(together)

    update = reduced("update")

    share = count / clients if total is None or algorithm.using("counted") else weights.sum() / total

    def aggregation(p: Part) -> Aggregation:
        def mean_times(name: str, how: str = "weights") -> Tensor:
            if name not in p.times:
                raise CompositionError(
                    f"'{p.name}' multiplies updates by {name!r}, so its class must set times = ({name!r},)"
                )
            return reduced(f"{p.name}.{name}*", how)

        def rows_of_all(name: str) -> Tensor:
            if states_of_all is None or algorithm.guards:
                raise CompositionError(f"'{p.name}' reads single clients' states, which the server does not see here")
            return states_of_all(p.name, name)

        up = {k: reduced(f"{p.name}.{k}", p.reduction.get(k, "weights"))
              for k in replies.up[p.name] if k not in p.times}  # fmt: skip
        return Aggregation(
            layout, server.x, sent.lr, sent.round, state[p.name], clients, up, count, share,
            lambda: reduced("update", "sum"), mean_times, rows_of_all,
        )  # fmt: skip

    for p in algorithm.using("server"):
        update = p.server(update, aggregation(p))
    x = server.x + update
    for p in algorithm.using("settle"):
        p.settle(x, aggregation(p))
    buffers = {k: reduced(f"@{k}") for k in replies.buffers}
    return Server(x, state, buffers)


@explain_missing_states()
def choose_evaluated(algorithm: Algorithm, layout: Layout, server: Server, lr: Tensor, round_: Tensor,
                     clients: int = 1) -> Tensor:  # fmt: skip
    """Return the model to evaluate: the global one, unless a part (such as an average of models) provides another."""
    x = server.x
    for p in algorithm.using("evaluated"):
        x = p.evaluated(x, ServerTurn(layout, server.x, lr, round_, server.state[p.name], clients))
    return x
