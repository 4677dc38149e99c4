"""Bias, ReLU and 2×2 max-pooling inside the convolution before them, in the graph of a traced local step.

A convolution of all clients (`client_conv`), its bias, ReLU and pooling read and write the same large tensor four
times, and their gradients do so again. `fuse_pooling` looks for this sequence in a graph and replaces it by operators
that write only the pooled pixels and, for each, its place among the four (0 to 3, or `NOWHERE` if ReLU has set it to
zero). The gradient before pooling is never written either. A sequence that something else reads, such as a regulariser
of the activations, stays as it is.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call,no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import getitem
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node

from steppe.executors.client_conv import client_conv, client_conv_input_grad, client_conv_weight_grad
from steppe.executors.client_conv_kernels import (
    CHANNELS,
    FEW,
    NOWHERE,
    PIXELS,
    by_triton,
    sizes,
    triton_conv_pool,
    triton_input_grad,
    triton_weight_grad,
    turned,
)

aten, steppe = torch.ops.aten, torch.ops.steppe
VIEWS = (aten.view.default, aten.reshape.default, aten.permute.default, aten.clone.default, aten.alias.default)


@torch.library.custom_op(
    "steppe::client_conv_pool", mutates_args=(),
    schema="(Tensor x, Tensor w, Tensor bias, int[] stride, int[] padding) -> (Tensor, Tensor)",
)  # fmt: skip
def client_conv_pool(
    x: Tensor, w: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Convolve x with w, add the bias (C, O), apply ReLU and pool; return the pooled pixels and their places."""
    if by_triton(x, w):
        return triton_conv_pool(x, w, bias, stride, padding)
    y = F.relu(client_conv(x, w, stride, padding) + bias[:, None, :, None, None])
    best, index = F.max_pool2d(y.flatten(0, 1), 2, return_indices=True)
    row, column = index // y.shape[-1], index % y.shape[-1]
    place = torch.where(best <= 0, NOWHERE, row % 2 * 2 + column % 2).to(torch.uint8)
    return _last(best.unflatten(0, y.shape[:2])), _last(place.unflatten(0, y.shape[:2]))


def _last(t: Tensor) -> Tensor:
    return t.movedim(-3, -1).contiguous().movedim(-1, -3)


