"""Both ends of a symmetric operator's spectrum, by Lanczos' method with full reorthogonalisation.

An orthonormal basis V grows by one product a step, T = Vᵀ H V is diagonalised, and its ends approach those of H. When
the basis is full, the best vectors are kept and it grows again (thick restart: Wu and Simon, SIAM J. Matrix Anal.
Appl. 22, 2000), so memory is bounded. Every new vector is made orthogonal to all others twice: without that, rounding
shows as ghosts, copies of eigenvalues that have converged.

Uncertainty: a symmetric matrix has an eigenvalue within ‖H v − λ v‖ of λ, for any unit v. That residual is measured
at the end, with one more product a pair.

What it cannot see: one start vector shows every eigenvalue once, however often it is repeated, until rounding or an
exhausted basis brings in more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from steppe.errors import SteppeError
from steppe.flatness import memory
from steppe.flatness.draws import START, gaussian


class Operator(Protocol):
    """What is needed of a Hessian."""

    size: int
    w: Tensor  # gives the device and the precision

    def __call__(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Pairs:
    """Eigenvalues, unit eigenvectors (k, n) whose numbers add up to more than 0, and measured residuals ‖Hv − λv‖."""

    values: Tensor
    vectors: Tensor = field(repr=False)
    residuals: Tensor


@dataclass(frozen=True)
class Spectrum:
    top: Pairs  # descending
    bottom: Pairs  # ascending
    converged: bool  # residuals are below the tolerance times the largest |λ|
    iterations: int
    products: int

    @property
    def lambda1(self) -> float:
        return float(self.top.values[0])

    @property
    def ratio(self) -> float | None:
        """λ1/λ5, where five were asked for."""
        values = self.top.values
        return float(values[0] / values[4]) if len(values) > 4 and float(values[4]) != 0 else None


def spectrum(hessian: Operator, top: int = 5, bottom: int = 0, tolerance: float = 1e-4, iterations: int = 300,
             basis: int = 60, seed: int = 0) -> Spectrum:  # fmt: skip
    """The `top` algebraically largest and `bottom` smallest eigenvalues, until their residuals are at most
    `tolerance` times the largest |λ|, or `iterations` products are spent. `basis` vectors are kept in memory."""
    n, like = hessian.size, hessian.w
    if top < 0 or bottom < 0 or top + bottom < 1 or iterations < 1:
        raise SteppeError(f"top = {top} and bottom = {bottom} eigenvalues in {iterations} iterations cannot be "
                          "computed; ask for at least one, in at least one iteration.")  # fmt: skip
    top, bottom = min(top, n), min(bottom, n)
    wanted = min(top + bottom, n)
    room = min(n, max(basis, 2 * wanted + 2))
    kept = wanted + (room - wanted) // 2  # at a restart
    memory.require((room + 1 + kept) * n * like.element_size(), like.device, f"A basis of {room} vectors",
                   "choose a smaller basis, or fewer eigenvalues")  # fmt: skip
    V, T = like.new_empty(room + 1, n), torch.zeros(room, room, dtype=torch.float64)
    V[0] = torch.nn.functional.normalize(gaussian(like, n, seed, START), dim=0)
    size = begun = 0  # of the basis, and when its newest start vector came in
    for step in range(1, iterations + 1):
        column, new, length = extend(hessian, V[: size + 1])
        T[: size + 1, size] = T[size, : size + 1] = column
        size += 1
        values, S = torch.linalg.eigh(T[:size, :size])  # ascending
        scale = float(values.abs().max())
        ends = sorted({*range(min(bottom, size)), *range(max(size - top, 0), size)})
        settled = bool((length * S[-1, ends].abs() <= tolerance * scale).all())
        if size < n and length <= 10 * torch.finfo(like.dtype).eps * scale:
            # H maps the basis into itself: go on in a new direction, until one of them is an eigenvector at once, for
            # then all that is left is.
            settled = size == begun + 1
            begun = size
            new = _orthogonal(gaussian(like, n, seed, START, step), V[:size])
        if size == n or (size >= wanted and settled) or step == iterations:
            break
        V[size] = new
        if size == room:
            low = kept * bottom // (top + bottom)
            best = [*range(low), *range(size - (kept - low), size)]
            V[:kept] = S[:, best].T.to(V) @ V[:size]
            V[kept] = V[size]
            T.zero_()
            T[range(kept), range(kept)] = values[best]
            size, begun = kept, -1
    vectors = torch.nn.functional.normalize(S[:, ends].T.to(V) @ V[:size], dim=1)
    vectors *= torch.where(vectors.sum(1, keepdim=True) < 0, -1, 1)
    chosen = values[ends]
    residuals = torch.linalg.vector_norm(hessian(vectors) - chosen.to(V)[:, None] * vectors, dim=1).cpu().double()
    upper = list(range(len(ends) - min(top, len(ends)), len(ends)))[::-1]
    lower = list(range(min(bottom, len(ends))))
    high, low_end = (Pairs(chosen[i], vectors[i], residuals[i]) for i in (upper, lower))
    noise = 100 * torch.finfo(like.dtype).eps  # of a product: no residual can be asked to be smaller
    done = len(ends) == wanted and bool((residuals <= (1.1 * tolerance + noise) * scale).all())
    return Spectrum(high, low_end, done, step, step + len(ends))


def extend(hessian: Operator, V: Tensor) -> tuple[Tensor, Tensor, float]:
    """One step: H times the last row of V as V's coefficients, the unit vector that V lacks, and its length."""
    u = hessian(V[-1])
    column = V @ u
    u = u - column @ V
    again = V @ u  # once more: after one pass, rounding leaves what matters when V almost spans H v
    u = u - again @ V
    length = torch.linalg.vector_norm(u)
    return (column + again).double().cpu(), u / length.clamp(min=torch.finfo(u.dtype).tiny), float(length)


def _orthogonal(v: Tensor, V: Tensor) -> Tensor:
    for _ in range(2):
        v = v - (V @ v) @ V
    return torch.nn.functional.normalize(v, dim=0)
