"""Joined gradients with rows of a round length in memory, as those of the vectors that they are added to.

The gradients of all tensors of a model are joined to one row per client. Its length is any number, so rows begin at odd
addresses, and kernels that read them together with aligned vectors cannot load several numbers at once.
"""

from __future__ import annotations

import torch
from torch.fx import Graph

aten = torch.ops.aten
LEAST = 1 << 16  # shorter rows do not matter


def align_gradients(graph: Graph, multiple: int) -> int:
    """Let rows of joined gradients begin at multiples of a number; return how many joins were changed."""
    found = 0
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        pieces, *axis = node.args
        shape = node.meta["val"].shape
        if len(shape) != 2 or axis != [1] or shape[1] < LEAST or shape[1] % multiple == 0:
            continue
        found += 1
        with graph.inserting_before(node):
            rest = graph.call_function(aten.new_zeros.default, (pieces[0], [shape[0], -shape[1] % multiple]))
            whole = graph.call_function(aten.cat.default, ([*pieces, rest], 1))
            joined = graph.call_function(aten.slice.Tensor, (whole, 1, 0, shape[1]))
        joined.meta = dict(node.meta)
        node.replace_all_uses_with(joined)
        graph.erase_node(node)
    return found
