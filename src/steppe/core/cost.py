"""Costs of an algorithm, measured by tracing one round on tensors without data, never declared."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Meter, begin, end, step
from steppe.core.errors import SettingError, SteppeError
from steppe.core.hook_checks import check_reduction, watch
from steppe.core.layout import Tensors
from steppe.core.part_class_checks import HookFailed, PartSlip, explain_missing_states
from steppe.core.server import Server, aggregate, broadcast, choose_evaluated
from steppe.core.task import Task


@dataclass(frozen=True)
class Cost:
    """One client's round. Vectors are multiples of the model's size; bytes and FLOPs are absolute."""

    down: float
    up: float
    kept: float
    server: float
    bytes_down: int
    bytes_up: int
    bytes_kept: int
    gradients: int  # forward and backward passes per step
    forwards: int  # further forward passes per step
    flops: int  # per step, of convolutions and matrix products


class Traced(NamedTuple):
    """What one client sends and keeps in a round, in numbers by name, and the passes of one step."""

    down: dict[str, int]
    up: dict[str, int]
    kept: dict[str, int]  # by the client, between its rounds
    server: dict[str, int]
    meter: Meter
    flops: int

    def weigh(self, task: Task) -> Cost:
        """Return the sizes as multiples of the model and in bytes."""
        size, item = task.layout.size, task.x0.element_size()
        down, up, kept, held = (sum(sizes.values()) for sizes in self[:4])
        return Cost(
            down / size, up / size, kept / size, held / size, down * item, up * item, kept * item,
            self.meter.gradients, self.meter.forwards, self.flops,
        )  # fmt: skip


class WholeStep(nullcontext[None]):
    """In place of PyTorch's tracker of modules, whose hooks fail if a model differentiates inside its forward pass."""

    parents = frozenset({"Global"})


def cost(algorithm: Algorithm, task: Task, batch: Tensors) -> Cost:
    """Trace begin, step and end without data, or with a real step if the model reads values or creates tensors."""
    try:
        traced = trace_round(algorithm, task, batch)
    except Exception as error:  # without data, a model may fail in any way
        told = isinstance(error, SteppeError) and not isinstance(error, HookFailed)
        if task.x0.is_meta or told:
            raise
        traced = trace_round(algorithm, task, batch, task.x0.device)
    return traced.weigh(task)


@explain_missing_states()
def trace_round(algorithm: Algorithm, task: Task, batch: Tensors, device: torch.device | str = "meta") -> Traced:
    """Run one client's round on tensors without data, with one step, and refuse mistakes of its parts."""
    parts = algorithm.parts
    algorithm = Algorithm(tuple(watch(p, parts[:i]) for i, p in enumerate(parts)), algorithm.name)
    task = task.to(device)
    x = task.x0
    batch = tree_map(lambda v: v.to(device, x.dtype if v.is_floating_point() else None), batch)
    scalar = torch.ones((), device=device, dtype=x.dtype)
    server = Server(x, algorithm.server_state(x), task.buffers)
    for p in algorithm.parts:
        if absent := [name for name in p.down if name not in server.state[p.name]]:
            raise PartSlip(f"{type(p).__name__}.down names {absent[0]!r}, which server_state does not return: add it "
                           "there.")  # fmt: skip
    state = algorithm.client_state(x)
    rows = {name: {k: v[None] for k, v in tensors.items()} for name, tensors in state.items()}
    server, sent = broadcast(algorithm, task.layout, server, scalar, scalar, rows)
    live = begin(algorithm, task, sent, state, scalar)
    meter = Meter()
    batches = (batch,) * algorithm.batches_per_step
    counter: Any = FlopCounterMode(display=False)
    counter.mod_tracker = WholeStep()
    with counter, torch.no_grad():
        live = step(algorithm, task, sent, live, batches, scalar, scalar, meter=meter)
    reply = end(algorithm, task, sent, live, scalar)
    for p in algorithm.parts:
        check_reduction(p, reply.up[p.name])
    if not algorithm.guards:  # these act on several clients, or draw from a secret
        replies = tree_map(lambda v: v[None], reply)
        with suppress(SettingError):  # of a setting that only a run fills in, such as the number of rounds
            after = aggregate(algorithm, task.layout, server, sent, replies, scalar[None], 1, lambda p, k: rows[p][k])
            choose_evaluated(algorithm, task.layout, after, scalar, scalar)
    size = task.layout.size
    model = size - (size if algorithm.alone else task.layout.size_of(algorithm.frozen) if algorithm.frozen else 0)

    def count(states: States, buffers: Tensors | None = None) -> dict[str, int]:
        own = {f"{part}.{name}": v.numel() for part, tensors in states.items() for name, v in tensors.items()}
        return own | {f"buffers.{name}": v.numel() for name, v in (buffers or {}).items()}

    return Traced({"model": model} | count(sent.down, sent.buffers), {"model": model} | count(reply.up, reply.buffers),
                  count(reply.state), {"model": size} | count(server.state), meter,
                  counter.get_total_flops())  # fmt: skip
