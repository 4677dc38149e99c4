"""`make bench`: this library on a CPU beside hand-written loops and other programs, on the same job in one run.

Contenders take turns, a round each, so that whatever else the machine does falls on all of them; the best and the
median of the rounds are shown. Writes a JSON file to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import steppe
from benchmarks import flatness, framework, growth, jobs, precision, profile
from benchmarks.contenders import ENVIRONMENT, NEEDS, PROGRAMS, WORDS, cores, missing

RESULTS = Path(__file__).with_name("results")
TARGETS = {"fedavg": 0.75, "fedsam": 0.80}  # of the plain loop's time, for one process a core
ONLY_FEDAVG = {"batched", *NEEDS}  # to keep the whole run short
NOT_QUICK = {"batched", "bf16", *NEEDS}


class EndedEarlyError(Exception):
    """A contender gave up."""


class Child:
    """A contender in its own process. Its first round, start-up included, is the warm-up."""

    def __init__(self, name: str, algorithm: str, rounds: int) -> None:
        command = [sys.executable, "-m", "benchmarks.contenders", name, algorithm, str(rounds)]
        environment = {**os.environ, **ENVIRONMENT.get(name, {})}
        began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.name, self.rounds = name, [self._read()]
        self.first = time.perf_counter() - began

    def round(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.rounds.append(self._read())

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EndedEarlyError(f"{self.name} ended early (exit status {self.process.wait()})")
        return json.loads(line)

    def result(self) -> dict[str, Any]:
        """The last round evaluates, so it is kept out of the times."""
        self.process.wait()
        times = [r["seconds"] for r in self.rounds[1:-1]]
        return {"best": min(times), "median": statistics.median(times), "times": times,
                "cpu_seconds": min(r["cpu_seconds"] for r in self.rounds[1:-1]), "first_with_start": self.first,
                "round_with_evaluation": self.rounds[-1]["seconds"], "accuracy": self.rounds[-1]["accuracy"],
                "peak_mb": self.rounds[-1]["peak_mb"], "threads": self.rounds[-1]["threads"]}  # fmt: skip


def compete(algorithm: str, names: list[str], timed: int, left_out: dict[str, str]) -> dict[str, Any]:
    """Every contender does a warm-up, `timed` rounds, and one that evaluates; they take turns."""
    children = []
    for name in names:
        try:
            children.append(Child(name, algorithm, timed + 2))
        except EndedEarlyError as error:
            if name not in NEEDS:  # of ours, that is a mistake; of another framework, a fact
                raise
            left_out[name] = str(error)
            print(f"{WORDS[name]}: left out, {error}")
    for _ in range(timed + 1):
        for child in children:
            child.round()
    return {child.name: child.result() for child in children}


def table(algorithm: str, results: dict[str, Any], roof: dict[str, float]) -> None:
    work = roof["gradient_gflop"] * jobs.STEPS * (2 if algorithm == "fedsam" else 1)
    limit = roof["gflops"] * cores()
    plain = results["plain"]
    print(f"\n{algorithm}: seconds a round, of {work:.0f} GFLOP; the roof of {cores()} cores is {limit:.0f} GFLOP/s")
    heads = ("best", "median", "of plain", "(median)", "CPU s", "GFLOP/s", "of roof", "peak MB", "start+1st",
             "accuracy")  # fmt: skip
    print(" " * 28 + "".join(f"{h:>10}" for h in heads))
    for name, r in results.items():
        speed = work / r["best"]
        r |= {"ratio_best": r["best"] / plain["best"], "ratio_median": r["median"] / plain["median"],
              "gflops": speed, "of_roof": speed / limit}  # fmt: skip
        cells = (f"{r['best']:.2f}", f"{r['median']:.2f}", f"{r['ratio_best']:.2f}", f"{r['ratio_median']:.2f}",
                 f"{r['cpu_seconds']:.2f}", f"{speed:.0f}", f"{r['of_roof']:.0%}", f"{max(r['peak_mb'].values()):.0f}",
                 f"{r['first_with_start']:.1f}", f"{r['accuracy']:.3f}")  # fmt: skip
        print(f"{WORDS[name]:28}" + "".join(f"{c:>10}" for c in cells))
    mine, memory = results["workers"], max(results["workers"]["peak_mb"].values()) / max(plain["peak_mb"].values())
    print(f"one process a core takes {mine['ratio_best']:.2f} of the plain loop's time (target {TARGETS[algorithm]}, "
          f"aim 0.65) and {memory:.2f} of its memory (target 1.5)")  # fmt: skip


def about(note: str) -> dict[str, Any]:
    """Where and with what this was measured."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent)
        return done.stdout.strip()

    cpu = next(
        (x.split(":")[1].strip() for x in _read("/proc/cpuinfo") if x.startswith("model name")), platform.processor()
    )
    memory = next((int(x.split()[1]) // 2**20 for x in _read("/proc/meminfo") if x.startswith("MemTotal")), None)
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"), "cpu": cpu, "cores": cores(), "memory_gib": memory,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(), "torch": torch.__version__, "steppe": steppe.__version__,
        "commit": git("rev-parse", "HEAD") or None, "changed_since_commit": bool(git("status", "--porcelain")),
        "load_average_before": os.getloadavg() if hasattr(os, "getloadavg") else None, "data": note,
    }  # fmt: skip


def _read(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    options.add_argument("--quick", action="store_true", help="about two minutes: one timed round, FedAvg, fewer sizes")
    options.add_argument("--rounds", type=int, help="timed rounds of each contender (default: 5, FedSAM 3)")
    options.add_argument("--only", nargs="+", choices=PROGRAMS, help="these contenders beside the plain loop")
    options.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/cpu[-quick].json)")
    chosen = options.parse_args()

    facts = about(jobs.data()[1])
    print(f"{facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}; data: {facts['data']}")
    busy = (facts["load_average_before"] or [0.0])[0]
    if busy > 0.5:
        print(
            f"the machine is not idle (load {busy:.1f}): trust `best` more than `median`, and ratios more than seconds"
        )
    names, left_out = [], dict[str, str]()
    for name in PROGRAMS:
        if chosen.only and name not in ("plain", "workers", *chosen.only):
            continue
        if packages := missing(name):
            left_out[name] = f"not installed: {packages}"
            print(f"{WORDS[name]}: left out, {left_out[name]}")
        else:
            names.append(name)
    roof = json.loads(subprocess.run([sys.executable, "-m", "benchmarks.contenders", "roof", "-", "30"], text=True,
                                     stdout=subprocess.PIPE, check=True).stdout)  # fmt: skip
    roof["gflops"] = max(roof["convolution"], roof["matrix product"])
    report: dict[str, Any] = {"about": facts, "roof": roof, "left_out": left_out, "rounds": {}}
    out = chosen.out or RESULTS / ("cpu-quick.json" if chosen.quick else "cpu.json")

    def keep() -> None:  # after every stage, so that a run that is cut off has not measured for nothing
        facts["load_average_after"] = os.getloadavg() if hasattr(os, "getloadavg") else None
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")

    for algorithm in jobs.ALGORITHMS[: 1 if chosen.quick else 2]:
        some = [n for n in names if algorithm == "fedavg" or n not in ONLY_FEDAVG]
        some = [n for n in some if n not in NOT_QUICK] if chosen.quick else some
        timed = chosen.rounds or (1 if chosen.quick else {"fedavg": 5, "fedsam": 3}[algorithm])
        report["rounds"][algorithm] = compete(algorithm, some, timed, left_out)
        table(algorithm, report["rounds"][algorithm], roof)
        keep()
    report["profile"] = profile.measure(chosen.quick)
    keep()
    report["precision"] = precision.measure(chosen.quick)
    keep()
    report["framework_cpu_seconds"] = framework.measure(chosen.quick)
    keep()
    report["growth"] = growth.measure(chosen.quick)
    keep()
    report["flatness"] = flatness.measure("cpu", 100 if chosen.quick else 5000, probes=10)
    keep()
    print(f"\nwritten to {out}; as Markdown: python -m benchmarks.tables {out}")


if __name__ == "__main__":
    main()
