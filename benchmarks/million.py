"""A million clients, of which a thousand take part in a round: `python -m benchmarks.scale --stages million`.

Every client has 20 different samples of two classes, drawn from the training digits when it is called (rule `drawn`),
so clients share samples: the federation is large, the data set is not. One local step, a perceptron with two hidden
layers of 200, one thread, client states on disk, a checkpoint every second round.

Start and memory are measured in processes of their own: `start` is the time from its start until the line on memory,
just before the first round, and `start_cpu` its CPU time; `grown` is by how much its resident memory has grown at most
since then, to be compared with what that line predicted. The time per round is CPU time of the run's thread, because
other programs may be running. Federations of all sizes take turns, a round each, in one process, so that what other
programs do to caches falls on all of them.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, PER_ROUND, ALGORITHMS = (1_000, 10_000, 100_000, 1_000_000), 1_000, ("fedavg", "scaffold")
DATA = "the digits of the package, shared by clients: partition drawn(20, 2)"
EXPONENT, START = 0.05, 30.0  # the targets


def play(algorithm: str, clients: int, rounds: int, watch: Callable[[Any], None]) -> Any:
    """Run so many rounds with so many clients."""
    import steppe

    with tempfile.TemporaryDirectory(prefix="steppe-million-") as folder:
        return steppe.run(algorithm, "mlp", "digits", out=Path(folder) / "run", clients=clients, per_round=PER_ROUND,
                          rounds=rounds, partition="drawn(20,2)", epochs=1, batch=20, lr=0.05, store="disk",
                          device="cpu", evaluate_every=rounds, checkpoint_every=2, workers=0, watch=watch)  # fmt: skip


class Begun(BaseException):
    """The first round is about to begin."""


def at_the_first_round(act: Callable[[], None]) -> None:
    """Call this when a run prints what memory it needs, just before its first round."""

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("memory:"):
                act()

    logging.getLogger("steppe").addHandler(Notice())
    logging.getLogger("steppe").setLevel(logging.INFO)


def time_start(algorithm: str, clients: int) -> dict[str, float]:
    """Return the seconds, and the CPU seconds, from the start of this process to the first round."""
    began = time.perf_counter()

    def stop() -> None:
        raise Begun

    at_the_first_round(stop)
    with suppress(Begun):
        play(algorithm, clients, 1, lambda _: None)
    return {"start": time.perf_counter() - began, "start_cpu": time.process_time()}


def measure_memory(algorithm: str, clients: int) -> dict[str, Any]:
    """Return what a run of three rounds said that it needs, and by how much this process has grown."""
    import torch

    from steppe.engine.resources import estimate_needs

    torch.set_num_threads(1)
    before: list[int] = []
    at_the_first_round(lambda: before.append(resident()))
    result = play(algorithm, clients, 3, lambda _: None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"predicted_mib": estimate_needs(result.experiment, disk=True).memory / 2**20,
            "grown_mib": (peak - before[0]) / 2**20, "peak_mib": peak / 2**20,
            "parameters": result.experiment.task.layout.size}  # fmt: skip


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def take_turns(algorithm: str, rounds: int) -> dict[int, list[float]]:
    """Return the CPU seconds of each round by the number of clients; without the first one, which warms up."""
    import torch

    torch.set_num_threads(1)
    turns = [threading.Semaphore(k == 0) for k in range(len(CLIENTS))]
    seconds: dict[int, list[float]] = {clients: [] for clients in CLIENTS}

    def run(k: int) -> None:
        now = 0.0

        def hand_over() -> None:
            turns[(k + 1) % len(turns)].release()

        def watch(_: Any) -> None:
            nonlocal now
            seconds[CLIENTS[k]].append(time.thread_time() - now)
            hand_over()
            turns[k].acquire()
            now = time.thread_time()

        turns[k].acquire()
        play(algorithm, CLIENTS[k], rounds, watch)
        hand_over()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(CLIENTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {clients: own[1:] for clients, own in seconds.items()}


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


def measure() -> dict[str, Any]:
    """Measure everything in processes of their own, and fit the exponents of time per round over all clients."""
    rows, growth = [], {}
    for algorithm in ALGORITHMS:
        seconds = apart("turns", algorithm, "6")
        for clients in CLIENTS:
            own = seconds[str(clients)]
            row = {"algorithm": algorithm, "clients": clients, **apart("start", algorithm, str(clients)),
                   **apart("memory", algorithm, str(clients)),
                   "cpu_seconds_per_round": float(np.median(own)), "cpu_seconds": own}  # fmt: skip
            print(f"{algorithm}, {clients:,} clients: start {row['start']:.1f} s, {row['cpu_seconds_per_round']:.2f} s "
                  f"of CPU time per round, memory grown by {row['grown_mib']:.0f} MiB of {row['predicted_mib']:.0f} "
                  "predicted", flush=True)  # fmt: skip
            rows.append(row)
        mine = [r for r in rows if r["algorithm"] == algorithm]
        growth[algorithm] = float(np.polyfit(np.log([r["clients"] for r in mine]),
                                             np.log([r["cpu_seconds_per_round"] for r in mine]), 1)[0])  # fmt: skip
        print(f"{algorithm}: time per round grows with clients^{growth[algorithm]:.3f}", flush=True)
    return {"per_round": PER_ROUND, "rows": rows, "growth": growth, "draws": apart("draws")}


def apart(*words: str) -> Any:
    """Run one measurement in a process of its own."""
    command, environment = [sys.executable, "-m", "benchmarks.million", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    measures: dict[str, Callable[..., Any]] = {"start": time_start, "memory": measure_memory, "turns": take_turns,
                                               "draws": time_draws}  # fmt: skip
    print(json.dumps(measures[what](*words[:1], *map(int, words[1:]))))
