"""Profile of one local step: the time of every kernel with one thread, and the CPU time of the whole step.

Every kernel's time is its mean over a client's round, the smallest of several rounds, so that other programs have
little effect.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import jobs
from steppe.executors.allocator import MEMORY

STEPS = jobs.SAMPLES * jobs.EPOCHS // jobs.BATCH  # of one client


def client_round() -> Callable[[int], Any]:
    """Return a function that trains one client by FedAvg, as the workers do."""
    import torch

    from benchmarks.hand_loop import CNN
    from steppe.config import resolve
    from steppe.core.server import Server, broadcast
    from steppe.engine.build import build_experiment
    from steppe.executors.sequential import train

    torch.manual_seed(0)
    chosen = resolve({"algorithm": "fedavg", "clients": jobs.CLIENTS, "per_round": jobs.PER_ROUND, "partition": "iid",
                      "batch": jobs.BATCH, "epochs": jobs.EPOCHS, "lr": jobs.LR, "lr_schedule": "constant",
                      "momentum": jobs.MOMENTUM, "weight_decay": 0, "device": "cpu"})  # fmt: skip
    e = build_experiment(chosen, None, CNN(), jobs.data()[0])
    x = e.task.x0
    server = Server(x, e.algorithm.server_state(x), e.task.buffers)
    sent = broadcast(e.algorithm, e.task.layout, server, x.new_tensor(jobs.LR), x.new_tensor(0.0))[1]
    return lambda client: train(e.algorithm, e.task, e.federation, sent, client, e.algorithm.client_state(x))


def run(repeats: int) -> dict[str, Any]:
    """Profile the hand-written loops and this library in this process."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.hand_loop import HandLoop

    torch.set_num_threads(1)
    data = jobs.data()[0]
    loops = {name: HandLoop("fedavg", data, name == "tuned") for name in ("plain", "tuned")}
    ours = client_round()
    work: dict[str, Callable[[int], Any]] = {
        "plain": lambda i: loops["plain"].train(loops["plain"].clients[i]),
        "tuned": lambda i: loops["tuned"].train(loops["tuned"].clients[i]),
        "steppe": ours,
    }
    steps: dict[str, list[float]] = {name: [] for name in work}
    for i in range(repeats + 1):  # they take turns; the first is a warm-up
        for name, do in work.items():
            began = time.process_time()
            do(i)
            steps[name].append(1e3 * (time.process_time() - began) / STEPS)
    kernels: dict[str, list[float]] = {}
    for i in range(repeats):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            ours(i)
        for e in seen.key_averages(group_by_input_shape=True):
            shapes = " ".join("×".join(map(str, s)) for s in e.input_shapes if s)
            kernels.setdefault(f"{e.key} {shapes}", []).append(e.self_cpu_time_total / 1e3 / STEPS)
    best = {name: min(times) for name, times in kernels.items()}
    return {"step": {name: min(times[1:]) for name, times in steps.items()},
            "kernels": dict(sorted(best.items(), key=lambda item: -item[1]))}  # fmt: skip


def measure(quick: bool = False) -> dict[str, Any]:
    """Measure the CPU-milliseconds of a step of each program, and of our kernels, in a separate process."""
    command = [sys.executable, "-m", "benchmarks.profile", "2" if quick else "8"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, **MEMORY, "OMP_NUM_THREADS": "1"})  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print("\none local step of FedAvg, one thread, CPU-milliseconds: "
          + ", ".join(f"{name} {ms:.1f}" for name, ms in found["step"].items()))  # fmt: skip
    for name, ms in list(found["kernels"].items())[:12]:
        print(f"{ms:8.2f}  {name}")
    print(f"{sum(found['kernels'].values()):8.2f}  all kernels")
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(int(sys.argv[1]))))
    else:
        measure()
