"""The effect of a round: differences between the clients' models, losses and gradients, and to the global ones.

`x` is the model that the clients received, `after` the new global model, `local` the clients' models at the end of
the round, (n, P). Errors are standard errors over clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.layout import Layout
from steppe.core.part import unit
from steppe.core.widest_float import widen
from steppe.evaluate.score import Score
from steppe.flatness.estimate import Estimate
from steppe.flatness.loss import Loss


# ------------------------------------------------------------------------------------------------------- models
class Consistency(NamedTuple):
    """(1/n) Σ ‖w_i − ·‖², around the clients' unweighted mean and around the new global model (FedSMOO's code).

    For methods with duals, the second one also contains the server's correction.
    """

    mean: Estimate
    after: Estimate


def consistency(local: Tensor, after: Tensor) -> Consistency:
    """Compute the mean squared distances of the clients' models from their mean and from the new global model."""
    return Consistency(*(Estimate.of(widen(local - w).square().sum(1)) for w in (local.mean(0), after)))


class Divergence(NamedTuple):
    """Mean distances, not squared (FedSoL, Fig. 10): of the clients' models from x, and between pairs of them."""

    global_local: Estimate
    local_local: Estimate


def divergence(x: Tensor, local: Tensor) -> Divergence:
    """Compute the mean distances of the clients' models from x, and between pairs of them."""
    apart = torch.stack([torch.linalg.vector_norm(local - w, dim=1) for w in local])
    return Divergence(Estimate.of(torch.linalg.vector_norm(local - x, dim=1)), Estimate.of_pairs(apart))


# ---------------------------------------------------------------------------------------------------- gradients
class Alignment(NamedTuple):
    """Cosines of the clients' gradients at one model: between pairs, and with their mean."""

    pairs: Estimate
    with_mean: Estimate
    cosines: Tensor  # (n, n)


def alignment(gradients: Tensor) -> Alignment:
    """Compute the cosines of the clients' gradients (n, P)."""
    units = F.normalize(widen(gradients), dim=1)
    cosines = units @ units.T
    mean = F.normalize(widen(gradients).mean(0), dim=0)
    return Alignment(Estimate.of_pairs(cosines), Estimate.of(units @ mean), cosines.cpu())


def gradients(clients: Sequence[Loss], w: Tensor) -> Tensor:
    """Return every client's gradient at w, (n, P)."""
    return torch.stack([loss.gradient(w) for loss in clients])


# -------------------------------------------------------------------------------------- flatness, across clients
class Discrepancy(NamedTuple):
    """FedScar's flatness discrepancy, with f_i on the un-augmented training data of the round's clients, p_i ∝ n_i.

    Errors are by the jackknife over these clients. f is on a fixed sample and adds no error.

    code     |Σ p_i f_i(w') − Σ p_i f_i(w_i)|
    poster   [f(w) − Σ p_i f_i(w)] + [Σ p_i f_i(w') − Σ p_i f_i(w_i)]: the first bracket is 0 unless f covers more
             clients than took part
    moved    |Σ p_i f_i(w) − Σ p_i f_i(w')|, which the code calls global flatness
    """

    code: Estimate
    poster: Estimate | None  # None without f
    moved: Estimate


def flatness_discrepancy(clients: Sequence[Loss], x: Tensor, after: Tensor, local: Tensor,
                         everyone: Loss | None = None, sizes: Sequence[int] | None = None) -> Discrepancy:  # fmt: skip
    """Compute the flatness discrepancy. Pass the clients' numbers of examples if their losses are on subsets."""
    sizes = [len(loss.sample) for loss in clients] if sizes is None else sizes
    before, then, own = (torch.tensor([f.value(w) for f, w in zip(clients, models, strict=True)], dtype=torch.float64)
                         for models in ([x] * len(clients), [after] * len(clients), local))  # fmt: skip
    gap, moved = Estimate.weighted(then - own, sizes), Estimate.weighted(before - then, sizes)
    poster = None
    if everyone is not None:
        rest = Estimate.weighted(then - own - before, sizes)
        poster = rest._replace(value=everyone.value(x) + rest.value)
    return Discrepancy(gap._replace(value=abs(gap.value)), poster, moved._replace(value=abs(moved.value)))


class OverRounds(NamedTuple):
    """A series as one number: the mean of the last rounds. The minimum, which released codes print, is optimistic."""

    last: Estimate
    minimum: float


def over_rounds(series: Sequence[float], last: int = 50) -> OverRounds:
    """Summarise a series over rounds."""
    return OverRounds(Estimate.of(series[-last:]), min(series)) if series else OverRounds(Estimate(nan, nan, 0), nan)


