"""The programs that are compared. Each runs in its own process and trains one round per request.

`benchmarks.cpu` runs them as `python -m benchmarks.contenders NAME ALGORITHM ROUNDS`; `benchmarks.gpu` runs the other
frameworks, with `gpu` as the algorithm. The clock is the same for all: it starts when the request arrives and stops
when the round is finished.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import steppe
from benchmarks import jobs, others
from benchmarks.hand_loop import CNN, HandLoop
from steppe.executors.allocator import MEMORY

Answer = Callable[[float | None], None]  # called after every round, with the accuracy after the last one

ENVIRONMENT = {"tuned": MEMORY}  # the library sets the same for its own worker processes
NEEDS = {"flower": ("flwr", "ray"), "pfl": ("pfl",)}  # packages that `make setup` does not install


def hand(algorithm: str, rounds: int, answer: Answer, tuned: bool = False) -> None:
    """Run the hand-written loop."""
    loop = HandLoop(algorithm, jobs.data()[0], tuned)
    for number in range(rounds):
        loop.round(number)
        answer(loop.evaluate() if number + 1 == rounds else None)


def ours(algorithm: str, rounds: int, answer: Answer, **options: object) -> None:
    """Run this library."""
    torch.manual_seed(0)
    settings = {"rho": jobs.RHO} if algorithm == "fedsam" else {}
    steppe.run(algorithm, CNN(), jobs.data()[0], clients=jobs.CLIENTS, per_round=jobs.PER_ROUND, partition="iid",
               batch=jobs.BATCH, epochs=jobs.EPOCHS, lr=jobs.LR, lr_schedule="constant", momentum=jobs.MOMENTUM,
               weight_decay=0, rounds=rounds, evaluate_every=rounds, device="cpu",
               watch=lambda record: answer(record.get("accuracy")), **settings, **options)  # fmt: skip


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


PROGRAMS: dict[str, Callable[[str, int, Answer], None]] = {
    "plain": hand,
    "tuned": lambda a, r, answer: hand(a, r, answer, tuned=True),
    "workers": lambda a, r, answer: ours(a, r, answer, executor="sequential", workers=cores()),
    "bf16": lambda a, r, answer: ours(a, r, answer, executor="sequential", workers=cores(), precision="bf16"),
    "in-process": lambda a, r, answer: ours(a, r, answer, executor="sequential", workers=0),
    "batched": lambda a, r, answer: ours(a, r, answer, executor="batched"),
    "flower": lambda a, r, answer: others.flower(*others.JOBS[a], r, answer, cores()),
    "pfl": lambda a, r, answer: others.pfl(*others.JOBS[a], r, answer),
}
WORDS = {
    "plain": "plain hand-written loop", "tuned": "tuned hand-written loop",
    "workers": "steppe, one process per core", "bf16": "steppe, the same in bf16",
    "in-process": "steppe, workers=0", "batched": "steppe, batched",
    "flower": "Flower simulation", "pfl": "pfl-research",
}  # fmt: skip


def missing(name: str) -> str:
    """Return the packages that this contender needs and that are not installed."""
    return ", ".join(package for package in NEEDS.get(name, ()) if find_spec(package) is None)


def peak_memory() -> dict[str, float]:
    """Return the peak memory in MB of this process, and of the largest of its children.

    Linux reports it per process. Elsewhere there is ru_maxrss, which counts children only after they have ended.
    """
    if Path("/proc/self/status").exists():
        mine, *children = [_high_water(pid) for pid in ("self", *descendants("self"))]
    else:
        unit = 2**20 if sys.platform == "darwin" else 2**10
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        children = [resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / unit]
    return {"main": round(mine, 1), "child": round(max(children, default=0.0), 1)}


def cpu_seconds() -> float:
    """Return the CPU time so far of this process and its children; without /proc, of this process only."""
    stats = [_read(pid, "stat").rpartition(")")[2].split() for pid in ("self", *descendants("self"))]
    ticks = sum(int(s[11]) + int(s[12]) for s in stats if s)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else time.process_time()


def descendants(pid: str) -> list[str]:
    """Return the running descendants of a process."""
    try:
        mine = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in _read(pid, f"task/{task.name}/children").split()
        ]
    except OSError:
        return []
    return mine + [below for child in mine for below in descendants(child)]


def _high_water(pid: str) -> float:
    line = next(
        (x for x in _read(pid, "status").splitlines() if x.startswith("VmHWM")), "- 0"
    )  # missing if the process has ended
    return int(line.split()[1]) / 1024


def _read(pid: str, name: str) -> str:
    try:
        return (Path("/proc") / pid / name).read_text()
    except OSError:  # the process has ended in the meantime
        return ""


def roof(_: str, repeats: int) -> dict[str, float]:
    """Measure the GFLOP/s of one thread in a large convolution and in a large matrix product."""
    torch.set_num_threads(1)
    images, kernels = (torch.randn(s).to(memory_format=torch.channels_last) for s in ((32, 64, 28, 28), (64, 64, 5, 5)))
    matrix = torch.randn(1024, 1024)
    work = {
        "convolution": (lambda: F.conv2d(images, kernels, padding=2), 2 * 32 * 28 * 28 * 64 * 64 * 25),
        "matrix product": (lambda: matrix @ matrix, 2 * 1024**3),
    }
    reached = {}
    for name, (do, flops) in work.items():
        times = []
        for _ in range(repeats + 2):
            began = time.perf_counter()
            do()
            times.append(time.perf_counter() - began)
        reached[name] = flops / min(times) / 1e9
    model, counter = CNN(), FlopCounterMode(display=False)
    with counter:
        model(torch.zeros(jobs.BATCH, 1, 28, 28)).sum().backward()
    return {**reached, "gradient_gflop": counter.get_total_flops() / 1e9}


def private_stdout() -> TextIO:
    """Return a stream for the answers; other output goes to stderr from now on, so that it does not mix with them."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def main(name: str, algorithm: str, rounds: int) -> None:
    """Run one contender; wait for a line on standard input before each further round."""
    answers = private_stdout()
    began, spent, done = time.perf_counter(), cpu_seconds(), 0

    def say(content: dict[str, object]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    def answer(accuracy: float | None = None) -> None:
        nonlocal began, spent, done
        seconds, done = time.perf_counter() - began, done + 1
        say({"seconds": seconds, "cpu_seconds": cpu_seconds() - spent, "accuracy": accuracy, "peak_mb": peak_memory(),
             "threads": torch.get_num_threads()})  # fmt: skip
        if done < rounds:
            sys.stdin.readline()
        began, spent = time.perf_counter(), cpu_seconds()

    if name == "roof":
        return say(roof(algorithm, rounds))
    PROGRAMS[name](algorithm, rounds, answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
