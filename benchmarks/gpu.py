"""`make bench-gpu`: seconds per round on one GPU in the steady state, including evaluation on the test set.

The job has CIFAR-10 shapes, 10 clients × 500 samples × 5 epochs, batch 50, with augmentation. Images are random unless
$STEPPE_DATA has the real ones; the time does not depend on them. On FedAvg, the hand-written loops, our executors and,
if they are installed, Flower's simulation and pfl-research take turns, one round each. Then follow the other jobs, one
by one, and the growth of the cost. Compilation is reported separately. The results are written as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import flatness, gpu_full, gpu_growth, gpu_switches, gpu_transformers, jobs
from benchmarks.contenders import NEEDS
from benchmarks.gpu_hand_loop import HandLoop
from benchmarks.gpu_jobs import JOBS
from benchmarks.turns import clocked, compete, timed, together
from steppe.config import resolve
from steppe.core.server import Server
from steppe.data import Data
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.engine.play_round import play_round
from steppe.engine.resources import make_store
from steppe.evaluate.global_model import evaluate
from steppe.models import build
from steppe.runs.provenance import find_versions

RACE = ("cnn fedavg tf32", "cnn fedavg bf16", "cnn fedlesam tf32", "cnn fedsol head tf32")  # in turns with the loops


class Ours:
    """A job of this library, which runs one round per call."""

    def __init__(self, name: str, data: Data) -> None:
        algorithm, model, options = JOBS[name]
        config = resolve(
            {"algorithm": algorithm, "model": model, "partition": "iid", "device": "cuda", "rounds": 1000, **options}
        )
        self.experiment = build_experiment(config, data=data)
        self.flags = torch.backends.cuda.matmul.allow_tf32
        self.executor, self.store = choose_executor(self.experiment), make_store(self.experiment, None)
        x0 = self.experiment.task.x0
        self.server = Server(x0, self.experiment.algorithm.server_state(x0), self.experiment.task.buffers)
        self.t = 0
        steps = self.experiment.federation.steps(0, self.experiment.algorithm.local_steps)
        self.flops = self.experiment.cost.flops * steps * config.per_round

    def meet_everyone(self) -> None:
        """Give every client its first round, which allocates its state and is slower than later rounds."""
        everyone, at_once = range(self.experiment.config.clients), self.experiment.config.per_round
        if self.experiment.cost.kept:
            for begun in range(0, len(everyone), at_once):
                self._play(list(everyone[begun : begun + at_once]))

    def round(self) -> float:
        """Run a round and return the accuracy after it."""
        self._play(self.experiment.sample(self.t))
        return float(evaluate(self.experiment, self.server, self.t)["accuracy"])

    def _play(self, ids: list[int]) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.flags
        e, t = self.experiment, self.t
        self.server = play_round(e, self.server, self.store, self.executor, t, ids, e.lr(t)).after
        self.t += 1


def alone(name: str, data: Data, count: int = 5) -> dict[str, Any]:
    """Time one job by itself."""
    began = time.perf_counter()
    job = Ours(name, data)
    row = together({name: clocked(job.round)}, count, {name: job.meet_everyone})[name]
    return {**row, "rounds": job.t, "flops": job.flops, "whole": time.perf_counter() - began,
            "notes": job.experiment.notes}  # fmt: skip


def roofs() -> dict[str, float]:
    """Measure the roofs of the GPU: a large matrix product in three precisions, and a copy."""

    def rate(dtype: torch.dtype, tf32: bool) -> float:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        timed(lambda: [a @ b for _ in range(3)])
        return 10 * 2 * 8192**3 / timed(lambda: [a @ b for _ in range(10)]) / 1e12

    found = {"fp32_TFLOPs": rate(torch.float32, False), "tf32_TFLOPs": rate(torch.float32, True),
             "bf16_TFLOPs": rate(torch.bfloat16, False)}  # fmt: skip
    a = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    timed(lambda: b.copy_(a))
    return {**found, "copy_TBs": 20 * 2**30 / timed(lambda: [b.copy_(a) for _ in range(10)]) / 1e12}


def show(rows: list[dict[str, Any]], found: dict[str, float]) -> None:
    """Print the results as a table."""
    plain = next((r["best"] for r in rows if r["job"].startswith("hand-written loop, plain")), float("nan"))
    print(f"\n{'job':44}{'best s':>9}{'median':>9}{'of plain':>9}{'TFLOP/s':>9}{'of roof':>9}{'first s':>9}{'GiB':>7}"
          f"{'accuracy':>10}{'after':>7}")  # fmt: skip
    for r in rows:
        if "times" not in r:
            reason = next((f"{why}: {r[why]}" for why in ("failed", "skipped") if why in r), None)
            print(f"{r['job']:44}" + (reason or f"{r['seconds']:.1f} s, mean of last ten {r['mean_of_last_ten']:.4f}; "
                  f"compile caches {r['caches']}"))  # fmt: skip
            continue
        rate = r.get("flops", 0) / r["best"] / 1e12
        roof = next((found[f"{p}_TFLOPs"] for p in ("tf32", "bf16", "fp32") if p in r["job"]), None)
        share = f"{rate / roof:.0%}" if rate and roof else ""
        print(f"{r['job']:44}{r['best']:9.4f}{r['median']:9.4f}{r['best'] / plain:9.3f}"
              f"{rate or '':9.4}{share:>9}{r['first_round']:9.1f}{r['peak_GiB'] or float('nan'):7.1f}"
              f"{r['accuracy']:10.4f}{r['rounds']:7}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS), metavar="JOB",
                        help=f"the jobs to run (default: all): {', '.join(map(repr, JOBS))}")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"), help="the JSON file")
    parser.add_argument(
        "--full", nargs="*", default=["fedavg"], help="algorithms to train for 300 rounds, name[:key=value]"
    )
    parser.add_argument("--contenders", nargs="*", choices=NEEDS, default=list(NEEDS),
                        help="other frameworks in the race, if installed; empty: none")  # fmt: skip
    parser.add_argument("--limit", type=float, default=120,
                        help="time limit in seconds for a round of another framework (default: 120)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=1800, help="start no further job after this many seconds")
    parser.add_argument("--flatness", action=argparse.BooleanOptionalAction, default=True,
                        help="also time the eigenvalues and the trace of the Hessian")  # fmt: skip
    parser.add_argument("--growth", type=float, default=120,
                        help="time limit in seconds for the growth of the cost; 0: leave it out")  # fmt: skip
    parser.add_argument("--transformers", type=float, default=240,
                        help="start no further transformer after this many seconds; 0: leave them out")  # fmt: skip
    parser.add_argument("--switches", type=float, default=350,
                        help="time limit in seconds for the switches of fast paths; 0: leave them out")  # fmt: skip
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench-gpu needs a CUDA device, but PyTorch finds none.")
    began, when = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    data, what = jobs.cifar()
    found = roofs()
    rows: list[dict[str, Any]] = []
    curvature: dict[str, Any] = {}
    growth: dict[str, Any] = {}
    attentive: dict[str, Any] = {}

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        write()

    def write() -> None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        report = {"versions": find_versions(torch.device("cuda")), "when": when, "data": what, "roofs": found,
                  "rows": rows, "flatness": curvature, "growth": growth, "transformers": attentive}  # fmt: skip
        given.out.write_text(json.dumps(report, indent=1) + "\n")

    for name in given.full:
        keep(gpu_full.apart(name, given.seconds))
    if given.flatness:
        curvature |= flatness.measure("cuda")
        print(json.dumps(curvature), flush=True)
    turns = [name for name in RACE if name in given.jobs]
    ours = {name: Ours(name, data) for name in turns}
    hands = {f"hand-written loop, {'tuned' if tuned else 'plain'}": HandLoop(build("cnn", 10, (3, 32, 32)), data, tuned)
             for tuned in (False, True) if turns}  # fmt: skip
    raced = compete({name: clocked(contender.round) for name, contender in {**hands, **ours}.items()}, given.contenders,
                    {name: contender.meet_everyone for name, contender in ours.items()}, given.limit)  # fmt: skip
    for row in raced:
        mine = ours.get(row["job"])  # its own count of rounds includes those of `meet_everyone`
        keep({**row, "flops": (mine or ours[turns[0]]).flops, **({"rounds": mine.t} if mine else {})})
    for name in given.jobs:
        if name in turns:
            continue
        if time.perf_counter() - began > given.seconds:
            keep({"job": name, "skipped": "no time left"})
            continue
        try:
            keep(alone(name, data))
        except Exception as error:
            keep({"job": name, "failed": f"{type(error).__name__}: {str(error)[:400]}"})
    print(json.dumps(found))
    show(rows, found)
    if given.transformers:
        attentive |= gpu_transformers.measure_all(list(gpu_transformers.JOBS), "cuda", given.transformers)
        write()
    if given.growth:
        growth |= gpu_growth.measure("cuda", given.growth)
        write()
    if given.switches:  # a file of its own, since it decides about code
        apart = given.out.with_name("gpu-switches.json")
        gpu_switches.measure(list(gpu_switches.JOBS), "cuda", given.switches, keep=partial(gpu_switches.save, apart))


if __name__ == "__main__":
    main()
