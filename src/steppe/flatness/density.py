"""The density of all eigenvalues, by stochastic Lanczos quadrature.

Ghorbani, Krishnan and Xiao, ICML 2019, arXiv:1901.10159.

Take a random unit vector v, and the eigenvalues θ of the tridiagonal matrix of the Lanczos method. With the weights
(first entry of their eigenvectors)², they match vᵀ p(H) v for all polynomials p of degree up to twice the steps. The
mean of vᵀ p(H) v over v is tr p(H) / n. The density places a Gaussian of width σ at each of them:

    φ(t) = mean over probes of Σ_j weight_j · N(t; θ_j, σ²)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.flatness import free_memory
from steppe.flatness.estimate import Estimate
from steppe.flatness.lanczos import Operator, extend
from steppe.flatness.random_vectors import DENSITY, rademacher


@dataclass(frozen=True)
class Density:
    """The mean density over probes on a grid, with its standard error. It integrates to 1, for `size` eigenvalues."""

    grid: Tensor  # eigenvalues at which the density is given
    density: Tensor  # at each of them
    error: Tensor  # its standard error
    nodes: Tensor  # Ritz values, (probes, steps)
    weights: Tensor  # (probes, steps), rows add up to 1
    sigma: float  # width of the Gaussian around every node
    size: int  # number of eigenvalues

    @property
    def trace(self) -> Estimate:
        """Return Hutchinson's estimate of the trace, which the first step of every probe contains."""
        return Estimate.of(self.size * (self.nodes * self.weights).sum(1))


def density(hessian: Operator, probes: int = 10, steps: int = 80, sigma: float | None = None, points: int = 1000,
            seed: int = 0) -> Density:  # fmt: skip
    """Estimate the density of all eigenvalues; `sigma` is 1 % of their range unless given."""
    n, like = hessian.size, hessian.w
    if probes < 2 or steps < 1:
        raise SteppeError("A density with standard errors needs at least 2 probes and 1 step.")
    steps = min(steps, n)
    free_memory.require(
        (steps + 1) * n * like.element_size(), like.device, f"A basis of {steps} vectors", "choose fewer steps"
    )
    nodes, weights = torch.zeros(2, probes, steps, dtype=torch.float64)
    for i in range(probes):
        values, mass = quadrature(hessian, rademacher(like, n, seed, DENSITY, i) / n**0.5, steps)
        nodes[i, : len(values)], weights[i, : len(values)] = values, mass
    low, high = float(nodes[weights > 0].min()), float(nodes[weights > 0].max())
    sigma = sigma or 0.01 * (high - low) or 0.01 * (abs(high) or 1.0)
    grid = torch.linspace(low - 5 * sigma, high + 5 * sigma, points, dtype=torch.float64)
    each = torch.stack([smoothed(grid, t, m, sigma) for t, m in zip(nodes, weights, strict=True)])
    return Density(grid, each.mean(0), each.std(0) / probes**0.5, nodes, weights, sigma, n)


def quadrature(hessian: Operator, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for the unit vector `start`; fewer than `steps` if its invariant subspace is smaller."""
    V = start.new_empty(steps + 1, len(start))
    T = torch.zeros(steps, steps, dtype=torch.float64)
    V[0] = start
    for size in range(1, steps + 1):
        column, V[size], length = extend(hessian, V[:size])
        T[:size, size - 1] = T[size - 1, :size] = column
        if length <= 10 * torch.finfo(start.dtype).eps * float(T.abs().max()):
            break
    values, S = torch.linalg.eigh(T[:size, :size])
    return values, S[0].square()


def smoothed(grid: Tensor, nodes: Tensor, weights: Tensor, sigma: float) -> Tensor:
    """Return Σ_j weight_j · N(t; node_j, σ²) at every t of the grid."""
    z = (grid[:, None] - nodes) / sigma
    curve: Tensor = (torch.exp(-0.5 * z.square()) * weights).sum(1) / (sigma * (2 * torch.pi) ** 0.5)
    return curve
