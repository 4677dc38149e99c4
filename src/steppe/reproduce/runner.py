"""One recipe, one seed: train, and say everything about it in a row."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch

from steppe.config import Config
from steppe.core.errors import RunFailed
from steppe.data import Data, load
from steppe.engine.build import build_experiment
from steppe.engine.devices import find_device
from steppe.engine.rounds import simulate
from steppe.experiment import Experiment
from steppe.reproduce.recipes import recipe_hash
from steppe.reproduce.rows import Row
from steppe.runs.provenance import find_versions


@lru_cache(maxsize=2)
def loaded(name: str, folder: str | None, device: torch.device) -> Data:
    """A data set on the device, read once in a process."""
    return load(name, folder).to(device)


def train(config: Config, watch: Callable[[dict[str, Any]], None] = lambda _: None) -> Row:
    """Run it and give its row; a training that breaks down gives a row too, which says so."""
    began = time.perf_counter()
    device = find_device(config.device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    records: list[dict[str, Any]] = []

    def see(record: dict[str, Any]) -> None:
        records.append(record)
        watch(record)

    built = build_experiment(config, data=loaded(config.data, config.data_folder, device))
    told: dict[str, Any]
    try:
        told = statistics(records, simulate(built, watch=see).summary)
    except RunFailed as error:
        told = {**curves(records), "failed": str(error), "rounds": len(records)}
    total = time.perf_counter() - began
    peak = round(torch.cuda.max_memory_allocated(device) / 2**20) if cuda else None
    row = {**identity(config), **told, **about(built, device),
           "seconds": {"train": round(sum(r["seconds"]["train"] for r in records), 2),
                       "rounds": round(sum(r["seconds"]["all"] for r in records), 2),
                       "measure": round(sum(r["seconds"].get("measure", 0.0) for r in records), 2),
                       "total": round(total, 2)}, "peak_gpu_mib": peak}  # fmt: skip
    del built
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()  # others may be using the card
    return row


def identity(config: Config) -> Row:
    """What was run. The folder of the data is of no interest to anybody else."""
    return {"recipe": recipe_hash(config), "seed": config.seed,
            "config": {k: v for k, v in config.model_dump(mode="json").items() if k != "data_folder"}}  # fmt: skip


def curves(records: list[dict[str, Any]]) -> Row:
    kept = {"accuracy": "accuracy", "validation_accuracy": "validation"}
    return {name: [round(r[key], 5) for r in records if key in r] for key, name in kept.items()
            if any(key in r for r in records)}  # fmt: skip


def statistics(records: list[dict[str, Any]], summary: dict[str, Any]) -> Row:
    curve = [r["accuracy"] for r in records if "accuracy" in r]
    told = {**curves(records), "rounds": summary["rounds"], "last": summary["last"], "best": summary["best"],
            "mean_of_last_ten": fmean(curve[-10:]), "mean_of_last_fifty": fmean(curve[-50:]), "loss": summary["loss"],
            "train_loss": records[-1]["train_loss"]}  # fmt: skip
    held_out = [r["validation_accuracy"] for r in records if "validation_accuracy" in r]
    if held_out:
        told["validation_mean_of_last_ten"] = fmean(held_out[-10:])
    measures: dict[str, Any] = {}
    for r in records:
        measures |= r.get("measures", {})
    return {**{k: round(v, 6) if isinstance(v, float) else v for k, v in told.items()},
            **({"personal": summary["personal"]} if "personal" in summary else {}),
            **({"measures": measures} if measures else {})}  # fmt: skip


def about(built: Experiment, device: torch.device) -> Row:
    """Costs, hardware in words, versions, commit."""
    found = find_versions(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    card = f"one {found['hardware']}" if device.type == "cuda" else f"CPU ({platform.machine()})"
    split = built.federation.partition
    return {"cost": asdict(built.cost), "partition": split.hash if split else None, "notes": built.notes,
            "hardware": f"{card}, {cores} CPU cores", "tf32": torch.backends.cuda.matmul.allow_tf32,
            "versions": {k: found[k] for k in ("steppe", "python", "torch", "numpy")},
            "commit": found["commit"], "day": time.strftime("%Y-%m-%d", time.gmtime())}  # fmt: skip
