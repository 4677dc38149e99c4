"""`make bench`: this library on a CPU compared with hand-written loops and other frameworks, on the same job.

Contenders take turns, one round each, so that other load on the machine affects all of them. The best and the median
round are shown. The plain loop and this library are started five times, because the speed of a program differs between
starts. Further stages measure the kernels of a step, the effect of bf16 on accuracy, the cost of a round without
training, the growth of the cost, and the Hessian compared with scipy's solver. The results are written as JSON to
benchmarks/results/.

On two idle cores it takes 17 to 30 minutes; `--quick` takes about two minutes. Flower's simulation and pfl-research
take part if they are installed; benchmarks/others.py says how.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import steppe
from benchmarks import flatness, framework, growth, jobs, precision, profile, race
from benchmarks.contenders import NEEDS, PROGRAMS, WORDS, cores, missing
from benchmarks.progress import spoken

RESULTS = Path(__file__).with_name("results")
# The stages, and about how many seconds they take on two idle cores, in full and with --quick.
STAGES = {
    "fedavg": (480, 30), "fedsam": (500, 60), "profile": (40, 15), "precision": (120, 25), "framework": (150, 30),
    "growth": (45, 15), "flatness": (400, 15),
}  # fmt: skip
STARTS = 5  # of the plain loop and of this library
QUICK = [stage for stage in STAGES if stage != "fedsam"]
ONLY_FEDAVG = {"batched", *NEEDS}  # left out of FedSAM to keep the run short
NOT_QUICK = {"batched", "bf16", *NEEDS}


def about(note: str) -> dict[str, Any]:
    """Return the machine and the software of this measurement."""

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


def present(only: list[str] | None, left_out: dict[str, str]) -> list[str]:
    """Return the contenders that can take part; print a line for each that cannot."""
    names = []
    for name in PROGRAMS:
        if only and name not in ("plain", "workers", *only):
            continue
        if packages := missing(name):
            left_out[name] = f"not installed: {packages}"
            print(f"{WORDS[name]}: left out, {left_out[name]}")
        else:
            names.append(name)
    return names


def measured_roof() -> dict[str, float]:
    """Measure the roof of one core in a separate process."""
    command = [sys.executable, "-m", "benchmarks.contenders", "roof", "-", "30"]
    roof: dict[str, float] = json.loads(subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout)
    return {**roof, "gflops": max(roof["convolution"], roof["matrix product"])}


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    options.add_argument("--quick", action="store_true", help="about two minutes: one timed round, FedAvg, fewer sizes")
    options.add_argument("--rounds", type=int, help="timed rounds of each contender (default: 5, FedSAM 3)")
    options.add_argument("--only", nargs="+", choices=PROGRAMS,
                         help="contenders in addition to the plain loop and steppe with workers")  # fmt: skip
    options.add_argument("--stages", nargs="+", choices=STAGES, help="the stages to run (default: all)")
    options.add_argument("--limit", type=float, default=120,
                         help="time limit in seconds for a contender's round (default: 120)")  # fmt: skip
    options.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/cpu[-quick].json)")
    chosen = options.parse_args()
    quick, stages = chosen.quick, chosen.stages or (QUICK if chosen.quick else list(STAGES))

    facts = about(jobs.data()[1])
    print(f"{facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}; data: {facts['data']}")
    busy = (facts["load_average_before"] or [0.0])[0]
    if busy > 0.5:
        print(
            f"the machine is not idle (load {busy:.1f}): trust `best` more than `median`, and ratios more than seconds"
        )
    left_out, failed = dict[str, str](), list[str]()
    names = present(chosen.only, left_out)
    report: dict[str, Any] = {"about": facts, "roof": (roof := measured_roof()), "left_out": left_out, "rounds": {}}
    out = chosen.out or RESULTS / ("cpu-quick.json" if quick else "cpu.json")

    def compete(algorithm: str) -> None:
        some = [n for n in names if algorithm == "fedavg" or n not in ONLY_FEDAVG]
        some = some if chosen.only or not quick else [n for n in some if n not in NOT_QUICK]
        timed = chosen.rounds or (1 if quick else {"fedavg": 5, "fedsam": 3}[algorithm])
        results = race.compete(algorithm, some, timed, chosen.limit, left_out)
        failed.extend(f"{WORDS[n]} ({left_out[n]})" for n in some if n not in results and n not in NEEDS)
        if not quick:
            race.start_again(algorithm, results, STARTS - 1, 3, chosen.limit)
        if race.YARDSTICK in results:
            race.table(algorithm, results, roof)
            report["rounds"][algorithm] = results

    def into(key: str, measure: Callable[[], Any]) -> Callable[[], None]:
        return lambda: report.update({key: measure()})

    work: dict[str, Callable[[], None]] = {
        "fedavg": lambda: compete("fedavg"), "fedsam": lambda: compete("fedsam"),
        "profile": into("profile", lambda: profile.measure(quick)),
        "precision": into("precision", lambda: precision.measure(quick)),
        "framework": into("framework_cpu_seconds", lambda: framework.measure(quick)),
        "growth": into("growth", lambda: growth.measure(quick)),
        "flatness": into("flatness", lambda: flatness.apart(100 if quick else flatness.IMAGES, flatness.FEW_PROBES)),
    }  # fmt: skip
    began, expected = time.perf_counter(), {stage: STAGES[stage][quick] for stage in stages}
    seconds = report["stage_seconds"] = dict[str, float]()
    for number, stage in enumerate(stages):
        # The time of the stages so far, relative to the expected time, shows how fast this machine is.
        pace = sum(seconds.values()) / sum(expected[s] for s in seconds) if seconds else 1.0
        left = pace * sum(expected[s] for s in stages[number:])
        print(f"\n[{number + 1} of {len(stages)}] {stage}: about {spoken(pace * expected[stage])}, "
              f"{spoken(left)} left", flush=True)  # fmt: skip
        start = time.perf_counter()
        try:
            work[stage]()
        except subprocess.CalledProcessError as error:
            failed.append(f"{stage} (exit status {error.returncode})")
            print(f"{stage} failed with exit status {error.returncode}; continuing with the next stage")
        seconds[stage] = round(time.perf_counter() - start, 1)
        # Written after every stage, so that an interrupted run keeps its results.
        facts["load_average_after"] = os.getloadavg() if hasattr(os, "getloadavg") else None
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{spoken(time.perf_counter() - began)}; written to {out}; as Markdown: python -m benchmarks.tables {out}")
    if failed:  # a failure of another framework is a result; a failure of this library is an error
        raise SystemExit("these should not have failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
