"""Costs of an algorithm, found by tracing one round on tensors without data, never declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from steppe.core.algorithm import Algorithm
from steppe.core.client import Meter, begin, end, step
from steppe.core.layout import Tensors
from steppe.core.server import Server, broadcast
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


def cost(algorithm: Algorithm, task: Task, batch: Tensors, device: torch.device | str = "meta") -> Cost:
    """Trace begin, step and end. `batch` gives shapes only, unless the model needs a device with real numbers."""
    task = task.to(device)
    x, size = task.x0, task.layout.size
    batch = tree_map(lambda v: v.to(device, x.dtype if v.is_floating_point() else None), batch)
    scalar = torch.ones((), device=device, dtype=x.dtype)
    server = Server(x, algorithm.server_state(x), task.buffers)
    state = algorithm.client_state(x)
    rows = {name: {k: v[None] for k, v in tensors.items()} for name, tensors in state.items()}
    server, sent = broadcast(algorithm, task.layout, server, scalar, scalar, rows)
    live = begin(algorithm, task, sent, state, scalar)
    meter = Meter()
    batches = (batch,) * algorithm.batches_per_step
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        live = step(algorithm, task, sent, live, batches, scalar, scalar, meter=meter)
    reply = end(algorithm, task, sent, live, scalar)
    unsent = size if algorithm.alone else task.layout.size_of(algorithm.frozen) if algorithm.frozen else 0

    def count(tree: Any) -> int:
        return sum(v.numel() for v in tree_leaves(tree) if isinstance(v, Tensor))

    down = count((sent.x, sent.down, sent.buffers)) - unsent
    up = count((reply.update, reply.up, reply.buffers)) - unsent
    kept, held = count(reply.state), count((server.x, server.state))
    item = x.element_size()
    return Cost(
        down / size, up / size, kept / size, held / size, down * item, up * item, kept * item,
        meter.gradients, meter.forwards, counter.get_total_flops(),
    )  # fmt: skip
