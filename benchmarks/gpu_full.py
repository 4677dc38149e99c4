"""A full training on one GPU including compilation, in its own process with empty compile caches.

PyTorch and Triton cache compiled code on disk, so that a second run would not compile at all. Here both use new
folders, which are removed afterwards. `python -m benchmarks.gpu_full NAME[:KEY=VALUE] [ROUNDS]` by itself uses the
existing caches, and its result says so.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import steppe
from benchmarks import jobs
from benchmarks.contenders import private_stdout
from benchmarks.race import Child, GaveUp

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
RECIPE = {"recipe": "fedsol", "clients": 100, "per_round": 10, "augmentation": "cifar-fedsol"}
ROUNDS = 300


def apart(name: str, limit: float) -> dict[str, Any]:
    """Return the row of a full run in its own process; a failure is also a row."""
    job = f"full run, {ROUNDS} rounds, {name}, lda(0.1)"
    with tempfile.TemporaryDirectory() as folder:
        caches = {key: str(Path(folder, key.lower())) for key in CACHES}
        for path in caches.values():
            Path(path).mkdir()
        child = Child(name, [sys.executable, "-m", "benchmarks.gpu_full", name, str(ROUNDS)], limit, caches)
        try:
            child.round()
            return {"job": job, **child.rounds[0], "with_start": child.first}
        except GaveUp as why:
            return {"job": job, "failed": str(why)}
        finally:
            child.stop(patience=30 if child.rounds else 0)


def state_of_caches() -> str:
    """Return whether the compile caches were empty."""
    folders = [os.environ.get(key) for key in CACHES]
    empty = all(folder and not any(Path(folder).glob("*")) for folder in folders)
    return "empty before" if empty else "as found"


def run(name: str, rounds: int, device: str = "cuda") -> dict[str, Any]:
    """Train with LDA(0.1), 10 of 100 clients and the FedSoL recipe."""
    algorithm, _, option = name.partition(":")
    key, _, value = option.partition("=")
    options, caches, data = {key: value} if key else {}, state_of_caches(), jobs.cifar()[0]
    records: list[dict[str, Any]] = []
    began = time.perf_counter()
    result = steppe.run(algorithm, "cnn", data, rounds=rounds, partition="lda(0.1)", device=device,
                        watch=records.append, **{**RECIPE, **options})  # fmt: skip
    seconds = time.perf_counter() - began  # the summary's seconds count only the rounds
    return {**result.summary, "seconds": seconds, "caches": caches, "options": options, "notes": result.notes,
            "first_round": records[0]["seconds"]["all"],
            "later_rounds": sum(r["seconds"]["all"] for r in records[1:])}  # fmt: skip


if __name__ == "__main__":
    answers = private_stdout()
    answers.write(json.dumps(run(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)) + "\n")
    answers.flush()
