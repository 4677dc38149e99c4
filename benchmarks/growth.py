"""Growth of the cost of a round with the clients per round, the clients in total, the model size and the local steps.

The model is a perceptron on random vectors, in one process with one thread, so that the benchmark is short and shows
the library's own share. The algorithm is SCAFFOLD, because its clients keep a state between rounds. Each figure is the
best of several rounds.

    python -m benchmarks.growth                         on a CPU; part of `make bench`
    python -m benchmarks.growth --device cuda --help    on a GPU, with a larger model: benchmarks/gpu_growth.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

SAMPLES, INPUTS, HIDDEN, BATCH = 20_000, 64, 64, 10
BASE = {"clients": 1000, "per_round": 10, "hidden": HIDDEN, "steps": 2}
AXES: dict[str, tuple[int, ...]] = {
    "per_round": (1, 2, 5, 10, 20, 50, 100, 200),
    "clients": (100, 300, 1000, 3000, 10_000),
    "hidden": (64, 256, 1024, 2048),
    "steps": (1, 2, 5, 10, 50),
}
WORDS = {"per_round": "clients per round", "clients": "clients in total", "hidden": "model size",
         "steps": "local steps", "width": "model width"}  # fmt: skip


def one(clients: int, per_round: int, hidden: int, steps: int, rounds: int) -> dict[str, float]:
    """Return the set-up time, the best round and the model size of one run."""
    import numpy as np
    from torch import nn

    import steppe

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((SAMPLES, INPUTS), dtype=np.float32), rng.integers(10, size=SAMPLES)
    model = nn.Sequential(
        nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )
    seconds: list[float] = []
    began = time.perf_counter()
    steppe.run("scaffold", model, (x, y, x[:10], y[:10]), clients=clients, per_round=per_round,
               partition="dirichlet(100)", batch=BATCH, epochs=steps, max_steps=steps, lr=0.01, rounds=rounds,
               evaluate_every=rounds, workers=0, device="cpu",
               watch=lambda record: seconds.append(record["seconds"]["all"]))  # fmt: skip
    whole = time.perf_counter() - began
    return {"seconds": min(seconds[:-1]), "set_up": whole - sum(seconds),
            "parameters": sum(p.numel() for p in model.parameters())}  # fmt: skip


def all_sizes(quick: bool) -> dict[str, Any]:
    """Measure every size along every axis."""
    import torch

    torch.set_num_threads(1)
    one(**BASE, rounds=3)  # warm-up
    found: dict[str, Any] = {}
    for axis, sizes in AXES.items():
        some = sizes[:: max(1, len(sizes) - 1)] if quick else sizes
        found[axis] = {str(n): one(**{**BASE, axis: n}, rounds=4 if quick else 8) for n in some}
    return found


def measure(quick: bool = False) -> dict[str, Any]:
    """Measure milliseconds per round along each axis, in a separate process."""
    command = [sys.executable, "-m", "benchmarks.growth", "quick" if quick else "full"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    base = ", ".join(f"{WORDS[k]} {v}" for k, v in BASE.items() if k != "hidden")
    print(f"\ngrowth: milliseconds per round (SCAFFOLD, small perceptron; otherwise {base})")
    for axis, sizes in found.items():
        cells = []
        for n, r in sizes.items():
            unit = f"{r['parameters'] / 1e6:.2g} M" if axis == "hidden" else n
            setup = f" (set-up {r['set_up']:.1f} s)" if axis == "clients" else ""
            cells.append(f"{unit}: {1e3 * r['seconds']:.1f}{setup}")
        print(f"{WORDS[axis]:18}" + "   ".join(cells))
    return found


if __name__ == "__main__":
    if "--device" in sys.argv:
        from benchmarks.gpu_growth import main

        main()
    elif sys.argv[1:] in (["quick"], ["full"]):
        print(json.dumps(all_sizes(sys.argv[1] == "quick")))
    else:
        measure()