@client_conv_pool.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    size = [side // 2 for side in sizes(x, w, stride, padding)]
    y = x.new_empty(x.shape[0], x.shape[1], *size, w.shape[1]).movedim(-1, -3)
    return y, torch.empty_like(y, dtype=torch.uint8)


def spread(g: Tensor, place: Tensor) -> Tensor:
    """Return the gradient before ReLU and pooling: that of the pooled pixel at its place, zero elsewhere."""
    four = torch.stack([torch.where(place == i, g, 0) for i in range(4)], -1).unflatten(-1, (2, 2))
    return _last(four.transpose(-3, -2).flatten(-4, -3).flatten(-2))


@torch.library.custom_op(
    "steppe::client_conv_pool_input_grad", mutates_args=(),
    schema="(Tensor g, Tensor place, Tensor w, int[] size, int[] stride, int[] padding) -> Tensor",
)  # fmt: skip
def client_conv_pool_input_grad(
    g: Tensor, place: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Compute the gradient for the input from that of the pooled pixels."""
    if by_triton(g, w):
        return triton_input_grad(g, w, size, stride, padding, place=place)
    return client_conv_input_grad(spread(g, place), w, size, stride, padding)


@client_conv_pool_input_grad.register_fake
def _(
    g: Tensor, place: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return g.new_empty(g.shape[0], g.shape[1], *size, w.shape[2]).movedim(-1, -3)


@torch.library.custom_op(
    "steppe::client_conv_pool_weight_grad", mutates_args=(),
    schema="(Tensor g, Tensor place, Tensor x, int[] size, int[] stride, int[] padding) -> Tensor",
)  # fmt: skip
def client_conv_pool_weight_grad(
    g: Tensor, place: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Compute the gradient for the weight from that of the pooled pixels."""
    if by_triton(g, x):
        return triton_weight_grad(g, x, size, stride, padding, place=place)
    return client_conv_weight_grad(spread(g, place), x, size, stride, padding)


@client_conv_pool_weight_grad.register_fake
def _(
    g: Tensor, place: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return x.new_empty(x.shape[0], g.shape[2], *size, x.shape[2]).movedim(-1, 2)


# --------------------------------------------------------------------------------------------------- the graph


class Chain(NamedTuple):
    """A convolution followed by bias, ReLU and pooling, and the nodes that read the gradient before them."""

    conv: Node
    add: Node
    bias: Node
    pool: Node
    incoming: Node | None  # the gradient of the pooled pixels
    readers: list[Node]  # of the gradient before the bias


def fuse_pooling(graph: Graph) -> int:
    """Replace every such sequence in the graph; return their number."""
    found = [s for pool in graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default)
             if (s := _match(pool))]  # fmt: skip
    for one in found:
        _replace(graph, one)
    if found:
        _sweep(graph)
    return len(found)


def _through(node: Node) -> Iterator[Node]:
    """Yield the nodes that read this one's values, seen through views and copies of it."""
    for user in node.users:
        if user.target in VIEWS:
            yield from _through(user)
        else:
            yield user


def _origin(node: Node) -> Node:
    while node.target in VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _match(pool: Node) -> Chain | None:
    """Return the sequence that ends in this pooling, or None if it has another form or other readers."""
    values, window, *rest = pool.args
    relu = _origin(values)  # type: ignore[arg-type]
    halves = list(window) == [2, 2] and all(list(stride) in ([], [2, 2]) for stride in rest[:1])  # type: ignore
    if not halves or len(rest) > 1 or relu.target is not aten.relu.default:
        return None
    add = relu.args[0]
    if not isinstance(add, Node) or add.target is not aten.add.Tensor or len(add.users) > 1 or add.kwargs:
        return None
    conv, bias = add.args
    if getattr(conv, "target", None) is not steppe.client_conv.default or len(conv.users) > 1:  # type: ignore
        return None
    shape = conv.meta["val"].shape  # type: ignore[union-attr]
    flat = getattr(bias, "meta", {}).get("val")
    if flat is None or flat.shape != (shape[0], 1, shape[2], 1, 1) or shape[2] < FEW or shape[3] % 2 or shape[4] % 2:
        return None
    indices = [user for out in pool.users if out.args[1] == 1 for user in _through(out)]
    if not indices:  # a teacher, which has no gradient
        alone = all(user is pool for user in _through(relu))
        return Chain(conv, add, bias, pool, None, []) if alone else None  # type: ignore[arg-type]
    back = indices[0]
    if len(indices) > 1 or back.target is not aten.max_pool2d_with_indices_backward.default:
        return None
    gates = list(_through(back))
    if len(gates) != 1 or gates[0].target is not aten.threshold_backward.default or gates[0].args[2] != 0:
        return None
    if {*_through(relu)} != {pool, back, gates[0]}:
        return None
    readers = list(_through(gates[0]))
    known = (aten.sum.dim_IntList, steppe.client_conv_input_grad.default, steppe.client_conv_weight_grad.default)
    good = all(r.target in known and _origin(r.args[0]) is gates[0] for r in readers)  # type: ignore[arg-type]
    good = good and all(tuple(r.args[1]) == (1, 3, 4) for r in readers if r.target is known[0])  # type: ignore
    return Chain(conv, add, bias, pool, back.args[0], readers) if good else None  # type: ignore[arg-type]


def _replace(graph: Graph, one: Chain) -> None:
    clients, batch, channels, height, width = one.conv.meta["val"].shape
    pooled = [clients, batch, channels, height // 2, width // 2]
    x, w, *how = one.conv.args
    with graph.inserting_after(one.add):
        flat = graph.call_function(aten.reshape.default, (one.bias, [clients, channels]))
    with graph.inserting_after(flat):
        both = graph.call_function(steppe.client_conv_pool.default, (x, w, flat, *how))
    with graph.inserting_after(both):
        place = graph.call_function(getitem, (both, 1))
        best = graph.call_function(getitem, (both, 0))
    with graph.inserting_after(best):
        merged = graph.call_function(aten.reshape.default, (best, [clients * batch, *pooled[2:]]))
    for out in list(one.pool.users):
        if out.args[1] == 0:
            out.replace_all_uses_with(merged)
    for reader in one.readers:
        with graph.inserting_before(reader):
            g = graph.call_function(aten.reshape.default, (one.incoming, pooled))
            if reader.target is aten.sum.dim_IntList:
                alive = graph.call_function(aten.lt.Scalar, (place, NOWHERE))
                zero = graph.call_function(aten.zeros_like.default, (g,))
                live = graph.call_function(aten.where.self, (alive, g, zero))
                new = graph.call_function(aten.sum.dim_IntList, (live, *reader.args[1:]), reader.kwargs)
            else:
                back = reader.target is steppe.client_conv_input_grad.default
                other = reader.args[1].meta["val"]  # type: ignore[union-attr]
                order = CHANNELS if not back and other.is_cuda and turned(other, other.shape[2]) else PIXELS
                op = steppe.client_conv_pool_input_grad if back else steppe.client_conv_pool_weight_grad
                value = one.incoming.meta["val"].reshape(pooled)  # type: ignore[union-attr]
                laid = [g if value.permute(order).is_contiguous() else _lay(graph, g, order),
                        place if order == PIXELS else _lay(graph, place, order)]  # fmt: skip
                new = graph.call_function(op.default, (*laid, *reader.args[1:]))
        reader.replace_all_uses_with(new)


def _lay(graph: Graph, node: Node, order: Sequence[int]) -> Node:
    """Lay the memory out in this order, as `client_conv._lay` does, where the compiler can fuse the copy."""
    turned_ = graph.call_function(aten.permute.default, (node, list(order)))
    copied = graph.call_function(aten.clone.default, (turned_,), {"memory_format": torch.contiguous_format})
    return graph.call_function(aten.permute.default, (copied, [order.index(axis) for axis in range(5)]))


def _sweep(graph: Graph) -> None:
    """Remove what nobody reads any more; what writes to a tensor stays."""
    for node in reversed(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and not node.users and not (schema is not None and schema.is_mutable):
            graph.erase_node(node)