class FlatnessDistance(NamedTuple):
    """Our substitutes for FedNSAM's flatness distance, whose definition is not public; not the paper's numbers.

    ours_d1   (1/n) Σ ‖(w_i + ρ unit ∇f_i(w_i)) − (w' + ρ unit ∇f(w'))‖²
    ours_d2   (1/n) Σ ‖w_i − w'‖²
    ours_d3   (1/n) Σ 1 − cos(∇f_i(w'), ∇f(w'))
    """

    ours_d1: Estimate
    ours_d2: Estimate
    ours_d3: Estimate


def flatness_distance(clients: Sequence[Loss], everyone: Loss, after: Tensor, local: Tensor,
                      rho: float) -> FlatnessDistance:  # fmt: skip
    """Compute our three substitutes for FedNSAM's flatness distance, whose definition is not public."""
    g = everyone.gradient(after)
    there = after + rho * unit(g)
    each = [w + rho * unit(f.gradient(w)) for f, w in zip(clients, local, strict=True)]
    cosines = F.cosine_similarity(widen(gradients(clients, after)), widen(g)[None])
    return FlatnessDistance(Estimate.of([float((e - there).square().sum()) for e in each]),
                            consistency(local, after).after, Estimate.of(1 - cosines))  # fmt: skip


# ------------------------------------------------------------------------------------------- FedSoL's analyses
def proximal(loss: Loss, x: Tensor, tau: float = 3.0) -> Loss:
    """Return KL(model at x ‖ model at w), both with temperature τ, as a loss of w on the same sample (FedSoL's L_p)."""
    teacher = loss.outputs(x)

    def kl(outputs: Tensor, targets: Tensor) -> Tensor:
        student, q = F.log_softmax(outputs / tau, -1), F.log_softmax(targets / tau, -1)
        return (q.exp() * (q - student)).sum(-1)

    return loss.with_sample(replace(loss.sample, targets=teacher), kl)


@dataclass(frozen=True)
class Proximal:
    """L_p (FedSoL, Fig. 9a) and cos(g_u, g_p) (Fig. 9b) at one local model; None if g_p is rounding error."""

    loss: float
    cosine: float | None


def proximal_effect(loss: Loss, w: Tensor, x: Tensor, rho: float, tau: float = 3.0,
                    radius: Literal["adaptive", "layer", "fixed"] = "adaptive") -> Proximal:  # fmt: skip
    """Compute L_p and cos(g_u, g_p) on one sample or batch.

    g_p = ∇L_p(w), ε = ρ λ ⊙ unit(g_p), g_u = ∇f(w + ε). At w = x, g_p is zero.
    """
    term = proximal(loss, x, tau)
    g = term.gradient(w)
    if float(torch.linalg.vector_norm(g)) < (1e-12 if w.dtype == torch.float64 else 1e-6):
        return Proximal(term.value(w), None)
    e = rho * unit(g)
    e = e if radius == "fixed" else e * shares(loss.layout, w - x, radius)
    u = widen(loss.gradient(w + e))
    return Proximal(term.value(w), float(F.cosine_similarity(u, widen(g), dim=0)))


def shares(layout: Layout, moved: Tensor, radius: Literal["adaptive", "layer"] = "adaptive") -> Tensor:
    """Return λ of FedSoL's adaptive radius: |D| / ‖D‖ for D = w − x, over axis 0 of a tensor or over all of it."""

    def share(d: Tensor) -> Tensor:
        d = d if d.ndim else d[None]
        axes = 0 if radius == "adaptive" else tuple(range(d.ndim))
        length: Tensor = torch.linalg.vector_norm(d, dim=axes, keepdim=True)
        return d.abs() / length.clamp(min=1e-12)

    return layout.join(map(share, layout.pieces(moved)))


def radius_profile(layout: Layout, local: Tensor, x: Tensor,
                   radius: Literal["adaptive", "layer"] = "adaptive") -> dict[str, Estimate]:  # fmt: skip
    """Return the mean of λ in every tensor (FedSoL, Fig. 8b), over the clients' models (n, P)."""
    rows = [torch.stack([p.mean() for p in layout.pieces(shares(layout, w - x, radius))]) for w in local]
    each = widen(torch.stack(rows))  # (n, tensors)
    return {name: Estimate.of(each[:, i]) for i, name in enumerate(layout.names)}


# ---------------------------------------------------------------------------------------------------- knowledge
def forgetting(whole: Score, local: Sequence[Score]) -> Estimate:
    """Return the global model's accuracy on the test set minus the mean accuracy of the local models there."""
    if not local:
        raise SteppeError("Forgetting needs at least one local model to compare with.")
    return Estimate.of([whole.metric - s.metric for s in local])
