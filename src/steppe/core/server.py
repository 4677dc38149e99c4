"""The server's turn, pure: broadcast before a round, aggregate after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Reply, Sent
from steppe.core.layout import Layout, Tensors
from steppe.core.part import Part, Scope

Everyone = Callable[[str, str], Tensor]  # (part, state) -> rows of all clients that ever took part


class Server(NamedTuple):
    """All that the server holds."""

    x: Tensor
    state: States
    buffers: Tensors  # running statistics, under their own policy


class Portion(NamedTuple):
    """Some of the round's replies, where the others are on other ranks."""

    places: list[int]  # which of the round's clients they are of
    summed: Callable[[Tensor], Tensor]  # over all ranks, which ask for the same sums in the same order


def broadcast(algorithm: Algorithm, layout: Layout, server: Server, lr: Tensor, round_: Tensor, ids: Sequence[int] = (),
              rows: States | None = None, clients: int = 1) -> tuple[Server, Sent]:  # fmt: skip
    """What is sent this round, and the server after having prepared it."""
    state = {name: dict(tensors) for name, tensors in server.state.items()}
    x = server.x

    def scope(p: Part) -> Scope:
        return Scope(layout, server.x, lr, round_, state[p.name], clients=clients, active=len(ids), ids=tuple(ids),
                     rows=(rows or {}).get(p.name, {}))  # fmt: skip

    for p in algorithm.using("prepare"):
        p.prepare(scope(p))
    for p in algorithm.using("send"):
        x = p.send(x, scope(p))
    down = {p.name: {k: state[p.name][k] for k in p.down} for p in algorithm.parts if p.down}
    return server._replace(state=state), Sent(x, down, server.buffers, lr, round_)


def aggregate(algorithm: Algorithm, layout: Layout, server: Server, sent: Sent, replies: Reply, weights: Tensor,
              clients: int, ids: Sequence[int] = (), everyone: Everyone | None = None,
              total: float | None = None, portion: Portion | None = None) -> Server:  # fmt: skip
    """One matrix product for each thing uploaded, then each part's rule. Replies are stacked: (n, P).

    `total` is the weight of all clients together; without it, the absent are taken to weigh what the others do.
    With a `portion` the replies are some of the round's, and weights and ids those of the whole round.
    """
    count = len(weights)
    shares = {"weights": weights / weights.sum(), "mean": torch.full_like(weights, 1 / count),
              "sum": torch.full_like(weights, 1 / clients)}  # fmt: skip

    def reduced(rows: Tensor, how: str = "weights") -> Tensor:
        share = shares[how].to(rows.dtype)
        share = share if portion is None else share[portion.places]
        together: Tensor = torch.tensordot(share, rows, dims=1)
        return together if portion is None else portion.summed(together)

    state = {name: dict(tensors) for name, tensors in server.state.items()}
    update = reduced(replies.update)

    uploads: States = {}

    def scope(p: Part) -> Scope:
        if p.name not in uploads:  # a part may have two hooks
            uploads[p.name] = {k: reduced(v, p.reduction.get(k, "weights")) for k, v in replies.up[p.name].items()}
        s = Scope(layout, server.x, sent.lr, sent.round, state[p.name], sent.down.get(p.name, {}), uploads[p.name],
                  start=sent.x, clients=clients, active=count, ids=tuple(ids))  # fmt: skip
        s.share = count / clients if total is None else weights.sum() / total
        s.sum_over_all = lambda: reduced(replies.update, "sum")
        s.mean_times = lambda name: reduced(replies.update * replies.up[p.name][name][:, None])
        if everyone is not None:
            s.everyone = partial(everyone, p.name)
        return s

    for p in algorithm.using("server"):
        update = p.server(update, scope(p))
    x = server.x + update
    for p in algorithm.using("settle"):
        p.settle(x, scope(p))
    buffers = {k: reduced(v) for k, v in replies.buffers.items()}
    return Server(x, state, buffers)


def evaluated(algorithm: Algorithm, layout: Layout, server: Server, lr: Tensor, round_: Tensor) -> Tensor:
    """The model that is judged: the global one, unless a part (an average of models, say) offers another."""
    x = server.x
    for p in algorithm.using("evaluated"):
        x = p.evaluated(x, Scope(layout, server.x, lr, round_, server.state[p.name]))
    return x
