"""Bias, ReLU and 2×2 max-pooling inside the convolution before them, in the graph of a traced local step.

A convolution of all clients (`client_conv`), its bias, ReLU and pooling read and write the same large tensor four
times, and their gradients do so again. `fuse_pooling` looks for this sequence in a graph and replaces it by operators
that write only the pooled pixels and, for each, its place among the four (0 to 3, or `NOWHERE` if ReLU has set it to
zero), from which the gradient before ReLU and pooling is computed in one pass. A sequence whose values are used
elsewhere, such as by a regulariser of the activations, stays as it is.
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

from steppe.executors.client_conv import client_conv
from steppe.executors.client_conv_kernels import (
    CHANNELS,
    FEW,
    NOWHERE,
    PIXELS,
    can_use_triton,
    find_output_size,
    prefers_contiguous_pixels,
    triton_conv_pool,
    triton_unpool,
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
    if can_use_triton(x, w):
        return triton_conv_pool(x, w, bias, stride, padding)
    y = F.relu(client_conv(x, w, stride, padding) + bias[:, None, :, None, None])
    best, index = F.max_pool2d(y.flatten(0, 1), 2, return_indices=True)
    row, column = index // y.shape[-1], index % y.shape[-1]
    place = torch.where(best <= 0, NOWHERE, row % 2 * 2 + column % 2).to(torch.uint8)
    return _put_last(best.unflatten(0, y.shape[:2])), _put_last(place.unflatten(0, y.shape[:2]))


def _put_last(t: Tensor) -> Tensor:
    return t.movedim(-3, -1).contiguous().movedim(-1, -3)


@client_conv_pool.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    size = [side // 2 for side in find_output_size(x, w, stride, padding)]
    y = x.new_empty(x.shape[0], x.shape[1], *size, w.shape[1]).movedim(-1, -3)
    return y, torch.empty_like(y, dtype=torch.uint8)


def spread_gradient(g: Tensor, place: Tensor) -> Tensor:
    """Return the gradient before ReLU and pooling: that of the pooled pixel at its place, zero elsewhere."""
    four = torch.stack([torch.where(place == i, g, 0) for i in range(4)], -1).unflatten(-1, (2, 2))
    return _put_last(four.transpose(-3, -2).flatten(-4, -3).flatten(-2))


@torch.library.custom_op(
    "steppe::client_unpool", mutates_args=(),
    schema="(Tensor g, Tensor place, bool pixels, bool channels) -> (Tensor, Tensor)",
)  # fmt: skip
def client_unpool(g: Tensor, place: Tensor, pixels: bool, channels: bool) -> tuple[Tensor, Tensor]:
    """Spread the gradient, with the channels last in memory and with the pixels last; what is not wanted is empty."""
    if can_use_triton(g):
        return triton_unpool(g, place, pixels, channels)
    dy = spread_gradient(g, place)
    turned_ = dy.transpose(1, 2).contiguous().transpose(1, 2)
    return dy if pixels else dy.new_empty(0), turned_ if channels else dy.new_empty(0)


@client_unpool.register_fake
def _(g: Tensor, place: Tensor, pixels: bool, channels: bool) -> tuple[Tensor, Tensor]:
    clients, batch, results, height, width = g.shape
    dy = g.new_empty(clients, batch, 2 * height, 2 * width, results).movedim(-1, -3)
    other = g.new_empty(clients, results, batch, 2 * height, 2 * width).transpose(1, 2)
    return dy if pixels else g.new_empty(0), other if channels else g.new_empty(0)


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
        remove_unused_nodes(graph)
    return len(found)


def find_readers(node: Node) -> Iterator[Node]:
    """Yield the nodes that read this one's values, seen through views and copies of it."""
    for user in node.users:
        if user.target in VIEWS:
            yield from find_readers(user)
        else:
            yield user


def _find_origin(node: Node) -> Node:
    while node.target in VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _match(pool: Node) -> Chain | None:
    """Return the sequence that ends in this pooling, or None if it has another form or other readers."""
    values, window, *rest = pool.args
    relu = _find_origin(values)  # type: ignore[arg-type]
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
    indices = [user for out in pool.users if out.args[1] == 1 for user in find_readers(out)]
    if not indices:  # a teacher, which has no gradient
        alone = all(user is pool for user in find_readers(relu))
        return Chain(conv, add, bias, pool, None, []) if alone else None  # type: ignore[arg-type]
    back = indices[0]
    if len(indices) > 1 or back.target is not aten.max_pool2d_with_indices_backward.default:
        return None
    gates = list(find_readers(back))
    if len(gates) != 1 or gates[0].target is not aten.threshold_backward.default or gates[0].args[2] != 0:
        return None
    if {*find_readers(relu)} != {pool, back, gates[0]}:
        return None
    readers = list(find_readers(gates[0]))
    known = (aten.sum.dim_IntList, steppe.client_conv_input_grad.default, steppe.client_conv_weight_grad.default)
    good = all(r.target in known and _find_origin(r.args[0]) is gates[0] for r in readers)  # type: ignore[arg-type]
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
    if one.incoming is None:
        return
    sums = [r for r in one.readers if r.target is aten.sum.dim_IntList]
    others = {r: _order(r) for r in one.readers if r not in sums}
    with graph.inserting_after(one.incoming):
        g = graph.call_function(aten.reshape.default, (one.incoming, pooled))
    after = max((place, g), key=list(graph.nodes).index)
    with graph.inserting_after(after):
        wanted = [order in others.values() for order in (PIXELS, CHANNELS)]
        before = graph.call_function(steppe.client_unpool.default, (g, place, *wanted))
    for reader, order in others.items():
        with graph.inserting_before(reader):
            dy = graph.call_function(getitem, (before, (PIXELS, CHANNELS).index(order)))
        reader.args = (dy, *reader.args[1:])
    for reader in sums:
        with graph.inserting_before(reader):
            alive = graph.call_function(aten.lt.Scalar, (place, NOWHERE))
            zero = graph.call_function(aten.zeros_like.default, (g,))
            reader.args = (graph.call_function(aten.where.self, (alive, g, zero)), *reader.args[1:])


def _order(reader: Node) -> tuple[int, ...]:
    """Return the layout in which this operator wants the gradient, as `client_conv` gives it."""
    other = reader.args[1].meta["val"]  # type: ignore[union-attr]
    back = reader.target is steppe.client_conv_input_grad.default
    return CHANNELS if not back and other.is_cuda and prefers_contiguous_pixels(other, other.shape[2]) else PIXELS


def remove_unused_nodes(graph: Graph) -> None:
    """Remove nodes whose values are no longer used, except those that write to a tensor."""
    for node in reversed(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and not node.users and not (schema is not None and schema.is_mutable):
            graph.erase_node(node)
