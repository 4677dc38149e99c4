"""Make a row of results, with everything about one run of a recipe, from its worker's report."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from steppe.config import Config
from steppe.reproduce.recipes import hash_recipe
from steppe.reproduce.rows import Row


def make_row(config: Config, facts: dict[str, Any]) -> Row:
    """Join configuration, curves, statistics, origin and time; training that failed has a row, too."""
    records, summary = facts["records"], facts["summary"]
    found = (
        {**list_curves(records), **summary, "rounds": len(records)}
        if "failed" in summary
        else summarize_run(records, summary)
    )
    seconds = {name: sum(r["seconds"].get(key, 0.0) for r in records)
               for name, key in (("train", "train"), ("rounds", "all"), ("measure", "measure"))}  # fmt: skip
    return {**describe_run(config), **found, **facts["about"], "peak_gpu_mib": facts["peak_gpu_mib"],
            "seconds": {k: round(v, 2) for k, v in {**seconds, "total": facts["seconds"]}.items()}}  # fmt: skip


def describe_run(config: Config) -> Row:
    """Return the configuration without the folder of the data, which is specific to the machine."""
    return {"recipe": hash_recipe(config), "seed": config.seed,
            "config": {k: v for k, v in config.model_dump(mode="json").items() if k != "data_folder"}}  # fmt: skip


def list_curves(records: list[dict[str, Any]]) -> Row:
    """Return the accuracy after every round, on the test set and on validation data."""
    kept = {"accuracy": "accuracy", "validation_accuracy": "validation"}
    found = {name: [round(r[key], 5) for r in records if key in r] for key, name in kept.items()
             if any(key in r for r in records)}  # fmt: skip
    if any("running_mean" in r for r in records):
        found["running_mean"] = [round(r["running_mean"]["accuracy"], 5) for r in records if "running_mean" in r]
    return found


def summarize_run(records: list[dict[str, Any]], summary: dict[str, Any]) -> Row:
    curve = [r["accuracy"] for r in records if "accuracy" in r]
    found = {**list_curves(records), "rounds": summary["rounds"], "last": summary["last"], "best": summary["best"],
            "mean_of_last_ten": fmean(curve[-10:]), "mean_of_last_fifty": fmean(curve[-50:]), "loss": summary["loss"],
            "train_loss": records[-1]["train_loss"]}  # fmt: skip
    held_out = [r["validation_accuracy"] for r in records if "validation_accuracy" in r]
    if held_out:
        found["validation_mean_of_last_ten"] = fmean(held_out[-10:])
    means = [r["running_mean"]["accuracy"] for r in records if "running_mean" in r]
    if means:
        found["running_mean_of_last_ten"] = fmean(means[-10:])
    measures: dict[str, Any] = {}
    for r in records:
        measures |= r.get("measures", {})
    return {**{k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()},
            **({"personal": summary["personal"]} if "personal" in summary else {}),
            **({"measures": measures} if measures else {})}  # fmt: skip
