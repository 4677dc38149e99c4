"""The batched executor as one captured CUDA graph, which keeps a GPU busy.

The whole local step (gather, augmentation, gradients, optimiser) is compiled for a fixed number of lanes and captured
as one CUDA graph. A round is then a sequence of replays that do not wait for the host. Clients differ in their number
of steps. A lane trains one client after another, and a client may change lanes, so that all lanes end at the same time
and one graph size is enough (`timetable`). The learning rate and the round are tensors, so one capture serves all
rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Live, Reply, Sent, begin, by_transform, end, step
from steppe.core.keyed import as_seed, key
from steppe.core.layout import Tensors
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.data.plan import Plan
from steppe.executors.batched import Batched
from steppe.executors.client_conv import ClientConvolutions
from steppe.executors.client_conv_kernels import compile_together, skip_launches
from steppe.executors.fuse_norm import fuse_norm
from steppe.executors.fuse_pooling import fuse_pooling
from steppe.executors.sequential import DROPOUT
from steppe.executors.switches import SWITCHES
from steppe.executors.timetable import make_timetable

log = logging.getLogger("steppe")
LENGTH = 1024  # the least number of batches per client and round for which memory is allocated
ROUND = 64  # rows of long vectors begin at multiples of this, because tensor cores need aligned operands


@dataclass
class Room:
    """Tensors at fixed addresses, which the graph reads and writes."""

    sent: Sent
    live: Live  # one row per lane
    index: Tensor  # (clients, T, B): the round's plan
    mask: Tensor
    keys: Tensor  # (clients, T)
    client: Tensor  # (lanes,) the row of the plan that a lane is training
    k: Tensor  # (lanes,) steps that its client has taken; the graph increments it
    steps: Tensor  # (lanes,) steps that its client has to take, as floats; 0 in an empty lane


class Captured(Batched):
    """Like `Batched`, but compiled and replayed, with `width` lanes (None: one per client of the first round)."""

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation, width: int | None = None,
                 compiled: bool = True, notes: list[str] | None = None) -> None:  # fmt: skip
        super().__init__(algorithm, task, federation)
        self.width, self.compiled = width, compiled
        self.notes = [] if notes is None else notes  # where the run differs from what was asked
        self.graphs = task.x0.is_cuda
        self.room: Room | None = None
        self.replay: Callable[[], None] | None = None

    def _train(self, sent: Sent, ids: list[int], states: list[States]) -> Reply:
        plan = self.federation.plan(ids, self.round_, self.algorithm.local_steps, self.algorithm.batches_per_step)
        with torch.no_grad():
            room = self._furnish(sent, states, plan)
            steps = torch.tensor(plan.steps, dtype=sent.lr.dtype).to(sent.x.device, non_blocking=True)
            begun = vmap(lambda s, n: begin(self.algorithm, self.task, room.sent, s, n))(stack(states), steps)
            clients = _make_writable(begun)
            shifts, over = make_timetable(plan.steps, len(room.k))
            tables = torch.tensor([shift.lanes for shift in shifts.values()]).to(sent.x.device, non_blocking=True)
            for t, (leave, enter, _), table in zip(shifts, shifts.values(), tables, strict=True):
                _copy(clients, room.live, leave)
                _copy(room.live, clients, enter)
                for place, row in zip((room.client, room.k, room.steps), table, strict=True):
                    place.copy_(row)
                self.replay = self.replay or self._capture(room)
                if t == 0:  # after the capture, which also draws random numbers
                    torch.manual_seed(as_seed(key(self.federation.seed, self.round_, ids[0], DROPOUT)))
                for _ in range(min((u for u in shifts if u > t), default=over) - t):
                    self.replay()
            return vmap(lambda v, n: end(self.algorithm, self.task, room.sent, v, n))(clients, steps)

    def _furnish(self, sent: Sent, states: list[States], plan: Plan) -> Room:
        """Copy this round's tensors to their fixed places; allocate and capture again if the round is larger."""
        count, length = plan.index.shape[:2]
        if self.room is None or count > len(self.room.index) or length > self.room.index.shape[1]:
            self.replay = None
            self.room = self._build(sent, states[0], plan)
        room = self.room
        tree_map(lambda place, new: place.copy_(new), room.sent, sent)
        for place, new in ((room.index, plan.index), (room.mask, plan.mask), (room.keys, plan.keys)):
            place[:count, :length].copy_(new)
        return room

    def _build(self, sent: Sent, state: States, plan: Plan) -> Room:
        # Powers of two, so that rounds and federations of similar size share one compiled step.
        count, length = (1 << (n - 1).bit_length() for n in plan.index.shape[:2])
        width = self.width or len(plan.index)
        sent = tree_map(torch.clone, sent)
        live = tree_map(lambda t: _allocate_rows(t, width), begin(self.algorithm, self.task, sent, state, sent.lr))
        whole = (2 * count, max(LENGTH, length), plan.index.shape[2])
        index = torch.zeros(whole, dtype=torch.int64, device=sent.x.device)
        at = index.new_zeros(width)
        return Room(sent, live, index, torch.zeros_like(index, dtype=torch.bool), index[:, :, 0].clone(), at,
                    at.clone(), at.to(sent.lr.dtype))  # fmt: skip

    def _capture(self, room: Room) -> Callable[[], None]:
        given = (room.live, room.index, room.mask, room.keys, room.client, room.k, room.steps, room.sent)
        saved = tree_map(torch.clone, (room.live, room.k))  # compiling and warming up change them
        advance = self._advance(given)

        def body() -> None:
            advance(*given)

        if self.graphs:
            try:
                body = capture_graph(body)
            except Exception as error:  # for example, a user's model that synchronises with the host in every step
                self._note(f"the local step could not be captured as a graph ({_describe(error)}); it runs without one")
        tree_map(lambda place, old: place.copy_(old), (room.live, room.k), saved)
        return body

    def _note(self, text: str) -> None:
        log.warning(text)
        self.notes.append(text)

    def _advance(self, given: tuple[Any, ...]) -> Callable[..., None]:
        """Return a function that takes one step in place, compiled if possible. Finished lanes do not change."""
        per_step = self.algorithm.batches_per_step

        def read(index: Tensor, mask: Tensor, keys: Tensor, client: Tensor, k: Tensor) -> tuple[Tensors, ...]:
            several = []
            for i in range(per_step):
                at = client, (k * per_step + i).clamp(max=index.shape[1] - 1)
                several.append({**self.federation.batch(index[at], keys[at]), "mask": mask[at]})
            return tuple(several)

        def after(live: Live, several: tuple[Tensors, ...], k: Tensor, steps: Tensor, sent: Sent) -> Live:
            def one(v: Live, batches: tuple[Tensors, ...], index: Tensor, n: Tensor) -> Live:
                with ClientConvolutions():
                    return step(self.algorithm, self.task, sent, v, batches, index.to(n.dtype), n, by_transform)

            moved = vmap(one, randomness="different")(live, several, k, steps)
            active = k < steps
            return tree_map(lambda new, old: torch.where(_reshape_flags(active, new), new, old), moved, live)

        def advance(live: Live, index: Tensor, mask: Tensor, keys: Tensor, client: Tensor, k: Tensor, steps: Tensor,
                    sent: Sent, after: Callable[..., Live] = after) -> None:  # fmt: skip
            new = after(live, read(index, mask, keys, client, k), k, steps, sent)
            tree_map(lambda place, value: place.copy_(value), live, new)
            k.add_(1)

        # Cached masks and constants must exist before tracing, or the trace would record their creation.
        with skip_launches() if self.compiled else nullcontext():
            advance(*given)
        live, index, mask, keys, client, k, steps, sent = given
        # Compiling the whole update in place is fastest. If that fails, compiling the step alone gains most of it.
        batches = read(index, mask, keys, client, k)
        ways: list[Callable[[], Callable[..., None]]] = [
            lambda: compile_step(advance, *given),
            lambda: partial(advance, after=compile_step(after, live, batches, k, steps, sent)),
        ]
        for way in ways if self.compiled else []:
            try:
                return way()
            except Exception as error:  # a user's model or the compiler may raise anything
                why = _describe(error)
        if self.compiled:
            self._note(
                f"the local step could not be compiled ({why}); it runs uncompiled: set compile = false to "
                "spare the attempt"
            )
            self.compiled = False
        return advance


