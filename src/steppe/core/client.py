"""One client's round as three pure functions: begin, step, end.

`step` is vmapped over clients, compiled and captured; `begin` runs before the first step, `end` after the last. They
are the same in a simulator, on a rank, and on a node of a real federation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.algorithm import Algorithm, States
from steppe.core.layout import Tensors
from steppe.core.part import Part
from steppe.core.scopes import ClientRound, LocalStep, Oracle, Term
from steppe.core.stacking import joint_norms
from steppe.core.task import Outputs, Task


class Sent(NamedTuple):
    """What every client of a round receives."""

    x: Tensor
    down: States
    buffers: Tensors
    lr: Tensor
    round: Tensor


class Live(NamedTuple):
    """A client in the middle of its round."""

    w: Tensor
    parts: States
    buffers: Tensors
    core: Tensors  # sums of the batches' losses and of the strides; the starting point, if a part moved it


class Reply(NamedTuple):
    """What a client uploads, what it reports about its round (loss, drift), and what it keeps (state)."""

    update: Tensor
    up: States
    buffers: Tensors
    loss: Tensor  # the mean over its batches
    drift: Tensor  # ‖w − x‖
    state: States


# An entry of a client's state in addition to its parts': running statistics that the client keeps instead of sharing.
OWN_BUFFERS = "@buffers"


@dataclass
class Meter:
    """Count the passes of a step; Python runs once, however many clients are batched."""

    gradients: int = 0  # a forward and a backward pass of the student
    forwards: int = 0  # forward passes only, of teachers


HeadShift = Callable[[Tensor, Tensor], Tensor]  # (w, features) -> the vector to add to w before the head is applied
Objective = Callable[[Tensor], tuple[Tensor, Any]]
Differentiate = Callable[[Objective, Tensor], tuple[Tensor, Tensor, Any]]  # -> gradient, value, the rest


def by_autograd(objective: Objective, at: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Differentiate for one client at a time, by plain autograd."""
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        value, rest = objective(leaf)
        _keep_pooling_in_order(value)
        (gradient,) = torch.autograd.grad(value, leaf)
    return gradient, value.detach(), rest


