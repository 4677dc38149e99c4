"""The cost of a round without training: CPU-seconds with zero local epochs, over all processes.

It is the difference between a run of many rounds and a run of few, divided by the difference in rounds: start-up and
the last evaluation cancel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks import jobs

FEW, TARGET = 5, 0.03
PROGRAMS = {
    "hand": "plain hand-written loop",
    "workers": "steppe, one process per core",
    "in-process": "steppe, workers=0",
}


def run(name: str, rounds: int) -> None:
    """Run `rounds` rounds of ten clients that download the model and upload it unchanged."""
    import steppe
    from benchmarks.contenders import cores
    from benchmarks.hand_loop import CNN, HandLoop

    data = jobs.data()[0]
    if name == "hand":
        loop = HandLoop("fedavg", data, tuned=False, epochs=0)
        for number in range(rounds):
            loop.round(number)
        loop.evaluate()
        return
    steppe.run("fedavg", CNN(), data, clients=jobs.CLIENTS, per_round=jobs.PER_ROUND, partition="iid", epochs=0,
               batch=jobs.BATCH, momentum=jobs.MOMENTUM, weight_decay=0, rounds=rounds, evaluate_every=rounds,
               executor="sequential", workers=cores() if name == "workers" else 0, device="cpu")  # fmt: skip


def spent(name: str, rounds: int) -> float:
    """Return the CPU-seconds of such a run; with one thread, because spinning threads would count as work."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "benchmarks.framework", name, str(rounds)], check=True,
                   env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure(quick: bool = False) -> dict[str, float]:
    """Measure the CPU-seconds per round of each program."""
    print("\nframework only: CPU-seconds per round with zero local epochs")
    many, repeats = (105, 1) if quick else (305, 2)  # starts differ by half a second or so
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(repeats):
        for name, found in times.items():
            found.append((spent(name, many) - spent(name, FEW)) / (many - FEW))
    best = {name: min(found) for name, found in times.items()}
    for name, seconds in best.items():
        print(f"{PROGRAMS[name]:28}{seconds:10.4f}" + ("" if name == "hand" else f"   (target {TARGET})"))
    return best


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], int(sys.argv[2]))
    else:
        print(json.dumps(measure()))
