"""What bf16 does to accuracy: FedAvg on the benchmark's job in fp32 and in bf16, and in fp32 from another seed.

The second difference says how large the first may be before it means anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import jobs

RUNS = {"fp32": ("fp32", 0), "bf16": ("bf16", 0), "fp32, another seed": ("fp32", 1)}


def run(precision: str, seed: int, rounds: int) -> dict[str, list[float]]:
    """Test accuracy and loss after every round, and the rounds' seconds without evaluation."""
    import torch

    import steppe
    from benchmarks.contenders import cores
    from benchmarks.hand_loop import CNN

    torch.manual_seed(seed)
    told = steppe.run("fedavg", CNN(), jobs.data()[0], clients=jobs.CLIENTS, per_round=jobs.PER_ROUND, partition="iid",
                      batch=jobs.BATCH, epochs=jobs.EPOCHS, lr=jobs.LR, lr_schedule="constant", momentum=jobs.MOMENTUM,
                      weight_decay=0, rounds=rounds, seed=seed, precision=precision, executor="sequential",
                      workers=cores(), device="cpu").history  # fmt: skip
    return {"accuracy": [r["accuracy"] for r in told], "loss": [r["loss"] for r in told],
            "seconds": [r["seconds"]["train"] for r in told]}  # fmt: skip


def measure(quick: bool = False) -> dict[str, Any]:
    """Accuracy after each round of the three runs."""
    rounds = 2 if quick else 8
    found: dict[str, Any] = {}
    for name, (precision, seed) in RUNS.items():
        if quick and seed:
            continue
        command = [sys.executable, "-m", "benchmarks.precision", precision, str(seed), str(rounds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print("\nprecision: test accuracy of FedAvg after each round (best seconds of a round's training)")
    for name, told in found.items():
        print(f"{name:28}" + " ".join(f"{a:.4f}" for a in told["accuracy"]) + f"   ({min(told['seconds']):.2f} s)")
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        measure()
