"""The measures that are numbers. To add one, write its function here and its column in `report/measure_tables.py`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from steppe import flatness
from steppe.core.errors import SteppeError
from steppe.flatness import Estimate, Spectrum
from steppe.measures.subject import Subject, measure

RHO = 0.05  # radius of SAM's ball, and of the flatness distance
RHO_ASAM = 0.5  # radius of ASAM's adaptive ball, relative to each weight
RHO_FEDSOL = 2.0  # FedSoL's radius, which its adaptive factor makes small
SIGMA = 0.01  # standard deviation of the noise on every weight


# ------------------------------------------------------------------------------------------------- the Hessian
@measure("hessian", usual=True)
def lambda1(s: Subject) -> Any:
    """Five largest eigenvalues of the Hessian and λ1/λ5, with residuals"""
    return _leave_out_vectors(s.top)


@measure("hessian")
def smallest(s: Subject) -> Any:
    """Smallest eigenvalue of the Hessian, with its residual"""
    return _leave_out_vectors(flatness.spectrum(s.hessian, top=0, bottom=1, seed=s.seed))


@measure("hessian", usual=True, products=100)
def trace(s: Subject) -> Any:
    """Trace of the Hessian by Hutchinson's method with 100 probes, ± standard error"""
    return s.traces["all"]


@measure("hessian", products=99)
def trace_pp(s: Subject) -> Any:
    """Trace of the Hessian by Hutch++ with 99 products: more precise if a few eigenvalues dominate"""
    return flatness.hutch_plus_plus(s.hessian, seed=s.seed)


@measure("hessian")
def per_layer(s: Subject) -> Any:
    """Trace, five largest eigenvalues and λ1/λ5 of the Hessian's blocks: every layer, the head, the body"""
    found = {name: flatness.spectrum(s.loss.hessian(s.w, name), top=5, seed=s.seed) for name in s.blocks}
    return {"trace": {name: s.traces[name] for name in found},
            "lambda1": {name: {"value": f.lambda1, "error": float(f.top.residuals[0])} for name, f in found.items()},
            "ratio": {name: {"value": f.ratio, "error": f.ratio_error} for name, f in found.items()},
            "top": {name: _leave_out_vectors(f)["top"] for name, f in found.items()}}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- sharpness
@measure("sharpness", usual=True)
def loss(s: Subject) -> Any:
    """Loss on the sample, ± standard error over examples"""
    return s.loss.estimate(s.w)


@measure("sharpness", usual=True)
def sharpness(s: Subject) -> Any:
    """Rise of the loss after one SAM step of length 0.05"""
    return flatness.worst_loss(s.loss, s.w, RHO)


@measure("sharpness")
def ascent(s: Subject) -> Any:
    """Rise to the largest loss in five ascent steps inside the ball of radius 0.05"""
    return flatness.worst_loss(s.loss, s.w, RHO, steps=5)


@measure("sharpness", usual=True)
def asam(s: Subject) -> Any:
    """Rise of the loss after one ASAM step of length 0.5, invariant under rescaling of the weights"""
    return flatness.worst_loss(s.loss, s.w, RHO_ASAM, adaptive=True)


@measure("sharpness", usual=True)
def lpf(s: Subject) -> Any:
    """Mean loss under Gaussian noise of 0.01 on every weight (100 draws)"""
    return flatness.noisy_loss(s.loss, s.w, SIGMA, seed=s.seed)


@measure("sharpness", usual=True)
def gradient_norm(s: Subject) -> Any:
    """Norm of the gradient over the whole sample"""
    return flatness.gradient_norm(s.loss, s.w)


# ------------------------------------------------------------------------- clients: one round from the final model
@measure("clients", usual=True)
def consistency(s: Subject) -> Any:
    """Mean squared distance of the clients' models from their mean, and from the new global model"""
    return flatness.consistency(s.round.local, s.round.after)


@measure("clients", usual=True)
def divergence(s: Subject) -> Any:
    """Mean distance of the clients' models from the model they received, and between pairs of them"""
    return flatness.divergence(s.round.x, s.round.local)


@measure("clients", usual=True)
def alignment(s: Subject) -> Any:
    """Cosines between the clients' gradients at the model they received"""
    return flatness.alignment(flatness.gradients(s.clients, s.round.x))


@measure("clients", usual=True)
def flatness_discrepancy(s: Subject) -> Any:
    """FedScar's flatness discrepancy: as its code computes it, and as its poster defines it"""
    r = s.round
    return flatness.flatness_discrepancy(s.clients, r.x, r.after, r.local, s.loss)


@measure("clients")
def flatness_distance(s: Subject) -> Any:
    """Our substitutes for FedNSAM's flatness distance, whose definition is not public"""
    return flatness.flatness_distance(s.clients, s.loss, s.round.after, s.round.local, RHO)


@measure("clients")
def proximal_effect(s: Subject) -> Any:
    """FedSoL's proximal loss at the clients' models, and cos(g_u, g_p)"""
    if s.experiment.federation.data.classes is None:
        raise SteppeError("proximal_effect compares class probabilities, but this task has no classes: leave it out.")
    each = [flatness.proximal_effect(f, w, s.round.x, RHO_FEDSOL)
            for f, w in zip(s.clients, s.round.local, strict=True)]  # fmt: skip
    cosines = [e.cosine for e in each if e.cosine is not None]
    return {"loss": Estimate.of([e.loss for e in each]), "cosine": Estimate.of(cosines) if cosines else None}


@measure("clients")
def radius_profile(s: Subject) -> Any:
    """Mean of FedSoL's adaptive radius in every tensor"""
    return flatness.radius_profile(s.experiment.task.layout, s.round.local, s.round.x)


@measure("clients", usual=True)
def forgetting(s: Subject) -> Any:
    """Test metric lost by local training: of the model the clients received, minus the mean of theirs"""
    lost = flatness.forgetting(s.given, s.local)
    return lost._replace(value=-lost.value) if s.experiment.task.metric.lower else lost


@measure("clients", usual=True)
def local_score(s: Subject) -> Any:
    """Test metrics of the clients' models after local training (mean and each), and of the model they received"""
    each = [one.metric for one in s.local]
    means = {name: Estimate.of([one.metrics[name] for one in s.local]) for name in s.given.metrics}
    return {"metric": s.experiment.task.metric.name, "mean": Estimate.of(each), "each": each, "ids": s.round.ids,
            "given": s.given.metric, "metrics": means}  # fmt: skip


@measure("clients")
def lambda1_clients(s: Subject) -> Any:
    """Largest eigenvalue of each client's own Hessian at the final model, and their mean"""
    pairs = [flatness.spectrum(f.hessian(s.w), top=1, seed=s.seed).top for f in s.few]
    values = [float(p.values[0]) for p in pairs]
    return {"mean": Estimate.of(values), "each": values, "residuals": [float(p.residuals[0]) for p in pairs],
            "ids": s.round.ids, "samples": [f.sample.name for f in s.few]}  # fmt: skip


def _leave_out_vectors(found: Spectrum) -> dict[str, Any]:
    """Return a spectrum without its vectors."""

    def values(pairs: flatness.Pairs) -> dict[str, Tensor]:
        return {"values": pairs.values, "residuals": pairs.residuals}

    first = ({"lambda1": found.lambda1, "ratio": found.ratio, "ratio_error": found.ratio_error}
             if len(found.top.values) else {})  # fmt: skip
    return {**first, "top": values(found.top), "bottom": values(found.bottom), "converged": found.converged,
            "products": found.products}  # fmt: skip
