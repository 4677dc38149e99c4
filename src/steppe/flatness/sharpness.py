"""Sharpness: the rise of the loss near w.

worst_loss   max f(w + e) over ‖T⁻¹ e‖ ≤ ρ, approached from below by projected gradient ascent. One step with T = 1 is
             SAM's (Foret et al., ICLR 2021): e = ρ g/‖g‖. T = |w| is ASAM's (Kwon et al., ICML 2021). It is invariant
             under a rescaling of ReLU units, which can lower λ1 without changing the network's function.
noisy_loss   E f(w + σz), z standard normal: the LPF measure (Bisla, Wang and Choromanska, AISTATS 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.part import unit
from steppe.core.widest_float import widen
from steppe.flatness.estimate import Estimate
from steppe.flatness.loss import Loss
from steppe.flatness.random_vectors import NOISE, gaussian


@dataclass(frozen=True)
class Ascent:
    """The loss at w, the highest loss found, and their difference with its standard error over examples."""

    loss: float  # at w
    worst: float  # highest loss found
    rise: Estimate  # their difference
    path: tuple[float, ...]  # the loss after every step
    rho: float  # radius
    adaptive: bool  # whether the radius is relative to each parameter, as in ASAM


def worst_loss(loss: Loss, w: Tensor, rho: float, steps: int = 1, adaptive: bool = False, eta: float = 0.0) -> Ascent:
    """Maximise the loss in the ball of radius ρ. Each step has length ρ and is projected back: one step is SAM's.

    `adaptive` scales with T = |w| + eta; only eta = 0 is invariant under rescaling.
    """
    if rho < 0 or steps < 1:
        raise SteppeError(f"rho = {rho} must not be negative, and steps = {steps} must be at least 1.")
    scale = w.abs() + eta if adaptive else torch.ones_like(w)
    before = widen(loss.each(w))
    worst, path = before, []
    e = torch.zeros_like(w)  # T⁻¹ times the step away from w
    for _ in range(steps):
        e = e + rho * unit(scale * loss.gradient(w + scale * e))
        e = e * (rho / torch.linalg.vector_norm(e).clamp(min=torch.finfo(w.dtype).tiny)).clamp(max=1)
        there = widen(loss.each(w + scale * e))
        path.append(float(there.mean()))
        worst = there if there.mean() > worst.mean() else worst
    return Ascent(float(before.mean()), float(worst.mean()), Estimate.of(worst - before), tuple(path), rho, adaptive)


def noisy_loss(loss: Loss, w: Tensor, sigma: float = 0.01, draws: int = 100, seed: int = 0) -> Estimate:
    """Return the mean loss under Gaussian noise on every parameter, with the standard error over draws."""
    if draws < 2 or sigma < 0:
        raise SteppeError("The loss under noise needs at least 2 draws and a sigma that is not negative.")
    values = []
    for begun in range(0, draws, 10):
        keys = range(begun, min(begun + 10, draws))
        values.append(loss.values(torch.stack([w + sigma * gaussian(w, len(w), seed, NOISE, i) for i in keys])))
    return Estimate.of(torch.cat(values))


def gradient_norm(loss: Loss, w: Tensor, parts: int = 10) -> Estimate:
    """Return ‖∇f(w)‖ over the whole sample.

    The error is that of a sample of this size: the standard deviation of the parts' gradients along the whole gradient,
    divided by √parts. With batch statistics there is no error, because the gradient is not a mean over examples.
    """
    if loss.by_batch or len(loss.sample) < 2:
        return Estimate(float(torch.linalg.vector_norm(loss.gradient(w))), nan, 1)
    pieces = loss.split(min(parts, len(loss.sample)))
    shares = torch.tensor([len(piece.sample) / len(loss.sample) for piece in pieces], dtype=w.dtype, device=w.device)
    each = torch.stack([piece.gradient(w) for piece in pieces])  # (parts, P)
    whole = shares @ each
    along = widen(each @ unit(whole))
    return Estimate(float(torch.linalg.vector_norm(whole)), float(along.std()) / len(along) ** 0.5, len(along))