def _keep_pooling_in_order(value: Tensor) -> None:
    """Pass max-pooling its gradient in the memory format of its input.

    The gradient of a flatten has the other format. PyTorch would then copy the large input to that format and the
    result back, which takes 1 ms of a 40 ms step of the FedAvg paper's CNN.
    """
    todo, seen = [value.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [inner for inner, _ in node.next_functions]
        if node.name() != "MaxPool2DWithIndicesBackward0":
            continue
        if node._saved_self.is_contiguous(memory_format=torch.channels_last):  # type: ignore[attr-defined]
            node.register_prehook(lambda g: (g[0].contiguous(memory_format=torch.channels_last),))


def by_transform(objective: Objective, at: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Differentiate under vmap."""
    gradient, (value, rest) = torch.func.grad_and_value(objective, has_aux=True)(at)
    return gradient, value, rest


def begin(algorithm: Algorithm, task: Task, sent: Sent, state: States, steps: Tensor) -> Live:
    """Return a client's parameters and states at the start of its round."""
    w = sent.x
    parts = {p.name: {**p.round_state(sent.x), **state[p.name]} for p in algorithm.parts}
    for p in algorithm.using("receive"):
        p.receive(_make_client_round(p, algorithm, task, sent, parts, w, w, steps, steps))
    for p in algorithm.using("start"):
        w = p.start(w, _make_client_round(p, algorithm, task, sent, parts, w, w, steps, steps))
    core = {"loss": torch.zeros_like(sent.lr)}
    if algorithm.using("start"):
        core["start"] = w
    if algorithm.using("stride"):
        core["strides"] = torch.zeros_like(sent.lr)
    if OWN_BUFFERS in state:
        parts[OWN_BUFFERS] = {}
    return Live(w, parts, dict(state.get(OWN_BUFFERS, sent.buffers)), core)


def step(algorithm: Algorithm, task: Task, sent: Sent, live: Live, batches: tuple[Tensors, ...], index: Tensor,
         steps: Tensor, differentiate: Differentiate = by_autograd, meter: Meter | None = None,
         spend: bool = False) -> Live:  # fmt: skip
    """Take one local step of one client: w ← w − lr · oracle(w), with the parts wrapped around the plain gradient.

    Pure, unless the caller sets `spend`: then new vectors may reuse the memory of those in `live`.
    """
    meter = Meter() if meter is None else meter
    parts = {name: dict(tensors) for name, tensors in live.parts.items()}
    start = live.core.get("start", sent.x)
    losses: list[Tensor] = []
    statistics: list[Tensors] = []  # only those of the student's first pass are kept
    decay: dict[str, float] = {}
    innermost = algorithm.using("gradient")[:1]
    trained = None if not algorithm.frozen else ~task.layout.mask(algorithm.frozen, live.w.device)

    def differentiated(term: Term, at: Tensor, batch: Tensors, fast: bool = False) -> tuple[Tensor, Tensor]:
        meter.gradients += 1

        def objective(v: Tensor) -> tuple[Tensor, Tensors]:
            out = task.forward(v, batch["x"], live.buffers, algorithm.needs, fast=fast)
            return term(v, out), out.buffers

        with task.hold_parameters():
            gradient, value, buffers = differentiate(objective, at)
        statistics.append(buffers)
        return gradient if trained is None else gradient * trained, value

    def head_gradient_of(term: Term, at: Tensor, features: Tensor) -> Tensor:
        """Differentiate with respect to the head only, from given features, without a pass through the body."""

        def objective(v: Tensor) -> tuple[Tensor, Tensors]:
            return term(v, Outputs(task.head_forward(v, features), features, (), {})), {}

        gradient = differentiate(objective, at.detach())[0]
        return gradient if trained is None else gradient * trained

    def scopes_for(batch: Tensors) -> dict[str, LocalStep]:
        cache: dict[int, tuple[Tensor, Outputs]] = {}

        def forward(at: Tensor) -> Outputs:  # parts that observe the same model share its pass
            if id(at) not in cache:
                meter.forwards += 1
                out = task.forward(at, batch["x"], live.buffers, algorithm.needs, learning=False)
                cache[id(at)] = (at, out)
            return cache[id(at)][1]

        def gradient_of(term: Term, at: Tensor) -> Tensor:
            return differentiated(term, at, batch)[0]

        scopes = {
            p.name: LocalStep(
                task.layout, sent.x, sent.lr, sent.round, parts[p.name], sent.down.get(p.name, {}), start, live.w,
                index, steps, batch, decay, spend, p in innermost, gradient_of, head_gradient_of,
            )
            for p in algorithm.parts
        }  # fmt: skip
        for p in algorithm.using("observe"):
            scopes[p.name].seen = p.observe(forward, scopes[p.name])
        return scopes

    scopes = [scopes_for(batch) for batch in batches]

    def plain(at: Tensor, on: int = 0, head: HeadShift | None = None) -> Tensor:
        def term(v: Tensor, out: Outputs) -> Tensor:
            if head is not None and out.features is not None:
                shift = head(v.detach(), out.features.detach())
                out = out._replace(logits=task.head_forward(v + shift, out.features))
            total = task.loss(out.logits, batches[on])
            for p in algorithm.using("penalty"):
                total = total + p.penalty(v, out, scopes[on][p.name])
            return total

        gradient, loss = differentiated(term, at, batches[on], fast=True)
        losses.append(loss)
        return gradient

    oracle: Oracle = plain
    for p in algorithm.using("gradient"):
        oracle = _wrap(p, oracle, scopes)
    direction = oracle(live.w)
    direction = direction if trained is None else direction * trained
    overwrite = spend and not find_storages(live.w) & find_storages(*list_tensors(parts))  # a part may keep w
    w = (live.w.addcmul_ if overwrite else live.w.addcmul)(direction, sent.lr, value=-1)  # w − lr · direction
    core = {**live.core, "loss": live.core["loss"] + losses[0]}
    if "strides" in core:
        core["strides"] = core["strides"] + prod(p.stride(scopes[0][p.name]) for p in algorithm.using("stride"))
    return Live(w, parts, statistics[0], core)


def find_storages(*tensors: Tensor) -> set[int]:
    """Return the addresses of these tensors' memory."""
    return {t.untyped_storage().data_ptr() for t in tensors}


def list_tensors(states: States) -> list[Tensor]:
    return [t for tensors in states.values() for t in tensors.values()]


def _wrap(part: Part, inner: Oracle, scopes: list[dict[str, LocalStep]]) -> Oracle:
    """Wrap the oracle in a part. Further arguments are passed on: which of the step's batches, and a head shift."""

    def oracle(w: Tensor, on: int = 0, head: HeadShift | None = None) -> Tensor:
        return part.gradient(lambda v, on=on, head=head: inner(v, on, head), w, scopes[on][part.name])

    return oracle


def end(algorithm: Algorithm, task: Task, sent: Sent, live: Live, steps: Tensor, into: Tensor | None = None) -> Reply:
    """Return what the client uploads and what it keeps. The update is written to `into`, if that is given."""
    parts = {name: dict(tensors) for name, tensors in live.parts.items()}
    update = moved = torch.sub(live.w, sent.x, out=into)
    start, worth = live.core.get("start", sent.x), live.core.get("strides", steps)
    scopes = {p.name: _make_client_round(p, algorithm, task, sent, parts, start, live.w, steps,
                                    torch.where(worth > 0, worth, 1.0)) for p in algorithm.parts}  # fmt: skip
    for p in algorithm.parts:
        update = p.finish(update, scopes[p.name])
    up = {name: s.up for name, s in scopes.items()}
    if algorithm.using("screen") and algorithm.using("shrink"):
        share = _find_accepted_share(algorithm, Reply(update, up, {}, sent.lr, sent.lr, {}))
        for p in algorithm.using("shrink"):
            p.shrink(share, scopes[p.name])
    kept = {name: {k: parts[name][k] for k in states} for name, states in algorithm.client_state(sent.x).items()}
    if OWN_BUFFERS in live.parts:
        kept[OWN_BUFFERS] = live.buffers
    drift = torch.linalg.vector_norm(moved)
    return Reply(update, up, live.buffers, live.core["loss"] / steps.clamp(min=1), drift, kept)


def list_uploads(algorithm: Algorithm, replies: Reply) -> Tensors:
    """Return everything that the server's rules use, one row per client: updates, parts' uploads, running statistics.

    Names: `update`, `part.upload`, `part.upload*` (that scalar times the update, for `mean_times`), and `@statistic`.
    Uploads of parts without a rule on the server are left out.
    """
    rows = {"update": replies.update}
    for p in algorithm.parts:
        if p.has("server") or p.has("settle"):
            for name, value in replies.up[p.name].items():
                if name in p.times:
                    rows[f"{p.name}.{name}*"] = replies.update * value[:, None]
                else:
                    rows[f"{p.name}.{name}"] = value
    return rows | {f"@{name}": value for name, value in replies.buffers.items()}


def _find_accepted_share(algorithm: Algorithm, reply: Reply) -> Tensor:
    """Return the share of a reply that the server will accept if parts bound its norm."""
    norm = joint_norms(list_uploads(algorithm, tree_map(lambda v: v[None], reply)))[0]
    taken = torch.ones_like(norm)
    for p in algorithm.using("screen"):
        taken = taken * p.screen(norm * taken)
    return taken.to(reply.update.dtype)


def make_empty_replies(algorithm: Algorithm, task: Task, sent: Sent, state: States | None = None) -> Reply:
    """Return the replies of a round without clients: no rows, but the shapes and types that every reply must have."""
    one = torch.ones_like(sent.lr)
    state = algorithm.client_state(sent.x) if state is None else state
    reply = end(algorithm, task, sent, begin(algorithm, task, sent, state, one), one)
    empty: Reply = tree_map(lambda v: v[None][:0], reply)
    return empty


def _make_client_round(part: Part, algorithm: Algorithm, task: Task, sent: Sent, parts: States, start: Tensor,
                       w: Tensor, steps: Tensor, worth: Tensor) -> ClientRound:  # fmt: skip
    return ClientRound(
        task.layout, sent.x, sent.lr, sent.round, parts[part.name], sent.down.get(part.name, {}), start,
        algorithm.update_differs(part), w, steps, worth,
    )  # fmt: skip
