"""Top five eigenvalues and trace of the FedAvg-CNN's Hessian on 5,000 CIFAR-10 images, compared with scipy's eigsh.

Both solvers get the same product, the same start vector and the same goal. ARPACK stops when every residual is below
tol·|λ_i|, ours when it is below tolerance·λ1. Therefore eigsh gets tol = tolerance·λ1/λ5: its last eigenvalue must then
be as accurate as ours, and the others may be less so. Its basis is its default of 20 vectors, with which it needs the
fewest products, because it checks residuals only when the basis is full. With a basis of 60, like ours, it needs at
least 60 products.

On a CPU, the cost is bounded by the six convolutions that a product takes per convolution of the model. There the trace
uses fewer probes, which makes its stated error larger, but does not change the cost per product.

To run it alone: python -m benchmarks.flatness --images 200 --device cpu
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import jobs
from benchmarks.progress import Progress
from steppe.core.task import Task
from steppe.executors.allocator import MEMORY
from steppe.flatness import Hessian, Loss, Sample, balanced, hutchinson, spectrum
from steppe.flatness.random_vectors import START, gaussian
from steppe.models import build

TOLERANCE, BASIS = 1e-4, 60  # what steppe analyze uses
GOAL = 20.0  # seconds on one H200
IMAGES, PROBES, FEW_PROBES = 5000, 100, 10  # few: for the trace in `make bench`


@dataclass
class Watched:
    """The Hessian, with a progress display."""

    hessian: Hessian
    progress: Progress

    def __post_init__(self) -> None:
        self.size, self.w = self.hessian.size, self.hessian.w

    def __call__(self, v: Tensor) -> Tensor:
        found = self.hessian(v)
        self.progress.step()
        return found


def problem(images: int, device: str, steps: int = 100) -> tuple[Loss, Tensor, str]:
    """Return the loss on a class-balanced sample, a model, and the data's name.

    The model has taken some steps of SGD, because at initialisation H has no outliers.
    """
    data, what = jobs.cifar()
    index = balanced(data.train_targets, images, 0, 10)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.mean, data.std))
    inputs = (data.train_inputs[index].float() / 255 - mean) / std
    torch.manual_seed(0)
    model = build("cnn", 10, (3, 32, 32)).to(device)
    sample = Sample(f"{images} class-balanced", inputs, data.train_targets[index]).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        part = torch.arange(step * 50, step * 50 + 50, device=device) % images
        loss = torch.nn.functional.cross_entropy(model(sample.inputs[part]), sample.targets[part])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    task = Task(model)
    return Loss(task, sample), task.x0.detach(), what


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """Return the result of `work`, and its seconds."""
    began = time.perf_counter()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return found, time.perf_counter() - began


def residuals(hessian: Watched, values: np.ndarray, vectors: np.ndarray) -> list[float]:
    """Compute ‖Hv − λv‖ by further products, independently of the solver."""
    rows = torch.tensor(vectors.T.copy()).to(hessian.w)
    at = torch.tensor(values.copy()).to(hessian.w)
    return torch.linalg.vector_norm(hessian(rows) - at[:, None] * rows, dim=1).tolist()


def eigsh(hessian: Watched, tol: float, start: Tensor) -> tuple[np.ndarray, np.ndarray, int]:
    """Run ARPACK with the same product; return values and vectors, largest first, and the number of products."""
    from scipy.sparse.linalg import LinearOperator
    from scipy.sparse.linalg import eigsh as arpack

    asked = 0

    def product(v: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += 1
        return hessian(torch.from_numpy(v.ravel().astype(np.float32)).to(hessian.w.device)).cpu().numpy()

    n = hessian.size
    operator = LinearOperator((n, n), matvec=product, dtype=np.float32)
    values, vectors = arpack(operator, 5, which="LA", tol=tol, v0=start.cpu().numpy())
    return values[::-1], vectors[:, ::-1], asked


def measure(device: str = "cpu", images: int = IMAGES, probes: int = PROBES) -> dict[str, Any]:
    """Time the eigenvalues by both solvers, and the trace."""
    loss, w, what = problem(images, device)
    progress = Progress("calls of the Hessian")
    hessian = Watched(loss.hessian(w), progress)
    warm = torch.ones_like(w)
    _, first = timed(lambda: hessian(warm), device)  # builds the graphs that later products share
    _, product = timed(lambda: hessian(warm), device)
    progress.say(f"\nthe Hessian of the FedAvg-CNN ({len(w):,} parameters) on {images} CIFAR-10 images ({what}), "
                 f"{device}: {product:.3f} s per product")  # fmt: skip
    found, seconds = timed(lambda: spectrum(hessian, top=5, tolerance=TOLERANCE, basis=BASIS), device)
    values, vectors = found.top.values.numpy(), found.top.vectors.T.cpu().numpy()
    report: dict[str, Any] = {
        "device": device, "images": images, "data": what, "parameters": len(w), "loss": loss.value(w),
        "tolerance": TOLERANCE, "first_product": first, "product": product, "threads": torch.get_num_threads(),
        "ours": {"seconds": seconds, "products": found.products, "converged": found.converged, "basis": BASIS,
                 "values": values.tolist(), "stated_residuals": found.top.residuals.tolist(),
                 "residuals": residuals(hessian, values, vectors)},
    }  # fmt: skip
    progress.say(solved("ours", report["ours"]))
    start = torch.nn.functional.normalize(gaussian(w, len(w), 0, START), dim=0)
    tol = TOLERANCE * float(values[0] / values[4])
    (others, rows, asked), took = timed(lambda: eigsh(hessian, tol, start), device)
    report["eigsh"] = {"seconds": took, "products": asked, "tol": tol, "values": others.tolist(),
                     "residuals": residuals(hessian, others, rows)}  # fmt: skip
    progress.say(solved("eigsh", report["eigsh"]))
    trace, took = timed(lambda: hutchinson(hessian, probes), device)
    report["trace"] = {"seconds": took, "products": probes, "value": trace.value, "error": trace.error}
    progress.say(f"{'trace':6} {took:8.2f} s {probes:5} products   {trace.value:.4g} ± {trace.error:.2g}")
    report["seconds"] = first + seconds + took  # the time of a user who needs both
    share = seconds / report["eigsh"]["seconds"]
    print(f"top 5 takes {share:.2f} of eigsh's time (target 1); with the trace {report['seconds']:.1f} s"
          + (f" (target {GOAL:.0f})" if device == "cuda" else ""))  # fmt: skip
    return report


def solved(name: str, r: dict[str, Any]) -> str:
    """Return a line on one solver's result."""
    return (f"{name:6} {r['seconds']:8.2f} s {r['products']:5} products   λ1 {r['values'][0]:.5g}, λ5 "
            f"{r['values'][4]:.5g}, largest residual {max(r['residuals']):.2g}")  # fmt: skip


def apart(images: int, probes: int) -> dict[str, Any]:
    """Measure on the CPU, in a process with the memory settings that the command line uses."""
    with tempfile.TemporaryDirectory(prefix="steppe-bench-") as folder:
        out = Path(folder) / "flatness.json"
        command = [sys.executable, "-m", "benchmarks.flatness", "--device", "cpu", "--images", str(images),
                   "--probes", str(probes), "--out", str(out)]  # fmt: skip
        subprocess.run(command, check=True, env={**os.environ, **MEMORY})
        found: dict[str, Any] = json.loads(out.read_text())
        return found


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m benchmarks.flatness", description=__doc__)
    options.add_argument("--images", type=int, default=IMAGES)
    options.add_argument("--probes", type=int, default=PROBES, help="random probes for the trace")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--out", type=Path, help="a JSON file")
    chosen = options.parse_args()
    result = measure(chosen.device, chosen.images, chosen.probes)
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")
