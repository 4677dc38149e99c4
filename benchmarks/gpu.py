"""The GPU benchmark: seconds a round in the steady state, evaluation included. Run as `make bench-gpu`.

CIFAR-10 shapes, 10 clients × 500 samples × 5 epochs, batch 50, augmentation on; random images unless real ones are in
$STEPPE_DATA (the time does not depend on them). The hand-written loop is what an ordinary PyTorch programmer writes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import steppe
from benchmarks import flatness, jobs
from steppe.models import build
from steppe.simulate.folder import versions

FEDSOL = {"recipe": "fedsol", "clients": 100, "per_round": 10, "augmentation": "cifar-fedsol"}
FEDSMOO = {"recipe": "fedsmoo", "clients": 100, "per_round": 10, "augmentation": "cifar-fedsmoo", "sampling": "fixed"}
# job: (algorithm, model, options, rounds that are timed)
JOBS = {
    "cnn fedavg tf32": ("fedavg", "cnn", {**FEDSOL, "precision": "tf32"}, 8),
    "cnn fedavg fp32": ("fedavg", "cnn", {**FEDSOL, "precision": "fp32"}, 5),
    "cnn fedavg bf16": ("fedavg", "cnn", {**FEDSOL, "precision": "bf16"}, 8),
    "cnn fedlesam tf32": ("fedlesam", "cnn", {**FEDSOL, "precision": "tf32"}, 8),
    "cnn fedscar tf32": ("fedscar", "cnn", {**FEDSOL, "precision": "tf32"}, 5),
    "cnn fedavg+man tf32": ("fedavg", "cnn", {**FEDSOL, "precision": "tf32", "add": ["man"]}, 5),
    "cnn fednsam per-step tf32": ("fednsam", "cnn", {**FEDSOL, "precision": "tf32", "variant": "per_step"}, 5),
    "cnn fedsam tf32": ("fedsam", "cnn", {**FEDSOL, "precision": "tf32"}, 5),
    "cnn fedsol adaptive all fp32": ("fedsol", "cnn", {**FEDSOL, "precision": "fp32"}, 4),
    "cnn fedsol adaptive all tf32": ("fedsol", "cnn", {**FEDSOL, "precision": "tf32"}, 5),
    "cnn fedsol adaptive all bf16": ("fedsol", "cnn", {**FEDSOL, "precision": "bf16"}, 5),
    "cnn fedsol head tf32": ("fedsol", "cnn", {**FEDSOL, "precision": "tf32", "on": "head", "radius": "fixed"}, 5),
    "resnet18-gn fedsmoo tf32": ("fedsmoo", "resnet18-gn", {**FEDSMOO, "precision": "tf32"}, 3),
    "resnet18-gn fedsmoo bf16": ("fedsmoo", "resnet18-gn", {**FEDSMOO, "precision": "bf16"}, 3),
    "resnet18-gn fedavg tf32": ("fedavg", "resnet18-gn", {**FEDSMOO, "precision": "tf32"}, 3),
}


def time_job(name, data, partition="iid"):
    algorithm, model, options, rounds = JOBS[name]
    seconds = []
    began = time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    result = steppe.run(algorithm, model, data, rounds=rounds + 2, partition=partition, device="cuda",
                        watch=lambda r: seconds.append(r["seconds"]["all"]), **options)  # fmt: skip
    steady = seconds[2:]
    return {"job": name, "median": statistics.median(steady), "best": min(steady), "first_two": seconds[:2],
            "total": time.perf_counter() - began, "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
            "notes": result.notes, "accuracy": result.accuracy}  # fmt: skip


def full_run(algorithm, data, rounds=300, **options):
    """A whole training, compilation included: LDA(0.1), 10 of 100 clients, the FedSoL recipe."""
    began = time.perf_counter()
    result = steppe.run(algorithm, "cnn", data, rounds=rounds, partition="lda(0.1)", device="cuda", **FEDSOL, **options)
    return {"job": f"full run, {rounds} rounds, {algorithm}, lda(0.1)", "options": options, "notes": result.notes,
            "seconds": time.perf_counter() - began, **result.summary}  # fmt: skip


def hand_loop(data, rounds=2):
    """FedAvg by hand on the GPU: a DataLoader-less loop over resident tensors, one client after the other."""
    x, y = data.train_inputs.cuda(), data.train_targets.cuda()
    mean, std = (torch.tensor(v, device="cuda").view(3, 1, 1) for v in (data.mean, data.std))
    model = build("cnn", 10, (3, 32, 32)).cuda()
    times = []
    for r in range(rounds + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        start = {k: v.clone() for k, v in model.state_dict().items()}
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for client in range(10):
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
            mine = torch.arange(client * 500, client * 500 + 500, device="cuda")
            for _ in range(5):
                for index in mine[torch.randperm(500, device="cuda")].split(50):
                    images = (x[index].float() / 255 - mean) / std
                    if torch.rand(()) < 0.5:
                        images = images.flip(-1)
                    loss = F.cross_entropy(model(images), y[index])
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            total = {k: total[k] + v / 10 for k, v in model.state_dict().items()}
        model.load_state_dict(total)
        with torch.no_grad():
            test = data.test_inputs.cuda()
            labels = data.test_targets.cuda()
            hits = sum(int((model((b.float() / 255 - mean) / std).argmax(1) == t).sum())
                       for b, t in zip(test.split(1000), labels.split(1000), strict=True))  # fmt: skip
        torch.cuda.synchronize()
        if r:
            times.append(time.perf_counter() - began)
    return {"job": "cnn fedavg, hand-written loop (simpler augmentation)", "median": statistics.median(times),
            "best": min(times), "accuracy": hits / len(data.test_targets)}  # fmt: skip


def roofs():
    """What the card reaches here: a large matrix product in three precisions, and a copy."""

    def rate(dtype, tf32):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        return 10 * 2 * 8192**3 / (time.perf_counter() - began) / 1e12

    found = {"fp32_TFLOPs": rate(torch.float32, False), "tf32_TFLOPs": rate(torch.float32, True),
             "bf16_TFLOPs": rate(torch.bfloat16, False)}  # fmt: skip
    a = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        b.copy_(a)
    torch.cuda.synchronize()
    return {**found, "copy_TBs": 20 * 2**30 / (time.perf_counter() - began) / 1e12}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
    parser.add_argument("--full", nargs="*", default=[], help="algorithms to train for 300 rounds, name[:key=value]")
    parser.add_argument("--seconds", type=float, default=500, help="start no further job after this long")
    parser.add_argument("--flatness", action=argparse.BooleanOptionalAction, default=True, help="the Hessian, too")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench-gpu needs a CUDA device, and PyTorch sees none here.")
    began = time.perf_counter()
    data, what = jobs.cifar()
    told = {"versions": versions(torch.device("cuda")), "data": what, "roofs": roofs(), "rows": [hand_loop(data)]}
    print(json.dumps(told), flush=True)
    if given.flatness:
        told["flatness"] = flatness.measure("cuda")
        print(json.dumps(told["flatness"]), flush=True)
    for name in given.full:
        algorithm, _, option = name.partition(":")
        key, _, value = option.partition("=")
        told["rows"].append(full_run(algorithm, data, **({key: value} if key else {})))
        print(json.dumps(told["rows"][-1]), flush=True)
    for name in given.jobs:
        if time.perf_counter() - began > given.seconds:
            told["rows"].append({"job": name, "skipped": "no time left"})
            continue
        try:
            row = time_job(name, data)
        except Exception as error:
            row = {"job": name, "failed": f"{type(error).__name__}: {str(error)[:400]}"}
        told["rows"].append(row)
        print(json.dumps(row), flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
