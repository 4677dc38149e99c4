"""The provenance of a run: qualified names, hashes of data and model, versions of software and hardware."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import steppe
from steppe.config import OWN, Config
from steppe.core.algorithm import Algorithm
from steppe.core.losses import find_loss_name, find_loss_settings
from steppe.core.prediction import find_prediction
from steppe.core.shared_copies import hash_tensors
from steppe.experiment import Experiment
from steppe.registry import find_sources
from steppe.runs.trained_parameters import describe_base

FORMAT = 2  # of about.json; folders of version 0.1.0 have no number


def qualify_name(thing: Any) -> str:
    """Return the qualified name of a class, a function or an object's class.

    >>> qualify_name(nn.Linear(1, 1)), qualify_name(qualify_name)
    ('torch.nn.modules.linear.Linear', 'steppe.runs.provenance.qualify_name')
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
    settings = [asdict(p) if is_dataclass(p) else vars(p) for p in algorithm.parts]
    return [{"part": p.name, "type": qualify_name(p), **{k: _describe_value(v) for k, v in own.items()}}
            for p, own in zip(algorithm.parts, settings, strict=True)]  # fmt: skip


def _describe_value(value: Any) -> Any:
    """Return a setting as it is, but arrays as a hash and functions by their names: the text of both is ambiguous."""
    if isinstance(value, Tensor | np.ndarray):
        return f"shape {tuple(value.shape)}, hash {hash_tensors({'': torch.as_tensor(value)})}"
    return qualify_name(value) if callable(value) else value


def describe_sources(config: Config, algorithm: Algorithm) -> dict[str, dict[str, str]]:
    """Record where the user's own code comes from: the hash of its file or, for an object in Python, of its class."""
    sources = find_sources(config.algorithm, config.add)
    if any(text.startswith(OWN) for text in (config.algorithm, *config.add)):
        for p in algorithm.parts:
            if not type(p).__module__.startswith("steppe."):
                with suppress(OSError, TypeError):  # typed into an interpreter, for instance
                    text = inspect.getsource(type(p))
                    sources[qualify_name(p)] = {"file": str(inspect.getsourcefile(type(p))),
                                                  "sha256": hashlib.sha256(text.encode()).hexdigest()}  # fmt: skip
    return sources


def describe(experiment: Experiment) -> dict[str, Any]:
    """Describe what the configuration does not contain, for about.json."""
    config, task, federation = experiment.config, experiment.task, experiment.federation
    data, split = federation.data, federation.partition
    own_model = config.model.startswith(OWN)
    named = {} if task.own_loss else {"name": find_loss_name(task.loss_each), **find_loss_settings(task.loss_each)}
    return {
        "format": FORMAT,
        "algorithm": experiment.algorithm.name,
        "parts": describe_parts(experiment.algorithm),
        **({"sources": sources} if (sources := describe_sources(config, experiment.algorithm)) else {}),
        "cost": asdict(experiment.cost),
        "parameters": task.layout.size,
        "model": {"own": own_model, "type": qualify_name(task.learner), "structure": hash_structure(task.learner),
                  "initial": hash_tensors({"x0": task.x0}), "head": task.head, "own_head": task.own_head,
                  **describe_base(task),
                  **({} if task.predict is find_prediction else {"predict": qualify_name(task.predict)}),
                  **({} if own_model else {"name": config.model, "classes": data.outputs,
                                           "shape": list(data.shape)})},
        "data": {"own": config.data.startswith(OWN), "name": data.name, "train": len(data.train_targets),
                 "test": len(data.test_targets), "classes": data.classes, "hash": data.hash},
        "inputs": {"mean": list(data.mean), "std": list(data.std)},
        "loss": {"own": task.own_loss, "type": qualify_name(getattr(task.loss_each, "func", task.loss_each)),
                 **named},
        "metric": task.metric.record,
        "metrics": [m.record for m in task.metrics],
        "partition": {"rule": split.rule, "hash": split.hash,
                      **({} if data.by is None else {"by": "own values"})} if split else None,
    }  # fmt: skip


def find_versions(device: torch.device) -> dict[str, Any]:
    """Find the versions of hardware and software that can explain a different result."""
    packages = ("torch", "numpy", "safetensors", "pydantic")
    hardware = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    return {"steppe": steppe.__version__, "python": platform.python_version(), "device": str(device),
            "hardware": hardware, "threads": torch.get_num_threads(), "commit": _find_commit(),
            **{name: metadata.version(name) for name in packages}}  # fmt: skip


def _find_commit() -> str | None:
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
