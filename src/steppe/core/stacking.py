"""Trees of tensors (dicts and named tuples) with clients along the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.widest_float import find_widest


def stack(trees: Sequence[Any]) -> Any:
    """Stack many trees of the same structure into one tree of rows."""
    return tree_map(lambda *rows: torch.stack(rows), *trees)


def put_row(tree: Any, i: int, new: Any) -> None:
    """Write one client's tree into a stacked one; tensors that were created in place are not copied."""

    def one(rows: Tensor, value: Tensor) -> None:
        if rows[i].data_ptr() != value.data_ptr():
            rows[i].copy_(value)

    tree_map(one, tree, new)


def take_row(tree: Any, i: int) -> Any:
    """Return one client's tree from a stacked one."""
    return tree_map(lambda rows: rows[i], tree)


def move_clients_first(clients: int, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
    """Return the tensors that a rule of `vmap` is given with the clients on the first axis; None: all share it."""
    return [t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, dims, strict=True)]  # fmt: skip


def flatten_rows(rows: Tensor) -> Tensor:
    """Return one vector per client, even if there are no clients or each has a single number."""
    return rows.reshape(len(rows), prod(rows.shape[1:]))


def joint_norms(rows: dict[str, Tensor]) -> Tensor:
    """Return each client's norm over all its uploads together, in float64: (n,)."""
    each = [torch.linalg.vector_norm(flatten_rows(v), dim=1, dtype=find_widest(v.device)) for v in rows.values()]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return norms


def scale_rows(rows: dict[str, Tensor], factors: Tensor) -> dict[str, Tensor]:
    """Multiply each client's uploads by its factor."""
    return {k: v * factors.to(v.dtype).reshape(-1, *[1] * (v.ndim - 1)) for k, v in rows.items()}
