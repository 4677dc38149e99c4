"""A real small comparison, analysed: what a report is made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import steppe
from steppe import flatness
from steppe.config import Config, resolve
from steppe.report.write import write
from steppe.simulate import folder
from steppe.simulate.compare import compare
from steppe.simulate.setup import experiment

QUICK = {"model": "mlp", "clients": 6, "per_round": 3, "rounds": 4, "epochs": 1, "workers": 0, "partition": "lda(0.3)"}


def config(algorithm: str, **more: object) -> Config:
    return resolve({"algorithm": algorithm, **QUICK, **more})


def analyse(run: Path) -> None:
    """The files of an analysis, small."""
    built, model = experiment(resolve(folder.read_json(run / "config.json"))), steppe.load(run).model
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    loss = flatness.Loss(built.task, flatness.of_training_data(built.federation, 100))
    hessian = loss.hessian(w)
    found = flatness.spectrum(hessian, top=2, tolerance=1e-2)
    plane = flatness.landscape(
        loss, w, found.top.vectors, [flatness.ticks(9), flatness.ticks(7)], "eigenvectors"
    )  # an axis shorter than the other: a picture with its axes exchanged would show
    curve = flatness.density(hessian, probes=2, steps=12, points=120)
    (run / "analysis").mkdir()
    plane.save(run / "analysis/landscape.npz")
    np.savez(run / "analysis/density.npz", grid=curve.grid, density=curve.density, error=curve.error)
    measures = {"spectrum": found, "trace": flatness.hutchinson(hessian, 4), "gradient_norm": float(w.norm()),
                "sam": flatness.worst_loss(loss, w, rho=0.05)}  # fmt: skip
    folder.write_json(run / "analysis.json", {"sample": loss.sample.name, "measures": flatness.as_json(measures)})


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fedavg and fedsam on digits, two seeds each; not to be written to."""
    where = tmp_path_factory.mktemp("compared")
    entries = compare({n: config(n) for n in ("fedavg", "fedsam")}, 2, where, say=lambda _: None)
    assert not any(e.failed for e in entries)
    for run in sorted(where.glob("*/seed-*")):
        analyse(run)
    return where


@pytest.fixture(scope="session")
def html(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    path = tmp_path_factory.mktemp("page") / "report.html"
    write([compared], path)
    return path


@pytest.fixture
def copy(compared: Path, tmp_path: Path) -> Path:
    """The comparison, to be changed."""
    shutil.copytree(compared, tmp_path / "copy")
    return tmp_path / "copy"