def capture_graph(body: Callable[[], None]) -> Callable[[], None]:
    """Capture the body's kernels as one graph, and return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries must choose their kernels before the capture
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return partial(_replay, graph, body)


def _replay(graph: torch.cuda.CUDAGraph, _body: Callable[[], None]) -> None:
    """Replay a graph. Its body is kept as long, because it owns the constants whose addresses the graph reads."""
    graph.replay()


def compile_step(function: Callable[..., Any], *example: Any) -> Callable[..., Any]:
    """Trace through vmap and gradients down to plain tensor operations, and compile those.

    The compiler never sees the Python code of parts, hooks and users' modules.
    """
    leaves, structure = tree_flatten(example)
    shape: list[Any] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        out = function(*tree_unflatten(list(tensors), structure))
        values, spec = tree_flatten(() if out is None else out)
        shape[:] = [spec]
        return values

    with torch.no_grad():
        with skip_launches():
            graph = make_fx(flat)(*leaves)
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default  # the compiler may change the layout of a convolution's output
        if SWITCHES.fuse_pooling:
            fuse_pooling(graph.graph)
        if SWITCHES.client_norm:
            fuse_norm(graph.graph)
        _remove_self_copies(graph.graph)
        graph.recompile()
        with skip_launches() as kernels:
            graph(*leaves)
        compile_together(kernels.values())
        fast = torch.compile(graph, dynamic=False)
        fast(*leaves)
    return lambda *args: tree_unflatten(fast(*tree_flatten(args)[0]), shape[0])


def _copy(to: Live, source: Live, rows: list[tuple[int, int]]) -> None:
    """Copy rows (to, from) between two stacked trees."""
    if rows:
        there, here = torch.tensor(rows, device="cpu").T.to(to.w.device, non_blocking=True)
        tree_map(lambda places, values: places.index_copy_(0, there, values.index_select(0, here)), to, source)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _make_writable(rows: Live) -> Live:
    """Return rows that are safe to write to: one row per client, and no memory shared between tensors."""
    seen: set[int] = set()

    def own(t: Tensor) -> Tensor:
        # A start that all clients share comes out of vmap as one expanded row; with one client it is x itself.
        shared = len(t) == 1 or t.data_ptr() in seen or not t.is_contiguous()
        seen.add(t.data_ptr())
        return t.clone(memory_format=torch.contiguous_format) if shared else t

    mine: Live = tree_map(own, rows)
    return mine


def _remove_self_copies(graph: torch.fx.Graph) -> None:
    """Remove `where` and `copy_` nodes of states that a step only reads: they copy a tensor onto itself."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.where.self):
        if node.args[1] is node.args[2]:
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] is node.args[1]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _allocate_rows(t: Tensor, count: int) -> Tensor:
    """Return zeros of the shape of t for `count` clients; rows of vectors are aligned."""
    if t.ndim != 1:
        return t.new_zeros((count, *t.shape))
    return t.new_zeros((count, -(-len(t) // ROUND) * ROUND))[:, : len(t)]


def _reshape_flags(flags: Tensor, values: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (values.ndim - 1))
