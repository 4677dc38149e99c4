"""A run's folder: what was run, on what, every round's record, and the final model."""

from __future__ import annotations

import csv
import json
import platform
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import steppe
from steppe.errors import SteppeError
from steppe.simulate.setup import Experiment

LINES, TABLE, DONE = "rounds.jsonl", "rounds.csv", "result.json"


def prepare(folder: Path, experiment: Experiment) -> None:
    """Write everything that is known before the first round."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", experiment.config.model_dump(mode="json"))
    write_json(folder / "versions.json", versions(experiment.task.x0.device))
    parts = [{"part": p.name, **asdict(p)} for p in experiment.algorithm.parts]  # type: ignore[call-overload]
    split = experiment.federation.partition
    write_json(folder / "about.json", {
        "algorithm": experiment.algorithm.name, "parts": parts, "cost": asdict(experiment.cost),
        "parameters": experiment.task.layout.size, "partition": {"rule": split.rule, "hash": split.hash},
        "model": experiment.named_model,
    })  # fmt: skip
    split.save(folder / "partition.npz")


def versions(device: torch.device) -> dict[str, Any]:
    """Hardware and software, enough to explain a different digit."""
    packages = ("torch", "numpy", "safetensors", "pydantic")
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"steppe": steppe.__version__, "python": platform.python_version(), "device": str(device),
            "hardware": hardware, "threads": torch.get_num_threads(), "commit": _commit(),
            **{name: metadata.version(name) for name in packages}}  # fmt: skip


def _commit() -> str | None:
    """The git commit of the working directory, marked where files differ from it."""
    try:
        told = [subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
                for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])]  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return told[0] + ("+changes" if told[1] else "")


def append(folder: Path, record: dict[str, Any]) -> None:
    with (folder / LINES).open("a") as file:
        file.write(json.dumps(record) + "\n")


def history(folder: Path) -> list[dict[str, Any]]:
    """The records of a run; a last line that a crash cut short is left out."""
    records = []
    path = folder / LINES
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def rewrite(folder: Path, records: list[dict[str, Any]]) -> None:
    """Records up to a checkpoint, when a run goes on from there."""
    aside = folder / (LINES + ".new")
    aside.write_text("".join(json.dumps(r) + "\n" for r in records))
    aside.replace(folder / LINES)


def finish(folder: Path, experiment: Experiment, x: torch.Tensor, buffers: dict[str, torch.Tensor],
           records: list[dict[str, Any]], summary: dict[str, Any]) -> None:  # fmt: skip
    """The final model as a plain state dict, the table of rounds, and last of all the summary."""
    module = experiment.task.module(x, buffers)
    state = {k: v.detach().cpu().clone().contiguous() for k, v in module.state_dict().items()}
    save_file(state, folder / "model.safetensors", {"model": experiment.config.model})
    columns: dict[str, None] = {}
    rows = [{k: v for k, v in _flat(r).items() if not isinstance(v, list)} for r in records]
    for row in rows:
        columns.update(dict.fromkeys(row))
    with (folder / TABLE).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)
    write_json(folder / DONE, summary)


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def write_json(path: Path, content: Any) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(content, indent=1) + "\n")
    aside.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise SteppeError(f"{path.parent} is not the folder of a run: it has no {path.name}.") from None
    except json.JSONDecodeError as error:
        raise SteppeError(f"{path} is damaged: {error}.") from None


