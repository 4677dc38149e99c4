"""A real small comparison, analysed: what a report is made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from steppe import flatness
from steppe.analysis import Analysis, Options
from steppe.config import Config, resolve
from steppe.flatness.density import density
from steppe.flatness.lanczos import Operator
from steppe.jobs.many_runs import run_all
from steppe.jobs.points import Point
from steppe.report.write import write

QUICK = {"model": "mlp", "clients": 6, "per_round": 3, "rounds": 4, "epochs": 1, "workers": 0, "partition": "lda(0.3)",
         "measure": ["lambda1:2", "flatness_discrepancy:2"]}  # fmt: skip


def config(algorithm: str, **more: object) -> Config:
    return resolve({"algorithm": algorithm, **QUICK, **more})


NUMBERS = ["lambda1", "trace", "sharpness", "gradient_norm", "per_layer", "radius_profile", "lambda1_clients"]
DRAWN = [
    "density",
    "density_layers",
    "landscape",
    "landscape_clients",
    "line_clients",
    "lines",
]  # of the first seed, as a page shows it
# Curves, budgets, during training, clients, layers, densities, surfaces, contours, clients' contours, lines, lines to
# clients, classes, partitions (one per seed).
FIGURES = 2 + 2 + 4 + 1 + 4 + (1 + 4) + 2 + 2 + 2 * 3 + 4 + 2 + 10 + 2


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fedavg and fedsam on digits, two seeds each; not to be written to."""
    where = tmp_path_factory.mktemp("compared")
    entries = run_all([Point(n, config(n)) for n in ("fedavg", "fedsam")], 2, where, quiet=True)
    assert not any(e.failed for e in entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flatness, "density", measure_density)
        for run in sorted(where.glob("*/seed-*")):
            names = [*NUMBERS, *(DRAWN if run.name == "seed-0" else [])]
            Analysis(run, Options(samples=100, points=7)).measure(names)
    return where


def measure_density(hessian: Operator, seed: int = 0, **_: int) -> flatness.Density:
    """The density by fewer Hessian products, which were most of this fixture's time."""
    return density(hessian, probes=3, steps=30, seed=seed)


@pytest.fixture(scope="session")
def html(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write([compared], path)
    return path


@pytest.fixture
def copy(compared: Path, tmp_path: Path) -> Path:
    """The comparison, to be changed."""
    shutil.copytree(compared, tmp_path / "copy")
    return tmp_path / "copy"
