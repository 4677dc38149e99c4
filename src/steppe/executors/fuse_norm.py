"""ReLU and the sum with a shortcut inside the group norm before them, in the graph of a traced local step.

`fuse_norm` looks for group norm (`client_norm`), perhaps a sum, and ReLU, and replaces them by one operator. Backward,
the gradient of the norm then also does ReLU's part, and passes it on to the shortcut.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from steppe.executors.fuse_pooling import find_readers, remove_unused_nodes

aten, steppe = torch.ops.aten, torch.ops.steppe
SAME = (aten.permute.default, aten.clone.default, aten.alias.default)


def fuse_norm(graph: Graph) -> int:
    """Move ReLU, with or without a sum before it, into the group norm before them; return their number."""
    found = sum(_fuse(graph, node) for node in graph.find_nodes(op="call_function", target=steppe.client_norm.default))
    if found:
        remove_unused_nodes(graph)
    return found


def _find_origin(node: Any) -> Any:
    """Return what this node is a copy of: the same numbers at the same places, perhaps in another order of memory."""
    origin, order = node, None
    while node.target in SAME:
        if node.target is aten.permute.default:
            order = list(node.args[1]) if order is None else [node.args[1][axis] for axis in order]
        node = node.args[0]
        if order is None or order == sorted(order):
            origin = node
    return origin


def _fuse(graph: Graph, norm: Node) -> bool:
    outs = [user for user in norm.users if user.args[1] == 0]
    if len(outs) != 1 or len(outs[0].users) != 1:
        return False
    (after,) = outs[0].users
    residual, last = None, outs[0]
    if after.target is aten.add.Tensor and not after.kwargs and len(after.users) == 1:
        residual = after.args[1] if after.args[0] is last else after.args[0]
        if residual is last or not isinstance(residual, Node) or _read_kind(residual) != _read_kind(last):
            return False
        last, (after,) = after, after.users
    relu = after
    order = {node: i for i, node in enumerate(graph.nodes)}
    early = any(order[user] < order[relu] for out in norm.users if out is not outs[0] for user in out.users)
    if relu.target is not aten.relu.default or early:
        return False
    with graph.inserting_before(relu):
        # At the place of ReLU, where the residual is known too.
        x, _, weight, bias, groups, eps, _ = norm.args
        both = graph.call_function(steppe.client_norm.default, (x, residual, weight, bias, groups, eps, True))
        y, mean, rstd = (graph.call_function(getitem, (both, i)) for i in range(3))
    for node, key in ((both, norm), (y, relu)):
        node.meta = dict(key.meta)
    for out in list(norm.users):
        if out.args[1] in (1, 2):
            new = mean if out.args[1] == 1 else rstd
            new.meta = dict(out.meta)
            out.replace_all_uses_with(new)
    gates = [user for user in relu.users if user.target is aten.threshold_backward.default and user.args[2] == 0
             and user.args[1] is relu]  # fmt: skip
    relu.replace_all_uses_with(y)
    for gate in gates:
        _fuse_gate(graph, gate, mean, y)
    return True


def _read_kind(node: Node) -> tuple[torch.Size, torch.dtype]:
    return node.meta["val"].shape, node.meta["val"].dtype


def _fuse_gate(graph: Graph, gate: Node, mean: Node, y: Node) -> None:
    """Let the gradient of the norm read what comes before the gate, and make the gated gradient for all others."""
    readers = [n for n in graph.find_nodes(op="call_function", target=steppe.client_norm_grad.default)
               if _find_origin(n.args[0]) is gate and _find_origin(n.args[4]) is mean]  # fmt: skip
    if len(readers) != 1:
        return
    reader = readers[0]
    alone = all(user is reader for user in find_readers(gate))
    given = [_find_origin(node) for node in reader.args[2:6]]  # all of the forward pass, so they are known here
    with graph.inserting_after(gate):
        new = graph.call_function(steppe.client_norm_grad.default, (gate.args[0], y, *given, not alone))
    with graph.inserting_after(new):
        gated = graph.call_function(getitem, (new, 1))
    new.meta, gated.meta = dict(reader.meta), dict(gate.meta)
    reader.replace_all_uses_with(new)
    gate.replace_all_uses_with(gated)
