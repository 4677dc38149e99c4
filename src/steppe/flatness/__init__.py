"""Flatness measures of a loss as a function of the flat parameter vector, each with its uncertainty.

    result = steppe.run("fedsam")
    loss, w = Loss.of(result), result.x
    hessian = loss.hessian(w)
    spectrum(hessian, top=5, bottom=1).lambda1, hutch_plus_plus(hessian), density(hessian)
    worst_loss(loss, w, rho=0.05, adaptive=True), noisy_loss(loss, w)

`steppe analyze` computes all of them for a finished run, and keeps the results in its folder.
"""

from steppe.flatness.blocks import block, layers
from steppe.flatness.clients import (
    alignment,
    consistency,
    divergence,
    flatness_discrepancy,
    flatness_distance,
    forgetting,
    gradients,
    over_rounds,
    proximal,
    proximal_effect,
    radius_profile,
)
from steppe.flatness.density import Density, density
from steppe.flatness.estimate import Estimate, as_arrays, as_json
from steppe.flatness.lanczos import Pairs, Spectrum, spectrum
from steppe.flatness.landscape import Landscape, filter_normalised, interpolation, landscape, plane, ticks
from steppe.flatness.loss import Hessian, Loss
from steppe.flatness.sample import Sample, balanced, of_client, of_training_data
from steppe.flatness.sharpness import Ascent, gradient_norm, noisy_loss, worst_loss
from steppe.flatness.trace import by_layer, hutch_plus_plus, hutchinson

__all__ = [
    "Ascent", "Density", "Estimate", "Hessian", "Landscape", "Loss", "Pairs", "Sample", "Spectrum", "alignment",
    "as_arrays", "as_json", "balanced", "block", "by_layer", "consistency", "density", "divergence",
    "filter_normalised", "flatness_discrepancy", "flatness_distance", "forgetting", "gradient_norm", "gradients",
    "hutch_plus_plus", "hutchinson", "interpolation", "landscape", "layers", "noisy_loss", "of_client",
    "of_training_data", "over_rounds", "plane", "proximal", "proximal_effect", "radius_profile", "spectrum", "ticks",
    "worst_loss",
]  # fmt: skip
