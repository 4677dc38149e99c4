"""The loss along lines and over planes through a model.

Directions are eigenvectors of the Hessian (of unit length, with a positive sum of entries), or random with every filter
scaled to the norm of the model's filter (Li et al., NeurIPS 2018, arXiv:1712.09913), or go through given models. They
are saved with the grid, so that another model can be shown along the same directions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.layout import Layout
from steppe.data.npz import read_npz, write_arrays
from steppe.flatness.loss import Loss
from steppe.flatness.random_vectors import DIRECTION, gaussian


@dataclass(frozen=True)
class Landscape:
    """Values of f(origin + a·d1 (+ b·d2)); rows follow the first axis."""

    values: np.ndarray  # (len a) or (len a, len b)
    axes: tuple[np.ndarray, ...]  # coordinates along each direction
    directions: np.ndarray  # (1 or 2, P)
    kind: str  # eigenvectors, random, plane, line, or a name chosen by the user
    sample: str  # the data on which it was computed
    seed: int | None = None  # of random directions
    marks: dict[str, list[float]] = field(default_factory=dict)  # named models, by their coordinates

    def save(self, path: str | Path) -> None:
        """Save as .npz, without pickle."""
        about = {k: v for k, v in asdict(self).items() if k in ("kind", "sample", "seed", "marks")}
        arrays: dict[str, Any] = {f"axis{i}": axis for i, axis in enumerate(self.axes)}
        arrays |= {"values": self.values, "directions": self.directions, "about": np.array(json.dumps(about))}
        write_arrays(Path(path), arrays)

    @staticmethod
    def load(path: str | Path) -> Landscape:
        """Load a saved landscape."""
        if not Path(path).is_file():
            raise SteppeError(f"There is no landscape in {path}.")
        file = read_npz(Path(path))
        try:
            axes = tuple(file[f"axis{i}"] for i in range(len(file["directions"])))
            return Landscape(file["values"], axes, file["directions"], **json.loads(str(file["about"])))
        except (LookupError, ValueError, TypeError, RecursionError) as error:
            raise SteppeError(f"{path} is not a saved landscape ({type(error).__name__}: {error}).") from None


def ticks(points: int = 41, reach: float = 1.0) -> np.ndarray:
    """Return evenly spaced points from −reach to reach; an odd number of points includes 0, the model itself."""
    return np.linspace(-reach, reach, points)


def landscape(loss: Loss, origin: Tensor, directions: Tensor, axes: Sequence[np.ndarray],
              kind: str = "own", seed: int | None = None, marks: dict[str, list[float]] | None = None,
              batch: int = 64) -> Landscape:  # fmt: skip
    """Evaluate f at every point of the grid, `batch` points at a time."""
    if len(directions) != len(axes) or len(axes) not in (1, 2) or min(map(len, axes)) < 1:
        raise SteppeError("A landscape has one or two directions, and one axis of points per direction.")
    mesh = np.meshgrid(*axes, indexing="ij")
    at = torch.tensor(np.stack([m.ravel() for m in mesh], 1), dtype=origin.dtype, device=origin.device)  # (m, 1 or 2)
    batch = max(1, min(batch, loss.memory_limit // (3 * origin.numel() * origin.element_size())))
    values = torch.cat([loss.values(origin + part @ directions) for part in torch.split(at, batch)])
    shape = tuple(map(len, axes))
    return Landscape(values.numpy().reshape(shape), tuple(np.asarray(a, float) for a in axes),
                     directions.detach().cpu().numpy(), kind, loss.sample.name, seed, marks or {})  # fmt: skip


def filter_normalised(layout: Layout, w: Tensor, seed: int = 0, count: int = 2) -> Tensor:
    """Return random directions (count, P): each filter (a slice along axis 0) has the norm of that of w.

    Tensors with fewer than two axes larger than 1 (biases, norm layers, temperatures) get zeros. A tensor whose axis 0
    has length 1 (positions and tokens of a transformer) is one filter.
    """
    rows = []
    for i in range(count):
        pieces = []
        for d, own in zip(layout.pieces(gaussian(w, len(w), seed, DIRECTION, i)), layout.pieces(w), strict=True):
            if d.ndim < 2 or prod(d.shape) == max(d.shape):
                pieces.append(torch.zeros_like(d))
                continue
            axes = tuple(range(1, d.ndim))
            length = torch.linalg.vector_norm(d, dim=axes, keepdim=True)
            pieces.append(d / length * torch.linalg.vector_norm(own, dim=axes, keepdim=True))
        rows.append(layout.join(pieces))
    if not bool(torch.stack(rows).any()):
        raise SteppeError("Filter-normalised directions need tensors with filters (two axes or more) that are not 0; "
                          "this model has none. Use eigenvectors or given models.")  # fmt: skip
    return torch.stack(rows)


def plane(models: Sequence[Tensor], names: Sequence[str] = ("a", "b", "c")) -> tuple[Tensor, dict[str, list[float]]]:
    """Return two orthonormal directions of the plane through three models, and the models' coordinates.

    The first model is the origin.
    """
    if len(models) != 3:
        raise SteppeError(f"A plane goes through three models, not {len(models)}.")
    a, b, c = models
    first = torch.linalg.vector_norm(b - a)
    u = (b - a) / first
    v = (c - a) - ((c - a) @ u) * u
    height = torch.linalg.vector_norm(v)
    if not bool(height > 1e-6 * first) or not bool(first > 0):  # also if they are not finite
        raise SteppeError("The three models lie on one line, so they do not span a plane.")
    marks = [[0.0, 0.0], [float(first), 0.0], [float((c - a) @ u), float(height)]]
    return torch.stack([u, v / height]), dict(zip(names, marks, strict=True))


def interpolation(loss: Loss, a: Tensor, b: Tensor, points: int = 41, beyond: float = 0.25,
                  names: tuple[str, str] = ("a", "b")) -> Landscape:  # fmt: skip
    """Evaluate f along the line from a (at 0) to b (at 1), and `beyond` past both."""
    axis = np.linspace(-beyond, 1 + beyond, points)
    return landscape(loss, a, (b - a)[None], [axis], "line", marks={names[0]: [0.0], names[1]: [1.0]})
