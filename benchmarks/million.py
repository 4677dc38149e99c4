"""A million clients, of which a thousand take part in a round: `python -m benchmarks.scale --stages million`.

Every client has 20 different samples of two classes, drawn from the 1,437 training digits when it is called (rule
`drawn`), so clients share samples: the federation is large, the data set is not. Two local steps, a perceptron with
two hidden layers of 200, one process with one thread, client states on disk, a checkpoint every second round. Each run
is its own process. `start` is the time from its start until the line on memory, just before the first round; `grown` is
by how much its resident memory has grown at most since then, to be compared with what that line predicted.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, PER_ROUND, ROUNDS, ALGORITHMS = (1_000, 10_000, 100_000, 1_000_000), 1_000, 6, ("fedavg", "scaffold")
DATA = "digits (1,437 training samples, shared by clients), partition drawn(20, 2)"
EXPONENT, START = 0.05, 30.0  # the targets


def one(algorithm: str, clients: int) -> None:
    """Run one job in this process, and print its figures."""
    began = time.perf_counter()
    import torch

    import steppe
    from steppe.engine.resources import estimate_needs

    torch.set_num_threads(1)
    first: dict[str, float] = {}

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("memory:"):
                first.update(start=time.perf_counter() - began, resident=resident())

    logging.getLogger("steppe").addHandler(Notice())
    logging.getLogger("steppe").setLevel(logging.INFO)
    moments: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="steppe-million-") as folder:
        result = steppe.run(algorithm, "mlp", "digits", out=Path(folder) / "run", clients=clients,
                            per_round=PER_ROUND, rounds=ROUNDS, partition="drawn(20,2)", epochs=1,
                            batch=10, lr=0.05, store="disk", device="cpu", evaluate_every=ROUNDS, checkpoint_every=2,
                            workers=0, watch=lambda _: moments.append((time.perf_counter(), time.process_time())),
                            )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds, own = np.diff(moments, axis=0)[:-1].T  # without the first round (warm-up) and the last (evaluation)
    print(json.dumps({
        "algorithm": algorithm, "clients": clients, "start": first["start"],
        "seconds_per_round": float(seconds.mean()), "cpu_seconds_per_round": float(own.mean()),
        "cpu_seconds": own.tolist(),
        "predicted_mib": estimate_needs(result.experiment, disk=True).memory / 2**20,
        "grown_mib": (peak - first["resident"]) / 2**20, "peak_mib": peak / 2**20,
        "parameters": result.experiment.task.layout.size, "accuracy": result.accuracy,
    }))  # fmt: skip


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure() -> dict[str, Any]:
    """Run every job in its own process; fit the exponents of time per round over the number of clients."""
    rows = []
    for clients in CLIENTS:
        for algorithm in ALGORITHMS:
            command = [sys.executable, "-m", "benchmarks.million", algorithm, str(clients)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            rows.append(row := json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"{algorithm}, {clients:,} clients: start {row['start']:.1f} s, {row['cpu_seconds_per_round']:.2f} s "
                  f"of CPU time per round, memory grown by {row['grown_mib']:.0f} MiB of {row['predicted_mib']:.0f} "
                  "predicted", flush=True)  # fmt: skip
    growth = {a: {of: slope([r for r in rows if r["algorithm"] == a], of)
                  for of in ("cpu_seconds_per_round", "seconds_per_round")} for a in ALGORITHMS}  # fmt: skip
    return {"per_round": PER_ROUND, "rows": rows, "growth": growth, "draws": time_draws()}


def time_draws(most: int = 10**8) -> dict[str, dict[int, float]]:
    """Return the best CPU time of one round's draw of clients by each rule: the part that may depend on all clients."""
    from steppe.data.sampling import fixed, sparse

    found: dict[str, dict[int, float]] = {"fixed": {}, "sparse": {}}
    for name, draw in (("fixed", fixed), ("sparse", sparse)):
        for clients in (*CLIENTS, most):
            times = []
            for t in range(1 if clients > 10**6 else 5):
                began = time.process_time()
                draw(clients, PER_ROUND, t)
                times.append(time.process_time() - began)
            found[name][clients] = min(times)
    return found


def slope(rows: list[dict[str, Any]], of: str) -> float:
    """Fit the exponent b of `of` ~ clients^b by least squares on logarithms."""
    return float(np.polyfit(np.log([r["clients"] for r in rows]), np.log([r[of] for r in rows]), 1)[0])


if __name__ == "__main__":
    one(sys.argv[1], int(sys.argv[2]))
