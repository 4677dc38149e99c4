"""The blocks of the Hessian: which parameters belong to a layer, the head or the body."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.core.layout import Layout


def block(layout: Layout, on: str) -> Tensor:
    """Return a mask of the coordinates of `all`, the `head`, the `body`, or a module or tensor by its full name."""
    if on in ("all", "head", "body"):
        return layout.mask(on)
    inside = [name == on or name.startswith(on + ".") for name in layout.names]
    if not any(inside):
        raise SteppeError(
            f"The model has no part {quote(on)}{suggest_name(on, ['all', 'head', 'body', *layers(layout)])}"
        )
    return torch.cat([torch.full((n,), k) for n, k in zip(layout.sizes, inside, strict=True)])


def layers(layout: Layout) -> list[str]:
    """Return the modules that own parameters, in order; weight and bias count as one layer.

    >>> layers(Layout({"a.weight": (2,), "a.bias": (1,), "b.c.weight": (3,), "token": (1,)}, head="b"))
    ['a', 'b.c', 'token']
    """
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in layout.names))
