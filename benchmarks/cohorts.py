"""What a round costs compared with its sample passes, whatever the number and sizes of its clients.

The unit is the time per sample pass of rounds of ten equal clients (`fixed`), which fill all lanes. Other cohorts: each
client with probability 0.1 (`bernoulli`), and ten clients of unequal sizes (`lda`). All are measured in one process,
without evaluation. The target is a ratio of 1.15.

    python -m benchmarks.cohorts --out benchmarks/results/gpu-cohorts.json
    python -m benchmarks.cohorts --work 'resnet18-gn fedavg' --turn client_norm      with a switch the other way
    python -m benchmarks.cohorts --device cpu --tiny          a quick check, on any machine
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import jobs
from steppe.config import resolve
from steppe.core.server import Server
from steppe.data import Data
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.engine.play_round import play_round
from steppe.engine.resources import make_store
from steppe.executors.switches import SWITCHES, switched
from steppe.runs.provenance import find_versions

TARGET = 1.15
WORK = {"cnn fedavg": ("fedavg", "cnn"), "cnn fedsmoo": ("fedsmoo", "cnn"),
        "resnet18-gn fedavg": ("fedavg", "resnet18-gn"), "resnet18-gn fedsmoo": ("fedsmoo", "resnet18-gn")}  # fmt: skip
COHORTS: dict[str, dict[str, Any]] = {
    "fixed": {"partition": "iid"},
    "bernoulli": {"partition": "iid", "sampling": "bernoulli"},
    "lda": {"partition": "lda(0.1)"},
}


class Cohort:
    """A job under one kind of cohort, which plays one round per call."""

    def __init__(self, work: str, cohort: str, data: Data, device: str, tiny: bool) -> None:
        algorithm, model = WORK[work]
        options = {"recipe": "fedsmoo", "clients": 100, "per_round": 10, "sampling": "fixed", "device": device,
                   "augmentation": "cifar-fedsmoo", "rounds": 1000, "executor": "batched",
                   **COHORTS[cohort]}  # fmt: skip
        if tiny:
            model, options = "mlp", {**options, "max_steps": 2}
        config = resolve({"algorithm": algorithm, "model": model, **options})
        self.experiment = build_experiment(config, data=data)
        self.executor, self.store = choose_executor(self.experiment), make_store(self.experiment, None)
        x0 = self.experiment.task.x0
        self.server = Server(x0, self.experiment.algorithm.server_state(x0), self.experiment.task.buffers)
        self.t = 0
        self.flags = torch.backends.cuda.matmul.allow_tf32

    def round(self) -> tuple[float, int]:
        """Play a round; return its seconds and its sample passes."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.flags
        e, t = self.experiment, self.t
        ids = e.sample(t)
        wait(e.task.x0)
        began = time.perf_counter()
        self.server = play_round(e, self.server, self.store, self.executor, t, ids, e.lr(t)).after
        wait(e.task.x0)
        self.t += 1
        passes = sum(e.steps(i) * min(e.config.batch, e.federation.sizes[i]) for i in ids)
        return time.perf_counter() - began, passes


def wait(on: torch.Tensor) -> None:
    """Wait for the device."""
    if on.is_cuda:
        torch.cuda.synchronize()


def measure(work: str, data: Data, device: str, rounds: int, tiny: bool) -> dict[str, Any]:
    """Return, for each cohort, the seconds per sample pass and their ratio to those of the fixed cohort."""
    cohorts = {name: Cohort(work, name, data, device, tiny) for name in COHORTS}
    first = {name: cohort.round()[0] for name, cohort in cohorts.items()}  # compiles
    for cohort in cohorts.values():  # allocates the states of clients that are met for the first time
        cohort.round()
    spent = {name: [cohort.round() for _ in range(rounds)] for name, cohort in cohorts.items()}
    cost = {name: sum(s for s, _ in rows) / sum(p for _, p in rows) for name, rows in spent.items()}
    return {name: {"us_per_pass": 1e6 * cost[name], "ratio": cost[name] / cost["fixed"], "rounds": rounds,
                   "seconds_per_round": sum(s for s, _ in spent[name]) / rounds, "first_round": first[name],
                   "lanes": getattr(cohorts[name].executor, "width", None), "notes": cohorts[name].experiment.notes}
            for name in cohorts}  # fmt: skip


def markdown(report: dict[str, Any]) -> str:
    """Return the table of docs/performance.md."""
    about = report["versions"]
    lines = [f"{about['hardware']}, torch {about['torch']}; commit {(about['commit'] or 'unknown')[:10]}. "
             f"Data: {report['data']}.{_name_switches(report.get('switches', {}))}", "",
             "| job | cohort | lanes | seconds per round | µs per sample pass | ratio |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for work, cohorts in report["rows"].items():
        for cohort, r in cohorts.items():
            missed = "" if r["ratio"] <= TARGET else f" (target {TARGET}: missed)"
            lines.append(f"| {work} | {cohort} | {r['lanes']} | {r['seconds_per_round']:.3f} | "
                         f"{r['us_per_pass']:.2f} | {r['ratio']:.2f}{missed} |")  # fmt: skip
    return "\n".join(lines)


def _name_switches(changes: dict[str, bool]) -> str:
    """Say which switches differ from the defaults."""
    each = ", ".join(f"{switch} {'on' if on else 'off'}" for switch, on in changes.items())
    return f" Switches: {each}." if each else ""


def main() -> None:
    """Measure all jobs, write the JSON file and print a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.cohorts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--work", nargs="*", choices=WORK, default=list(WORK), help="default: all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turn", nargs="*", choices=vars(SWITCHES), default=[],
                        help="switches of steppe/executors/switches.py to turn")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="a small model and two steps per client")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data, what = jobs.cifar()
    changes = {switch: not getattr(SWITCHES, switch) for switch in given.turn}
    report: dict[str, Any] = {"versions": find_versions(torch.device(given.device)), "data": what,
                              "switches": changes, "rows": {}}  # fmt: skip
    for work in given.work:
        with switched(**changes):
            report["rows"][work] = measure(work, data, given.device, given.rounds, given.tiny)
        for cohort, row in report["rows"][work].items():
            print(f"{work:22}{cohort:12}{row['us_per_pass']:9.2f} µs per pass  ratio {row['ratio']:.3f}  "
                  f"lanes {row['lanes']}  round {row['seconds_per_round']:.4f} s  first {row['first_round']:.1f} s",
                  flush=True)  # fmt: skip
        if given.out:
            given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
