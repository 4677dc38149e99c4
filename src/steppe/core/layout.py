"""The position of each parameter of a model in its flat vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch
from torch import Tensor

Tensors = dict[str, Tensor]  # tensors by name


class Layout:
    """Names, shapes and positions of the parameters, and which of them are the head.

    Convolution weights are stored in channels-last order, which CPU and GPU kernels prefer; the views that
    `unflatten` returns keep their logical shape, so no other code depends on it.

        >>> layout = Layout({"body.weight": (2, 3), "head.weight": (1, 2)}, head="head")
        >>> layout.size, layout.mask("head").tolist()
        (8, [False, False, False, False, False, False, True, True])
    """

    def __init__(self, shapes: Mapping[str, Iterable[int]], head: str) -> None:
        self.names = list(shapes)
        self.shapes = [tuple(shape) for shape in shapes.values()]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)
        self.in_head = [name == head or name.startswith(head + ".") for name in self.names]
        self.head_size = sum(n for n, inside in zip(self.sizes, self.in_head, strict=True) if inside)
        self._masks: dict[tuple[str, torch.device], Tensor] = {}

    def pieces(self, v: Tensor) -> list[Tensor]:
        """Return the parameters of a flat vector as views with their shapes."""
        return [_shape_pieces(p, s) for p, s in zip(torch.split(v, self.sizes), self.shapes, strict=True)]

    def join(self, pieces: Iterable[Tensor]) -> Tensor:
        """Invert `pieces`."""
        return torch.cat([_flatten_pieces(p) for p in pieces])

    def unflatten(self, v: Tensor) -> Tensors:
        return dict(zip(self.names, self.pieces(v), strict=True))

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        return self.join(params[name] for name in self.names)

    def mask(self, on: str, device: torch.device | str = "cpu") -> Tensor:
        """Mark the coordinates of the `head`, the `body`, `all`, or of tensors with `on` in their names."""
        wanted = (on, torch.device(device))
        if wanted not in self._masks:
            groups = {"all": [True] * len(self.names), "head": self.in_head, "body": [not h for h in self.in_head]}
            keep = groups.get(on, [on in name for name in self.names])
            each = [torch.full((n,), k) for n, k in zip(self.sizes, keep, strict=True)]
            self._masks[wanted] = torch.cat(each).to(device)
        return self._masks[wanted]

    def size_of(self, on: str) -> int:
        return {"all": self.size, "head": self.head_size, "body": self.size - self.head_size}[on]


def _shape_pieces(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 4:
        return piece.reshape(shape)
    out, inner, height, width = shape
    return piece.reshape(out, height, width, inner).permute(0, 3, 1, 2)


def _flatten_pieces(p: Tensor) -> Tensor:
    return (p.permute(0, 2, 3, 1) if p.ndim == 4 else p).reshape(-1)
