"""`make bench-scale`: the cost of a round with many clients and states on disk, in one process and in two.

Each run is its own process or torchrun launch: a perceptron on the shape of Fashion-MNIST, clients with the same few
samples and two local steps, so that only the number of clients changes. The exponent of the growth is fitted on a
log-log scale: 0 is no growth, 1 is proportional. 10,000 clients with the real data take part in a run of SCAFFOLD and
in one of FedSMOO. At last 1,000 to 1,000,000 clients, 1,000 per round, for FedAvg and SCAFFOLD on the digits that come
with the package (`benchmarks/million.py`). The results are written to benchmarks/results/scale.json; `--stages` runs
some and keeps the others; `python -m benchmarks.tables` writes the tables of docs/how-to/scale.md from it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).with_name("results")
STAGES = ("clients", "ten_thousand", "million")
CLIENTS, PER_ROUND, PROCESSES = (100, 1_000, 10_000), (10, 20, 40), (1, 2)
BASE = {"algorithm": "scaffold", "clients": 1_000, "per_round": 20, "rounds": 12, "processes": 1, "store": "disk",
        "partition": "iid"}  # fmt: skip


def one(algorithm: str, clients: int, per_round: int, rounds: int, store: str, partition: str, **_: Any) -> None:
    """Run one job in this process; rank 0 prints its figures."""
    import torch

    import steppe
    from benchmarks.jobs import data
    from steppe.distributed.torchrun import is_first, join

    join()
    torch.set_num_threads(1)
    moments: list[tuple[float, float]] = []

    def watch(record: dict[str, Any]) -> None:
        moments.append((time.perf_counter(), time.process_time()))

    images, what = data()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="steppe-scale-") as folder:
        out = Path(folder) / "run"
        result = steppe.run(algorithm, "mlp", images, out=out, clients=clients, per_round=per_round, rounds=rounds,
                            partition=partition, epochs=1, batch=3, max_steps=2, lr=0.05, store=store, device="cpu",
                            evaluate_every=rounds, checkpoint_every=4, workers=0, watch=watch)  # fmt: skip
        on_disk = sum(f.stat().st_blocks * 512 for f in out.rglob("*") if f.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    peaks: list[Any] = [peak / 2**20]
    if torch.distributed.is_initialized():
        peaks *= torch.distributed.get_world_size()
        torch.distributed.all_gather_object(peaks, peak / 2**20)
    if is_first():
        # Without the first round (warm-up) and the last one (evaluation), but with checkpoints. Processor time (of
        # rank 0) is independent of other load on the machine.
        seconds, own = np.diff(np.array(moments)[:-1], axis=0).T
        report = {
            "rounds_per_second": 1 / seconds.mean(), "seconds_a_round": seconds.mean(), "best_round": seconds.min(),
            "cpu_seconds_a_round": own.mean(), "peak_mb": sum(peaks), "peak_mb_each": peaks,
            "set_up": moments[0][0] - began, "disk_mb": on_disk / 2**20, "rounds": rounds,
            "parameters": result.experiment.task.layout.size, "accuracy": result.accuracy, "data": what,
        }  # fmt: skip
        print(json.dumps(report))


def measured(**changes: Any) -> dict[str, Any]:
    """Run one job in its own process or launch, and return its figures."""
    job = {**BASE, **changes}
    launcher = (
        ["-m", "torch.distributed.run", "--nproc-per-node", str(job["processes"])] if job["processes"] > 1 else []
    )
    command = [sys.executable, *launcher, "-m", "benchmarks.scale", "--one", json.dumps(job)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    plural = "es" if job["processes"] > 1 else ""
    print(f"{job['algorithm']}, {job['clients']:>6,} clients, {job['per_round']:>3} per round, {job['processes']} "
          f"process{plural}: {found['rounds_per_second']:.2f} rounds/s, {1e3 * found['cpu_seconds_a_round']:.0f} ms "
          f"CPU time, peak {found['peak_mb']:.0f} MB, disk {found['disk_mb']:.0f} MB", flush=True)  # fmt: skip
    return {**{k: job[k] for k in ("algorithm", "clients", "per_round", "processes", "partition")}, **found}


def slope(rows: list[dict[str, Any]], over: str, of: str) -> float:
    """Fit the exponent b of `of` ~ `over`^b by least squares on logarithms."""
    return float(np.polyfit(np.log([r[over] for r in rows]), np.log([r[of] for r in rows]), 1)[0])


def measure_growth() -> dict[str, Any]:
    """Measure the growth of a round with all clients, in one process and in two, and with the clients of a round."""
    report: dict[str, Any] = {"clients": [], "growth": {}}
    for processes in PROCESSES:
        rows = [measured(clients=n, processes=processes) for n in CLIENTS]
        report["clients"] += rows
        report["growth"][f"with all clients, {processes} process{'es' if processes > 1 else ''}"] = {
            of: slope(rows, "clients", of) for of in ("seconds_a_round", "cpu_seconds_a_round", "peak_mb")
        }
    report["per_round"] = [measured(per_round=n) for n in PER_ROUND]
    report["growth"]["with the clients of a round"] = {
        of: slope(report["per_round"], "per_round", of) for of in ("seconds_a_round", "cpu_seconds_a_round", "peak_mb")
    }
    for name, exponents in report["growth"].items():
        print(f"growth {name}: " + ", ".join(f"{of} ^{b:.2f}" for of, b in exponents.items()))
    return report


def main() -> None:
    from benchmarks import million
    from benchmarks.cpu import about
    from benchmarks.jobs import data

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the 10,000-client runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "scale.json")
    given = parser.parse_args()
    if given.one:
        one(**json.loads(given.one))
        return
    report: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    if "clients" in given.stages:
        report |= {"about": about(data()[1]), **measure_growth()}
    if "ten_thousand" in given.stages:
        report["ten_thousand"] = [
            measured(algorithm=name, clients=10_000, per_round=100, rounds=given.rounds, processes=2, store="auto",
                     partition="sharding(2)") for name in ("scaffold", "fedsmoo")
        ]  # fmt: skip
    if "million" in given.stages:
        report["million"] = {"about": about(million.DATA), **million.measure()}
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
