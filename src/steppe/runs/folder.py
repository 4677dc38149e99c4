"""A run's folder: what was run, on what, every round's record, and the final model."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import steppe
from steppe.config import ONLOOKERS, Config
from steppe.core.errors import SteppeError
from steppe.engine.experiment import Experiment

LINES, TABLE, DONE, MODEL = "rounds.jsonl", "rounds.csv", "result.json", "model.safetensors"


def clear(folder: Path) -> None:
    """Take away an earlier run: its checkpoints must not be taken for those of the run that starts now."""
    for name in ("checkpoints", "best", "analysis", "tensorboard", "wandb"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (LINES, TABLE, DONE, MODEL, "clients.bin", "track.json"):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("analysis*.json"):
        path.unlink()


def check_resumable(folder: Path, experiment: Experiment) -> None:
    """A run goes on only under the settings that it was started with; it may be made longer."""
    before, now = settings(folder), experiment.config.model_dump(mode="json")
    changed = differences(folder, experiment.config)
    if not changed and (folder / "about.json").exists():
        # What the configuration does not say: a user's own parts, model and data, and parts that know the run's length.
        was, is_ = read_json(folder / "about.json"), json.loads(json.dumps(about(experiment), default=str))
        told = ("parts", "parameters", "partition")
        changed = [f"{k} was {was.get(k)!r} and is {is_[k]!r}" for k in told if was.get(k) != is_[k]]
    if changed:
        raise SteppeError(f"{folder} was started with other settings: {', '.join(changed)}. "
                          "Only rounds may change; or start anew in another folder.")  # fmt: skip
    done = max((r["round"] for r in history(folder)), default=0)
    if now["rounds"] < done:
        raise SteppeError(f"{folder} has already finished {done} rounds, so it cannot end after {now['rounds']}: "
                          "raise rounds, or start anew in another folder.")  # fmt: skip
    if now["rounds"] != before["rounds"] and experiment.config.lr_schedule == "cosine":
        raise SteppeError(f"{folder} was started for {before['rounds']} rounds, and the cosine schedule depends on "
                          "that number: start anew in another folder.")  # fmt: skip


def differences(folder: Path, config: Config) -> list[str]:
    """What makes this configuration another than the folder's, apart from the number of rounds."""
    before, now = settings(folder), config.model_dump(mode="json")
    return [f"{k} was {before.get(k)!r} and is {now[k]!r}"
            for k in now if before.get(k) != now[k] and k not in ("rounds", *ONLOOKERS)]  # fmt: skip


def prepare(folder: Path, experiment: Experiment) -> None:
    """Write everything that is known before the first round."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)  # the summary stands for a finished run
    write_json(folder / "config.json", experiment.config.model_dump(mode="json"))
    write_json(folder / "versions.json", versions(experiment.task.x0.device))
    write_json(folder / "about.json", about(experiment))
    experiment.federation.partition.save(folder / "partition.json")


def about(experiment: Experiment) -> dict[str, Any]:
    """What the configuration alone does not say."""
    split, data = experiment.federation.partition, experiment.federation.data
    return {
        "algorithm": experiment.algorithm.name,
        "parts": [{"part": p.name, **(asdict(p) if is_dataclass(p) else {})} for p in experiment.algorithm.parts],
        "cost": asdict(experiment.cost), "parameters": experiment.task.layout.size,
        "partition": {"rule": split.rule, "hash": split.hash}, "model": experiment.named_model,
        "inputs": {"mean": list(data.mean), "std": list(data.std)},
    }  # fmt: skip


def versions(device: torch.device) -> dict[str, Any]:
    """Hardware and software, enough to explain a different digit."""
    packages = ("torch", "numpy", "safetensors", "pydantic")
    hardware = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    return {"steppe": steppe.__version__, "python": platform.python_version(), "device": str(device),
            "hardware": hardware, "threads": torch.get_num_threads(), "commit": _commit(),
            **{name: metadata.version(name) for name in packages}}  # fmt: skip


def _commit() -> str | None:
    """The git commit of the working directory, marked where files differ from it; a copy without git may be told."""
    if told_by_hand := os.environ.get("STEPPE_COMMIT"):
        return told_by_hand
    try:
        told = [subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
                for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])]  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return told[0] + ("+changes" if told[1] else "")


def append(folder: Path, record: dict[str, Any]) -> None:
    with (folder / LINES).open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())  # a checkpoint must never know more rounds than the records do


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
    aside = folder / (MODEL + ".new")
    save_file(state, aside, {"model": experiment.config.model if experiment.named_model else "own"})
    aside.replace(folder / MODEL)
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


def settings(folder: Path) -> dict[str, Any]:
    """A run's configuration; keys that did not exist when it was started have their defaults."""
    return {**Config.model_validate({}).model_dump(mode="json"), **read_json(folder / "config.json")}


def model_state(folder: Path) -> dict[str, torch.Tensor]:
    """The trained model's weights under their ordinary names."""
    path = folder / MODEL
    if not path.exists():
        raise SteppeError(f"{folder} has no model yet: let the run finish (steppe run --resume --out {folder}).")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise SteppeError(f"{path} is damaged ({error}): let the run finish again "
                          f"(steppe run --resume --out {folder}).") from error  # fmt: skip


def write_json(path: Path, content: Any) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(content, indent=1, default=str) + "\n")
    aside.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise SteppeError(f"{path.parent} is not the folder of a run: it has no {path.name}.") from None
    except json.JSONDecodeError as error:
        raise SteppeError(f"{path} is damaged: {error}.") from None
