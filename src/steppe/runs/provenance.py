"""The provenance of a run: qualified names, hashes of data and model, versions of software and hardware."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import asdict, is_dataclass
from importlib import metadata
from typing import Any

import torch
from torch import nn

import steppe
from steppe.config import OWN
from steppe.core.algorithm import Algorithm
from steppe.experiment import Experiment

FORMAT = 2  # of about.json; folders of version 0.1.0 have no number


def qualified_name(thing: Any) -> str:
    """Return the qualified name of a class, a function or an object's class.

    >>> qualified_name(nn.Linear(1, 1)), qualified_name(qualified_name)
    ('torch.nn.modules.linear.Linear', 'steppe.runs.provenance.qualified_name')
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def hash_structure(model: nn.Module) -> str:
    """Hash a model's modules and its tensors' names, shapes and types, but not their values."""
    tensors = [(k, tuple(v.shape), str(v.dtype)) for k, v in model.state_dict().items()]
    trained = [k for k, p in model.named_parameters() if p.requires_grad]
    return hashlib.sha256(repr((repr(model), tensors, trained)).encode()).hexdigest()[:16]


def describe_parts(algorithm: Algorithm) -> list[dict[str, Any]]:
    """Return every part's name, class and settings."""
    return [{"part": p.name, "type": qualified_name(p), **(asdict(p) if is_dataclass(p) else {})}
            for p in algorithm.parts]  # fmt: skip


def describe(experiment: Experiment) -> dict[str, Any]:
    """Describe what the configuration does not contain, for about.json."""
    config, task, federation = experiment.config, experiment.task, experiment.federation
    data, split = federation.data, federation.partition
    own_model = config.model.startswith(OWN)
    return {
        "format": FORMAT,
        "algorithm": experiment.algorithm.name,
        "parts": describe_parts(experiment.algorithm),
        "cost": asdict(experiment.cost),
        "parameters": task.layout.size,
        "model": {"own": own_model, "type": qualified_name(task.learner), "structure": hash_structure(task.learner),
                  "own_head": task.own_head,
                  **({} if own_model else {"name": config.model, "classes": data.classes,
                                           "shape": list(data.shape)})},
        "data": {"own": config.data.startswith(OWN), "name": data.name, "train": len(data.train_targets),
                 "test": len(data.test_targets), "classes": data.classes, "hash": data.hash},
        "inputs": {"mean": list(data.mean), "std": list(data.std)},
        "loss": {"own": task.own_loss, "type": qualified_name(task.loss_each)},
        "metric": task.metric.record,
        "partition": {"rule": split.rule, "hash": split.hash} if split else None,
    }  # fmt: skip


def find_versions(device: torch.device) -> dict[str, Any]:
    """Find the versions of hardware and software that can explain a different result."""
    packages = ("torch", "numpy", "safetensors", "pydantic")
    hardware = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    return {"steppe": steppe.__version__, "python": platform.python_version(), "device": str(device),
            "hardware": hardware, "threads": torch.get_num_threads(), "commit": _commit(),
            **{name: metadata.version(name) for name in packages}}  # fmt: skip


def _commit() -> str | None:
    """Return the git commit of the working directory, with a mark if files differ; $STEPPE_COMMIT replaces it."""
    if named := os.environ.get("STEPPE_COMMIT"):
        return named
    try:
        commit, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")
