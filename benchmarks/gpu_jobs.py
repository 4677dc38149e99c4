"""The jobs of `make bench-gpu`: CIFAR-10, 10 clients × 500 samples × 5 epochs, batch 50."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_full import RECIPE

FEDSOL = RECIPE
FEDSMOO = {"recipe": "fedsmoo", "clients": 100, "per_round": 10, "augmentation": "cifar-fedsmoo", "sampling": "fixed"}
HEAD = {"settings": {"on": "head", "radius": "fixed"}}
# job: (algorithm, model, options)
JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cnn fedavg tf32": ("fedavg", "cnn", {**FEDSOL, "precision": "tf32"}),
    "cnn fedavg bf16": ("fedavg", "cnn", {**FEDSOL, "precision": "bf16"}),
    "cnn fedavg fp32": ("fedavg", "cnn", {**FEDSOL, "precision": "fp32"}),
    "cnn fedlesam tf32": ("fedlesam", "cnn", {**FEDSOL, "precision": "tf32"}),
    "cnn fedsol adaptive all tf32": ("fedsol", "cnn", {**FEDSOL, "precision": "tf32"}),
    "cnn fedsol head tf32": ("fedsol", "cnn", {**FEDSOL, "precision": "tf32", **HEAD}),
    "resnet18-gn fedsmoo tf32": ("fedsmoo", "resnet18-gn", {**FEDSMOO, "precision": "tf32"}),
    "resnet18-gn fedsmoo bf16": ("fedsmoo", "resnet18-gn", {**FEDSMOO, "precision": "bf16"}),
    "cnn fedscar tf32": ("fedscar", "cnn", {**FEDSOL, "precision": "tf32"}),
    "cnn fedavg+man tf32": ("fedavg", "cnn", {**FEDSOL, "precision": "tf32", "add": ["man"]}),
    "cnn fednsam per-step tf32": (
        "fednsam", "cnn", {**FEDSOL, "precision": "tf32", "settings": {"variant": "per_step"}}),
    "cnn fedsam tf32": ("fedsam", "cnn", {**FEDSOL, "precision": "tf32"}),
    "cnn fedsol adaptive all bf16": ("fedsol", "cnn", {**FEDSOL, "precision": "bf16"}),
    "cnn fedsol fixed all fp32": ("fedsol", "cnn", {**FEDSOL, "precision": "fp32", "settings": {"radius": "fixed"}}),
    "cnn fedsol fixed all bf16": ("fedsol", "cnn", {**FEDSOL, "precision": "bf16", "settings": {"radius": "fixed"}}),
    "cnn fedavg tf32, 50 clients in 10 lanes": (
        "fedavg", "cnn", {**FEDSOL, "precision": "tf32", "per_round": 50, "chunk": 10}),
    "cnn fedavg tf32, uncompiled": ("fedavg", "cnn", {**FEDSOL, "precision": "tf32", "compile": False}),
}  # fmt: skip
