"""The batched executor as a few captured graphs: what keeps a GPU busy.

The whole local step — gather, augmentation, gradients, optimiser — is compiled for a fixed number of clients and
captured as one CUDA graph that reads the step's number from the device, so that a round is a row of replays without
a word from the host. Clients are sorted by steps; as they finish, a smaller graph takes over. Learning rate and
round are tensors, so one capture serves all rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Live, Reply, Sent, begin, by_transform, end, step
from steppe.core.layout import Tensors
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.data.plan import Plan
from steppe.simulate.batched import Batched
from steppe.simulate.client_conv import ClientConvolutions
from steppe.simulate.stacking import stack

LADDER = (0.1, 0.3, 0.6, 1.0, 1.5, 2.5)  # sizes that are captured, as multiples of the usual number of clients
LENGTH = 1024  # batches of one client's round that there is always place for
ROUND = 64  # rows of long vectors begin at multiples of this: matrix units want operands at round addresses


@dataclass
class Room:
    """Tensors at fixed places, which the graphs read and write."""

    sent: Sent
    live: Live
    index: Tensor  # (C, T, B)
    mask: Tensor
    keys: Tensor  # (C, T)
    steps: Tensor  # (C,) floats
    k: Tensor  # the step's number, int64, counted up by the graphs themselves


class Captured(Batched):
    """Like `Batched`, compiled and replayed. `usual` is the expected number of clients at once."""

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation, chunk: int | None, usual: int,
                 compiled: bool = True, say: Callable[[str], None] = print) -> None:  # fmt: skip
        super().__init__(algorithm, task, federation, chunk)
        usual = min(usual, chunk or usual)
        self.sizes = sorted({max(1, ceil(usual * f)) for f in LADDER})
        self.compiled, self.say = compiled, say
        self.room: Room | None = None
        self.capacity = 0
        self.replays: dict[int, Callable[[], None]] = {}

    def _train(self, sent: Sent, ids: list[int], states: list[States]) -> Reply:
        count, per_step = len(ids), self.algorithm.batches_per_step
        plan = self.federation.plan(ids, self.round_, self.algorithm.local_steps, per_step)
        room = self._furnish(sent, states, plan)
        steps = room.steps[:count]
        with torch.no_grad():
            live = vmap(lambda s, n: begin(self.algorithm, self.task, room.sent, s, n))(stack(states), steps)
            tree_map(lambda place, new: place[:count].copy_(new), room.live, live)
            room.k.zero_()
            for k in range(max(plan.steps)):
                active = sum(n > k for n in plan.steps)
                self._replay(next(s for s in [*self.sizes, self.capacity] if s >= active), room)()
            done = tree_map(lambda place: place[:count], room.live)
            return vmap(lambda v, n: end(self.algorithm, self.task, room.sent, v, n))(done, steps)

    def _furnish(self, sent: Sent, states: list[States], plan: Plan) -> Room:
        """This round's tensors at their fixed places; a larger round than any before moves them, and captures anew."""
        count, length = plan.index.shape[:2]
        if self.room is None or count > self.capacity:
            self.capacity = next((s for s in self.sizes if s >= count), count)
            self.replays = {}
            self.room = self._build(sent, states[0], plan)
        room = self.room
        tree_map(lambda place, new: place.copy_(new), room.sent, sent)
        for place, new in ((room.index, plan.index), (room.mask, plan.mask), (room.keys, plan.keys)):
            place[:count, :length].copy_(new)
        room.steps.zero_()
        room.steps[:count] = torch.tensor(plan.steps, dtype=room.steps.dtype)
        return room

    def _build(self, sent: Sent, state: States, plan: Plan) -> Room:
        c, device = self.capacity, sent.x.device
        most = max(self.federation.steps(i, self.algorithm.local_steps) for i in range(self.federation.clients))
        # A power of two: federations of one shape then share what was compiled for the first.
        length = max(LENGTH, 1 << (most * self.algorithm.batches_per_step - 1).bit_length())
        sent = tree_map(torch.clone, sent)
        one = begin(self.algorithm, self.task, sent, state, sent.lr)
        live = tree_map(lambda t: _rows(t, c), one)
        index = torch.zeros(c, length, plan.index.shape[2], dtype=torch.int64, device=device)
        return Room(sent, live, index, torch.zeros_like(index, dtype=torch.bool), index[:, :, 0].clone(),
                    torch.zeros(c, dtype=sent.lr.dtype, device=device), index.new_zeros(()))  # fmt: skip

    def _replay(self, size: int, room: Room) -> Callable[[], None]:
        if size not in self.replays:
            self.replays[size] = self._capture(size, room)
        return self.replays[size]

    def _capture(self, size: int, room: Room) -> Callable[[], None]:
        now = tree_map(lambda t: t[:size], room.live)
        given = (now, room.index[:size], room.mask[:size], room.keys[:size], room.steps[:size], room.k, room.sent)
        saved = tree_map(torch.clone, (now, room.k))  # compiling and warming up move them
        advance = self._advance(given)

        def body() -> None:
            advance(*given)

        if room.k.is_cuda:
            body = _graph(body)
        tree_map(lambda place, old: place.copy_(old), (now, room.k), saved)
        return body

    def _advance(self, given: tuple[Any, ...]) -> Callable[..., None]:
        """One step in place, compiled if that works; clients that are done stay as they are."""
        per_step = self.algorithm.batches_per_step

        def read(index: Tensor, mask: Tensor, keys: Tensor, k: Tensor) -> tuple[Tensors, ...]:
            several = []
            for i in range(per_step):
                j = (k * per_step + i).view(1)
                batch = self.federation.batch(index.index_select(1, j)[:, 0], keys.index_select(1, j)[:, 0])
                several.append({**batch, "mask": mask.index_select(1, j)[:, 0]})
            return tuple(several)

        def after(live: Live, several: tuple[Tensors, ...], steps: Tensor, k: Tensor, sent: Sent) -> Live:
            def one(v: Live, batches: tuple[Tensors, ...], n: Tensor) -> Live:
                with ClientConvolutions():
                    return step(self.algorithm, self.task, sent, v, batches, k.to(n.dtype), n, by_transform)

            moved = vmap(one, randomness="different")(live, several, steps)
            active = k < steps
            return tree_map(lambda new, old: torch.where(_like(active, new), new, old), moved, live)

        def advance(live: Live, index: Tensor, mask: Tensor, keys: Tensor, steps: Tensor, k: Tensor, sent: Sent,
                    after: Callable[..., Live] = after) -> None:  # fmt: skip
            new = after(live, read(index, mask, keys, k), steps, k, sent)
            tree_map(lambda place, value: place.copy_(value), live, new)
            k.add_(1)

        # Whatever is made once and kept (masks, constants) must exist before a trace would record its making.
        advance(*given)
        live, index, mask, keys, steps, k, sent = given
        # All in one and in place is fastest; where the compiler fails on that, the step by itself is most of it.
        batches = read(index, mask, keys, k)
        ways: list[Callable[[], Callable[..., None]]] = [
            lambda: compiled(advance, *given),
            lambda: partial(advance, after=compiled(after, live, batches, steps, k, sent)),
        ]
        for way in ways if self.compiled else []:
            try:
                return way()
            except Exception as error:  # a user's model, or the compiler, may do anything
                told = f"{type(error).__name__}: {str(error)[:300]}"
        if self.compiled:
            self.say(f"the local step could not be compiled ({told}); it runs uncompiled")
            self.compiled = False
        return advance


