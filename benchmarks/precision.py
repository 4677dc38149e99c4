"""The effect of bf16 on accuracy: FedAvg on the benchmark's job in fp32, in bf16, and in fp32 with another seed.

The difference between two seeds shows how large the difference between precisions may be without being significant.

`python -m benchmarks.precision gradients` compares single gradients instead: bf16 with fp32, at a model and where SAM
perturbs it to (docs/decisions/011-precision.md).
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
    """Return test accuracy and loss after every round, and the seconds per round without evaluation."""
    import torch

    import steppe
    from benchmarks.contenders import cores
    from benchmarks.hand_loop import CNN

    torch.manual_seed(seed)
    history = steppe.run("fedavg", CNN(), jobs.data()[0], clients=jobs.CLIENTS, per_round=jobs.PER_ROUND,
                         partition="iid", batch=jobs.BATCH, epochs=jobs.EPOCHS, lr=jobs.LR, lr_schedule="constant",
                         momentum=jobs.MOMENTUM, weight_decay=0, rounds=rounds, seed=seed, precision=precision,
                         executor="sequential", workers=cores(), device="cpu").history  # fmt: skip
    return {"accuracy": [r["accuracy"] for r in history], "loss": [r["loss"] for r in history],
            "seconds": [r["seconds"]["train"] for r in history]}  # fmt: skip


def measure(quick: bool = False) -> dict[str, Any]:
    """Measure the accuracy after each round of the three runs."""
    rounds = 2 if quick else 8
    found: dict[str, Any] = {}
    for name, (precision, seed) in RUNS.items():
        if quick and seed:
            continue
        command = [sys.executable, "-m", "benchmarks.precision", precision, str(seed), str(rounds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print("\nprecision: test accuracy of FedAvg after each round (fastest training of a round, in seconds)")
    for name, result in found.items():
        print(f"{name:28}" + " ".join(f"{a:.4f}" for a in result["accuracy"]) + f"   ({min(result['seconds']):.2f} s)")
    return found


def gradients(steps: int = 400, batches: int = 20, radii: tuple[float, ...] = (0.02, 0.05, 0.1)) -> None:
    """Print errors of gradients in bf16, for the FedAvg paper's CNN on CIFAR-10 after some training."""
    import torch
    import torch.nn.functional as F

    from steppe.models import build

    torch.manual_seed(0)
    data, what = jobs.cifar()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.mean, data.std))
    model = build("cnn", 10, (3, 32, 32))
    parameters = list(model.parameters())

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(len(data.train_inputs), (50,))
        return (data.train_inputs[chosen].float() / 255 - mean) / std, data.train_targets[chosen]

    def gradient(x: torch.Tensor, y: torch.Tensor, fast: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=fast):
            loss = F.cross_entropy(model(x), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def perturbed(x: torch.Tensor, y: torch.Tensor, along: torch.Tensor, fast: bool) -> torch.Tensor:
        start = torch.nn.utils.parameters_to_vector(parameters).detach()
        torch.nn.utils.vector_to_parameters(start + along, parameters)
        found = gradient(x, y, fast)
        torch.nn.utils.vector_to_parameters(start, parameters)
        return found

    optimiser = torch.optim.SGD(parameters, 0.01, 0.9)
    for _ in range(steps):
        optimiser.zero_grad()
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    report: dict[str, list[float]] = {}
    for _ in range(batches):
        x, y = batch()
        exact, fast = gradient(x, y, False), gradient(x, y, True)
        report.setdefault("error at w", []).append(float((fast - exact).norm() / exact.norm()))
        for rho in radii:
            there = perturbed(x, y, rho * exact / exact.norm(), False)
            there_fast = perturbed(x, y, rho * fast / fast.norm(), True)
            change, change_fast = there - exact, there_fast - fast
            report.setdefault(f"error at w + ε, ρ = {rho:g}", []).append(
                float((there_fast - there).norm() / there.norm())
            )
            seen = float(change_fast @ change / (change @ change))
            report.setdefault(f"of the change by ε seen in bf16, ρ = {rho:g}", []).append(seen)
    print(f"bf16 compared with fp32: the FedAvg paper's CNN after {steps} steps, {batches} batches of 50, {what}")
    for name, values in report.items():
        print(f"{name:42} {sum(values) / len(values):.4f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["gradients"]:
        gradients()
    elif len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        measure()
