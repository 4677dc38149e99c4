"""The trace of the Hessian from products with random sign vectors, with its standard error.

Hutchinson   tr H = E vᵀ H v for independent signs v; the error decreases like ‖H‖_F / √probes.
Hutch++      Meyer, Musco, Musco and Woodruff, SOSA 2021, arXiv:2010.09649. A third of the products finds a basis Q of
             the dominant directions, a third computes their trace exactly, and the rest estimates the remainder,
             tr (I − QQᵀ) H (I − QQᵀ). The stated error is that of the remainder, given Q.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.layout import Layout
from steppe.core.widest_float import widen
from steppe.flatness import free_memory
from steppe.flatness.blocks import block, layers
from steppe.flatness.estimate import Estimate
from steppe.flatness.lanczos import Operator
from steppe.flatness.random_vectors import PROBE, SKETCH, rademacher

_AT_ONCE = 10  # probes per call, which share the graphs if those are not kept


def hutchinson(hessian: Operator, probes: int = 100, seed: int = 0) -> Estimate:
    """Estimate the trace by Hutchinson's method."""
    return Estimate.of(_sum_diagonals(hessian, probes, seed, [slice(None)])[:, 0])


def by_layer(hessian: Operator, layout: Layout, probes: int = 100, seed: int = 0,
             names: list[str] | None = None) -> dict[str, Estimate]:  # fmt: skip
    """Estimate the traces of the diagonal blocks (by default all layers) from the same products as the whole trace."""
    if hessian.size != layout.size:
        raise SteppeError("The layers' traces need the whole Hessian: leave out `on`.")
    names = layers(layout) if names is None else names
    parts = [block(layout, name).to(hessian.w.device) for name in names]
    each = _sum_diagonals(hessian, probes, seed, parts)
    return {name: Estimate.of(each[:, i]) for i, name in enumerate(names)}


def hutch_plus_plus(hessian: Operator, products: int = 99, seed: int = 0) -> Estimate:
    """Estimate the trace by Hutch++ with `products` products in total, a third for each of its three parts."""
    n, like, third = hessian.size, hessian.w, products // 3
    _check_probes(third)
    if third >= n:  # enough products to compute the trace exactly
        rows = torch.eye(n, dtype=like.dtype, device=like.device)
        return Estimate(float((hessian(rows) * rows).sum()), 0.0, n)
    free_memory.require(
        3 * third * n * like.element_size(), like.device, "Hutch++", "choose fewer products, or Hutchinson"
    )
    Q = _multiply(hessian, [rademacher(like, n, seed, SKETCH, i) for i in range(third)])
    Q = torch.linalg.qr(Q.T).Q.T  # (third, n), orthonormal rows
    exact = sum(float((hessian(rows) * rows).sum()) for rows in torch.split(Q, _AT_ONCE))
    rest = []
    for i in range(third):
        v = rademacher(like, n, seed, PROBE, i)
        v = v - (Q @ v) @ Q
        rest.append(float(v @ hessian(v)))
    left = Estimate.of(rest)
    return Estimate(exact + left.value, left.error, 3 * third)


def _sum_diagonals(hessian: Operator, probes: int, seed: int, parts: list[Any]) -> Tensor:
    """Return the sums of v ⊙ H v over each part's coordinates, (probes, parts)."""
    _check_probes(probes)
    out = []
    for begun in range(0, probes, _AT_ONCE):
        keys = range(begun, min(begun + _AT_ONCE, probes))
        v = torch.stack([rademacher(hessian.w, hessian.size, seed, PROBE, i) for i in keys])
        terms = widen(v * hessian(v))
        out.append(torch.stack([terms[:, part].sum(1) for part in parts], 1))
    return torch.cat(out)


def _multiply(hessian: Operator, rows: list[Tensor]) -> Tensor:
    return torch.cat([hessian(torch.stack(rows[i : i + _AT_ONCE])) for i in range(0, len(rows), _AT_ONCE)])


def _check_probes(probes: int) -> None:
    if probes < 2:
        raise SteppeError("A standard error needs at least 2 probes (6 products for Hutch++).")