def _graph(body: Callable[[], None]) -> Callable[[], None]:
    """The body's work as one graph of kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries choose their kernels here, outside the capture
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


def compiled(function: Callable[..., Any], *example: Any) -> Callable[..., Any]:
    """Trace through vmap and gradients down to plain tensor operations, and compile those.

    The compiler never sees our Python: parts, hooks and users' modules are gone by then.
    """
    leaves, structure = tree_flatten(example)
    shape: list[Any] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        out = function(*tree_unflatten(list(tensors), structure))
        values, spec = tree_flatten(() if out is None else out)
        shape[:] = [spec]
        return values

    with torch.no_grad():
        graph = make_fx(flat)(*leaves)
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default  # the compiler may lay a convolution's output out otherwise
        graph.recompile()
        fast = torch.compile(graph, dynamic=False)
        fast(*leaves)
    return lambda *args: tree_unflatten(fast(*tree_flatten(args)[0]), shape[0])


def _rows(t: Tensor, count: int) -> Tensor:
    """Zeros for `count` clients of one's t."""
    if t.ndim != 1:
        return t.new_zeros((count, *t.shape))
    return t.new_zeros((count, -(-len(t) // ROUND) * ROUND))[:, : len(t)]


def _like(flags: Tensor, values: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (values.ndim - 1))
