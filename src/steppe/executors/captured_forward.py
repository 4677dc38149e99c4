"""A model's forward pass on batches of one shape as one captured CUDA graph, for evaluations after every round.

The pass is traced with the clients' convolutions, as in training, so that bias, ReLU and pooling are computed inside
them (`fuse_pooling`), or ReLU inside group norm (`fuse_norm`). Models without such a sequence run as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from steppe.core.task import Task
from steppe.executors.captured import capture_graph
from steppe.executors.client_conv import ClientConvolutions
from steppe.executors.client_conv_kernels import compile_together, skip_launches
from steppe.executors.fuse_norm import fuse_norm
from steppe.executors.fuse_pooling import fuse_pooling
from steppe.executors.switches import SWITCHES

log = logging.getLogger("steppe")
Forward = Callable[[Tensor, Tensor], Tensor]  # (w, raw inputs) -> logits
Prepare = Callable[[Any], Any]  # raw inputs -> inputs of the model
_captured: WeakKeyDictionary[Task, dict[Any, Forward | None]] = WeakKeyDictionary()


def find_forward(task: Task, w: Tensor, x: Any, prepare: Prepare) -> Forward | None:
    """Return the captured forward pass of a task for batches like x, or None if the task runs without one.

    `prepare` is a part of it. It must be an object's method: a function made for one call would be captured each time.
    """
    if (
        not SWITCHES.captured_forward
        or not w.is_cuda
        or w.dtype != torch.float32
        or task.buffers
        or task.mixed is not None
    ):
        return None
    if not isinstance(x, Tensor) or x.ndim != 4 or not hasattr(prepare, "__self__"):
        return None
    switches = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, *astuple(SWITCHES)
    known, wanted = _captured.setdefault(task, {}), (prepare, x.shape, x.dtype, x.stride(), *switches)
    if wanted not in known:
        try:
            known[wanted] = _capture(task, w, x, prepare)
        except Exception as error:  # a user's model may raise anything, or wait for the host
            log.warning(f"the evaluation could not be captured as a graph ({type(error).__name__}: {error})"[:400])
            known[wanted] = None
    return known[wanted]


def trace_forward(task: Task, w: Tensor, x: Tensor, prepare: Prepare,
                  devices: Sequence[str] = ("cuda",)) -> GraphModule | None:  # fmt: skip
    """Return the graph of the forward pass with fused operators, or None if there is nothing to fuse."""

    def logits(w: Tensor, raw: Tensor) -> Tensor:
        x = prepare(raw)

        def one(v: Tensor) -> Tensor:
            with ClientConvolutions(devices):
                return task.forward(v, x, {}, learning=False).logits

        all_: Tensor = vmap(one)(w[None])  # a single client, whose batch fills the device
        return all_[0]

    prepare(x)  # cached constants must exist before tracing
    with torch.no_grad(), skip_launches():
        graph = make_fx(logits)(w, x)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default  # a fused operator may have another layout
    pooled = fuse_pooling(graph.graph) if SWITCHES.fuse_pooling else 0
    if not pooled + (fuse_norm(graph.graph) if SWITCHES.client_norm else 0):
        return None
    graph.recompile()
    return graph


def _capture(task: Task, w: Tensor, x: Tensor, prepare: Prepare) -> Forward | None:
    graph = trace_forward(task, w, x, prepare)
    if graph is None:
        return None
    at, batch = w.clone(), x.clone()  # at fixed addresses, which the CUDA graph reads
    with torch.no_grad():
        with skip_launches() as kernels:
            graph(at, batch)
        compile_together(kernels.values())
        run: Callable[..., Tensor] = torch.compile(graph, dynamic=False) if SWITCHES.compiled_forward else graph
        found: list[Tensor] = []

        def body() -> None:
            found[:] = [run(at, batch)]

        replay = capture_graph(body)

    def forward(w: Tensor, x: Tensor) -> Tensor:
        at.copy_(w)
        batch.copy_(x)
        replay()
        return found[0].clone()

    return forward
