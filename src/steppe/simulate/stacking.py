"""Trees of tensors (dicts and named tuples) with clients along the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def stack(trees: Sequence[Any]) -> Any:
    """Many trees of one shape as one tree of stacked rows."""
    return tree_map(lambda *rows: torch.stack(rows), *trees)


def row(tree: Any, i: int) -> Any:
    """One client's tree out of a stacked one."""
    return tree_map(lambda rows: rows[i], tree)


def finite(rows: Tensor) -> Tensor:
    """Which rows hold nothing but finite numbers.

    A finite sum has finite terms, and on a CPU costs a tenth of a look at each, so that is asked first. Finite terms
    may still have a sum that is not.
    """
    flat = rows[..., None].flatten(1)
    if not rows.is_cuda:
        good = flat.sum(1).isfinite()
        if bool(good.all()):
            return good
    return flat.isfinite().all(1)
