"""Runs read back from their folders and grouped for a report: one group an algorithm, one run a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from steppe.core.errors import SteppeError
from steppe.core.metric import Metric
from steppe.report.comparison import Comparison, Group, Run
from steppe.runs.folder import RunFolder


def read(folders: Sequence[Path]) -> Comparison:
    """The finished runs in these folders, of runs or of comparisons."""
    if not folders:
        raise SteppeError("A report needs at least one run: give the folders that steppe run or steppe compare wrote.")
    runs: dict[Path, Run] = {}
    left_out: list[str] = []
    for where in folders:
        found = RunFolder.find([where])
        faults = []
        for one in found:
            fault = _unfinished(one)
            if fault:
                faults.append(fault)
            else:
                runs.setdefault(one.path.resolve(), _read(one))
        if len(faults) == len(found):
            raise SteppeError(faults[0])
        left_out += faults
    return _grouped(list(runs.values()), left_out)


def _unfinished(one: RunFolder) -> str | None:
    if not one.finished:
        return f"{one} has not finished: go on with it by steppe run --resume --out {one}."
    if not any(one.metric.name in r for r in one.history):
        return f"{one} has no evaluated round, so there is nothing to report: run it for at least one round."
    return None


def _read(one: RunFolder) -> Run:
    config, about, summary = one.stored, one.about, one.read("result.json")
    if "cost" not in about or "last" not in summary:
        raise SteppeError(f"{one} is not the folder of a run: its files are not those that steppe run writes.")
    return Run(one, config, about, one.versions, one.history, summary, one.analysis() or {})


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
        label = run.folder.label if run.folder.seed_of_several else own
        if label in labels:  # the same algorithm under other settings
            path = run.folder.path
            home = path.parent if run.folder.seed_of_several else path
            label = home.name if home.name not in labels else str(home)
        made.append(Group(label, sorted(several, key=lambda r: r.seed)))
    return Comparison(made, left_out, _metric(runs))


def _metric(runs: list[Run]) -> Metric:
    metrics = {run.metric.name: run.metric for run in runs}
    if len(metrics) > 1:
        raise SteppeError(f"The runs are judged by different metrics ({', '.join(metrics)}): make one report for each.")
    return next(iter(metrics.values()))
