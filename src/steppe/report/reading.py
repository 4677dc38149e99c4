"""Runs read back from their folders and grouped for a report: one group an algorithm, one run a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steppe.core.errors import SteppeError
from steppe.report.comparison import Comparison, Group, Metric, Run
from steppe.runs import folder


def read(folders: Sequence[Path]) -> Comparison:
    """The finished runs in these folders, of runs or of comparisons."""
    if not folders:
        raise SteppeError("A report needs at least one run: give the folders that steppe run or steppe compare wrote.")
    runs: dict[Path, Run] = {}
    left_out: list[str] = []
    for where in folders:
        found = sorted(p.parent for p in where.rglob("config.json")) if where.is_dir() else []
        if not found:
            raise SteppeError(f"{where} holds no run: give the folder that steppe run or steppe compare wrote.")
        faults = []
        for one in found:
            fault = _unfinished(one)
            if fault:
                faults.append(fault)
            else:
                runs.setdefault(one.resolve(), _read(one))
        if len(faults) == len(found):
            raise SteppeError(faults[0])
        left_out += faults
    return _grouped(list(runs.values()), left_out)


def _unfinished(one: Path) -> str | None:
    if not (one / folder.DONE).exists():
        return f"{one} has not finished: go on with it by steppe run --resume --out {one}."
    if not any("accuracy" in r for r in folder.history(one)):
        return f"{one} has no evaluated round, so there is nothing to report: run it for at least one round."
    return None


def _read(one: Path) -> Run:
    def optional(name: str) -> dict[str, Any]:
        content = folder.read_json(one / name) if (one / name).exists() else {}
        if not isinstance(content, dict):
            raise SteppeError(f"{one / name} is damaged: it should hold an object.")
        return content

    config, about = folder.read_json(one / "config.json"), folder.read_json(one / "about.json")
    summary = folder.read_json(one / folder.DONE)
    foreign = not all(isinstance(v, dict) for v in (config, about, summary))
    if foreign or "algorithm" not in config or "cost" not in about or "last" not in summary:
        raise SteppeError(f"{one} is not the folder of a run: its files are not those that steppe run writes.")
    return Run(one, config, about, optional("versions.json"), folder.history(one), summary, optional("analysis.json"))


def _grouped(runs: list[Run], left_out: list[str]) -> Comparison:
    data = list(dict.fromkeys(r.config["data"] for r in runs))
    if len(data) > 1:
        raise SteppeError(f"The runs are on different data ({', '.join(data)}): make one report for each.")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.about["algorithm"], {k: v for k, v in run.config.items() if k != "seed"}], sort_keys=True)
        twin = next((r for r in groups.get(key, []) if r.seed == run.seed), None)
        if twin:
            left_out.append(f"{run.folder} has the settings and the seed of {twin.folder}, so it is no further seed.")
        else:
            groups.setdefault(key, []).append(run)
    made: list[Group] = []
    for several in groups.values():
        run, labels = several[0], {g.label for g in made}
        own = "+".join([run.about["algorithm"].partition("+")[0], *(a.partition(":")[0] for a in run.config["add"])])
        label = run.folder.parent.name if run.folder.name.startswith("seed-") else own
        if label in labels:  # the same algorithm under other settings
            home = run.folder.parent if run.folder.name.startswith("seed-") else run.folder
            label = home.name if home.name not in labels else str(home)
        made.append(Group(label, sorted(several, key=lambda r: r.seed)))
    return Comparison(made, left_out, _metric(runs))


def _metric(runs: list[Run]) -> Metric:
    """Records do not name their metric; the best of a curve tells its direction, and classes tell an accuracy."""
    lower = False
    for run in runs:
        values = [r["accuracy"] for r in run.records if "accuracy" in r]
        lower |= run.summary.get("best") == min(values) < max(values)
    percent = not lower and any("by_class" in r for run in runs for r in run.records)
    return Metric("accuracy" if percent else "metric", percent, lower)
