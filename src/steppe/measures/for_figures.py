"""The measures for figures: densities, landscapes and lines. Their arrays are stored in files, not shown in tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from steppe import flatness
from steppe.config import OWN
from steppe.core.errors import SteppeError
from steppe.flatness import Landscape, Loss
from steppe.measures.subject import Subject, measure


@measure("drawn", products=800)
def density(s: Subject) -> Any:
    """Density of all eigenvalues by stochastic Lanczos quadrature, ± standard error"""
    return flatness.density(s.hessian, seed=s.seed)


@measure("drawn", products=200, blocks=True)
def density_layers(s: Subject) -> Any:
    """Densities of the Hessian's blocks: every layer, the head, the body (5 probes of 40 steps each)"""
    return {name: flatness.density(s.loss.hessian(s.w, name), probes=5, steps=40, seed=s.seed)
            for name in s.blocks}  # fmt: skip


# --------------------------------------------------------------------------------------------------------- planes
def _draw_around(s: Subject, loss: Loss, rows: Tensor, kind: str) -> Landscape:
    return flatness.landscape(loss, s.w, rows, [flatness.ticks(s.points)] * 2, kind, s.seed)


def _draw_through(s: Subject, models: Sequence[Tensor], names: Sequence[str]) -> Landscape:
    rows, marks = flatness.plane(models, names)
    at = np.array(list(marks.values()))
    low, high = at.min(0), at.max(0)
    axes = [np.linspace(a - 0.25 * (b - a), b + 0.25 * (b - a), s.points) for a, b in zip(low, high, strict=True)]
    return flatness.landscape(s.loss, models[0], rows, axes, "plane", marks=marks)


def _list_losses(s: Subject) -> list[tuple[str, Loss]]:
    return [(f"client-{i}", f) for i, f in zip(s.round.ids, s.few, strict=True)]


@measure("drawn")
def landscape(s: Subject) -> Any:
    """Loss over the plane of the Hessian's two leading eigenvectors"""
    return _draw_around(s, s.loss, s.top.top.vectors[:2], "eigenvectors")


@measure("drawn", clients=True)
def landscape_clients(s: Subject) -> Any:
    """Each client's loss over the same plane as `landscape`"""
    return {name: _draw_around(s, f, s.top.top.vectors[:2], "eigenvectors") for name, f in _list_losses(s)}


@measure("drawn")
def landscape_random(s: Subject) -> Any:
    """Loss over the plane of two random, filter-normalised directions"""
    return _draw_around(s, s.loss, flatness.filter_normalised(s.experiment.task.layout, s.w, s.seed), "random")


@measure("drawn", clients=True)
def landscape_random_clients(s: Subject) -> Any:
    """Each client's loss over the same plane as `landscape_random`"""
    rows = flatness.filter_normalised(s.experiment.task.layout, s.w, s.seed)
    return {name: _draw_around(s, f, rows, "random") for name, f in _list_losses(s)}


@measure("drawn", clients=True)
def plane(s: Subject) -> Any:
    """Loss over the plane through the global model and two clients' models"""
    if len(s.round.local) < 2:
        raise SteppeError("The plane goes through two clients' models: choose at least 2 clients.")
    names = ["global", *(f"client {i}" for i in s.round.ids[:2])]
    return _draw_through(s, [s.round.x, *s.round.local[:2]], names)


@measure("drawn", runs=3)
def plane_runs(s: Subject) -> Any:
    """Loss over the plane through the models of the first two runs and of this run"""
    if len(s.others) < 2:
        return None  # this run is one of the first two
    return _draw_through(
        s, [*(_check_size(s, *other) for other in s.others[:2]), s.w], [*(n for n, _ in s.others[:2]), "this"]
    )


# ---------------------------------------------------------------------------------------------------------- lines
@measure("drawn")
def lines(s: Subject) -> Any:
    """Loss along each of the two leading eigenvectors, and along two random, filter-normalised directions"""
    rows = {"eigenvector": s.top.top.vectors[:2],
            "random": flatness.filter_normalised(s.experiment.task.layout, s.w, s.seed)}  # fmt: skip
    axis = flatness.ticks(2 * s.points - 1)
    return {f"{kind}-{i + 1}": flatness.landscape(s.loss, s.w, row[None], [axis], kind, s.seed)
            for kind, two in rows.items() for i, row in enumerate(two)}  # fmt: skip


@measure("drawn")
def line(s: Subject) -> Any:
    """Loss along the line from the initial model to the final one, and beyond both"""
    if s.experiment.config.model.startswith(OWN):
        raise SteppeError("The line starts at the initial model, which is not stored for a module of your own: "
                          "leave it out, or use steppe.flatness.interpolation.")  # fmt: skip
    return flatness.interpolation(s.loss, s.experiment.task.x0, s.w, 2 * s.points - 1, names=("initial", "final"))


@measure("drawn", runs=2)
def line_runs(s: Subject) -> Any:
    """Loss along the line from the first run's model to this run's"""
    if not s.others:
        return None  # this is the first run
    first = _check_size(s, *s.others[0])
    return flatness.interpolation(s.loss, first, s.w, 2 * s.points - 1, names=(s.others[0][0], "this"))


@measure("drawn", clients=True)
def line_clients(s: Subject) -> Any:
    """Global loss along the lines from the model that clients received to each client's model"""
    return {f"client-{i}": flatness.interpolation(s.loss, s.round.x, w, s.points, names=("global", f"client {i}"))
            for i, w in zip(s.round.ids, s.round.local, strict=True)}  # fmt: skip


def _check_size(s: Subject, name: str, other: Tensor) -> Tensor:
    if other.shape != s.w.shape:
        raise SteppeError(f"The model of {name} has a different number of parameters, so there is no line to it.")
    return other.to(s.w)
