"""Both ends of a symmetric operator's spectrum, by the Lanczos method with full reorthogonalisation.

An orthonormal basis V grows by one product per step: H V = V G + (the part outside V). The extreme eigenvalues of
T = (G + Gᵀ)/2 approach those of H. When the basis is full, the best vectors are kept and it grows again, so memory is
bounded (thick restart: Wu and Simon, SIAM J. Matrix Anal. Appl. 22, 2000). Every new vector is orthogonalised twice
against all others. Otherwise rounding would produce ghosts: copies of eigenvalues that have converged.

Uncertainty: a symmetric matrix has an eigenvalue within ‖H v − λ v‖ of λ, for any unit v. This residual follows from
G and needs no further products. It is never reported below the rounding error of a product.

Limitation: one start vector finds every eigenvalue once, whatever its multiplicity, until rounding or an exhausted
basis brings in more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.flatness import free_memory
from steppe.flatness.random_vectors import START, gaussian


class Operator(Protocol):
    """A symmetric operator, such as a Hessian."""

    size: int
    w: Tensor  # gives the device and the precision

    def __call__(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Pairs:
    """Eigenvalues with their eigenvectors, whose entries have a positive sum, and residuals."""

    values: Tensor  # eigenvalues, (k,)
    vectors: Tensor = field(repr=False)  # unit eigenvectors, (k, n)
    residuals: Tensor  # ‖Hv − λv‖ of each

    def __getitem__(self, which: slice | list[int]) -> Pairs:
        return Pairs(self.values[which], self.vectors[which], self.residuals[which])


@dataclass(frozen=True)
class Spectrum:
    """The largest and smallest eigenvalues."""

    top: Pairs  # descending
    bottom: Pairs  # ascending
    converged: bool  # residuals are below the tolerance times the largest |λ|
    products: int  # with the Hessian

    @property
    def lambda1(self) -> float:
        """Return the largest eigenvalue."""
        return float(self.top.values[0])

    @property
    def ratio(self) -> float | None:
        """Return λ1/λ5, or None if fewer than five eigenvalues were computed."""
        values = self.top.values
        return float(values[0] / values[4]) if len(values) > 4 and float(values[4]) != 0 else None

    @property
    def ratio_error(self) -> float | None:
        """Return the error of λ1/λ5, to first order in the two residuals."""
        if self.ratio is None:
            return None
        relative = self.top.residuals / self.top.values.abs()
        return abs(self.ratio) * float(relative[0] + relative[4])


def spectrum(hessian: Operator, top: int = 5, bottom: int = 0, tolerance: float = 1e-4, iterations: int = 300,
             basis: int = 60, seed: int = 0) -> Spectrum:  # fmt: skip
    """Compute the `top` algebraically largest and `bottom` smallest eigenvalues.

    Stop when their residuals are at most `tolerance` times the largest |λ|, or after `iterations` products. At most
    about `basis` vectors are kept in memory.
    """
    n, like = hessian.size, hessian.w
    if top < 0 or bottom < 0 or top + bottom < 1 or iterations < 1:
        raise SteppeError(f"top = {top} and bottom = {bottom} eigenvalues in {iterations} iterations cannot be "
                          "computed; ask for at least one, in at least one iteration.")  # fmt: skip
    top, bottom = min(top, n), min(bottom, n)
    wanted = min(top + bottom, n)
    room = min(n, max(basis, 2 * wanted + 2))
    kept = wanted + (room - wanted) // 2  # at a restart
    free_memory.require((room + 1 + kept) * n * like.element_size(), like.device, f"A basis of {room} vectors",
                   "choose a smaller basis, or fewer eigenvalues")  # fmt: skip
    V, G = like.new_empty(room + 1, n), torch.zeros(room + 1, room, dtype=torch.float64)
    V[0] = torch.nn.functional.normalize(gaussian(like, n, seed, START), dim=0)
    size = begun = 0  # size of the basis, and its size when the newest start vector was added
    for step in range(1, iterations + 1):
        column, new, length = extend(hessian, V[: size + 1])
        G[: size + 1, size], G[size + 1, size] = column, length
        size += 1
        values, S = torch.linalg.eigh((G[:size, :size] + G[:size, :size].T) / 2)  # ascending
        scale = float(values.abs().max())
        ends = sorted({*range(min(bottom, size)), *range(max(size - top, 0), size)})
        settled = bool((length * S[-1, ends].abs() <= tolerance * scale).all())
        if size < n and length <= 10 * torch.finfo(like.dtype).eps * scale:
            # H maps the basis into itself: continue in a new random direction. If that direction is an eigenvector
            # immediately, so is every direction that is left.
            settled = size == begun + 1
            begun = size
            G[size, size - 1] = length = 0.0
            new = _orthogonalise(gaussian(like, n, seed, START, step), V[:size])
        if size == n or (size >= wanted and settled) or step == iterations:
            break
        V[size] = new
        if size == room:
            low = kept * bottom // (top + bottom)
            best = [*range(low), *range(size - (kept - low), size)]
            V[:kept] = S[:, best].T.to(V) @ V[:size]
            V[kept] = V[size]
            G.zero_()
            G[:kept, :kept], G[kept, :kept] = torch.diag(values[best]), length * S[-1, best]
            size, begun = kept, -1
    vectors = torch.nn.functional.normalize(S[:, ends].T.to(V) @ V[:size], dim=1)
    vectors *= torch.where(vectors.sum(1, keepdim=True) < 0, -1, 1)
    error = G[: size + 1, :size] @ S[:, ends]  # H v in the basis …
    error[:size] -= values[ends] * S[:, ends]  # … minus λ v
    rounding = 10 * torch.finfo(like.dtype).eps
    residuals = torch.linalg.vector_norm(error, dim=0).clamp(min=rounding * scale)
    pairs = Pairs(values[ends], vectors, residuals)
    done = len(ends) == wanted and bool((residuals <= max(1.01 * tolerance, rounding) * scale).all())
    return Spectrum(pairs[list(range(len(ends)))[::-1][:top]], pairs[:bottom], done, step)


def extend(hessian: Operator, V: Tensor) -> tuple[Tensor, Tensor, float]:
    """Take one step: return the coefficients in V of H times its last row, the unit remainder, and its norm."""
    u = hessian(V[-1])
    column = V @ u
    u = u - column @ V
    again = V @ u  # orthogonalise again: if V almost spans H v, one pass leaves a large rounding error
    u = u - again @ V
    length = torch.linalg.vector_norm(u)
    return (column + again).cpu().double(), u / length.clamp(min=torch.finfo(u.dtype).tiny), float(length)


def _orthogonalise(v: Tensor, V: Tensor) -> Tensor:
    for _ in range(2):
        v = v - (V @ v) @ V
    return torch.nn.functional.normalize(v, dim=0)
