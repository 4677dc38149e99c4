"""Read finished runs from their folders and group them for a report: a group per algorithm, a run per seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from steppe.config import OWN
from steppe.core.errors import SteppeError
from steppe.core.metric import Metric
from steppe.report.comparison import Comparison, Group, Run
from steppe.runs.folder import RunFolder
from steppe.settings import shorten


def read(folders: Sequence[Path]) -> Comparison:
    """Read the finished runs in these folders, of runs or of comparisons."""
    if not folders:
        raise SteppeError("A report needs at least one run: give the folders that steppe run or steppe compare wrote.")
    runs: dict[Path, Run] = {}
    left_out: list[str] = []
    for where in folders:
        found = _order_as_compared(where, RunFolder.find([where]))
        faults = []
        for one in found:
            fault = _find_fault(one)
            if fault:
                faults.append(fault)
            else:
                runs.setdefault(one.path.resolve(), _read_run(one))
        if len(faults) == len(found):
            raise SteppeError(faults[0])
        left_out += faults
    return _group(list(runs.values()), left_out)


def _order_as_compared(where: Path, found: list[RunFolder]) -> list[RunFolder]:
    """Put algorithms in the order in which they were compared, which gives them the colours of `compare`'s picture."""
    try:
        labels = [line["algorithm"] for line in RunFolder(where).read("comparison.json")["lines"]]
    except (SteppeError, LookupError, TypeError):  # none, or damaged
        return found
    return sorted(found, key=lambda one: labels.index(one.label) if one.label in labels else len(labels))


def _find_fault(one: RunFolder) -> str | None:
    if not one.finished:
        return f"{one} has not finished: continue it ({one.how_to_resume})."
    if not any(one.metric.name in r for r in one.history):
        if one.history and one.about.get("data", {}).get("test") == 0:
            return f"{one} has no test data, so there is nothing to report; its training losses are in rounds.csv."
        return f"{one} has no evaluated round, so there is nothing to report: run it for at least one round."
    if one.summary is not None and one.summary.get("last", 0.0) is None:
        return f"{one}: the final {one.metric.name} is not finite, so there is nothing to report; see rounds.csv."
    return None


def _read_run(one: RunFolder) -> Run:
    config, about, summary = one.stored, one.about, one.read("result.json")
    if "cost" not in about or "last" not in summary:
        raise SteppeError(f"{one} is not the folder of a run: its files are not those that steppe run writes.")
    return Run(one, config, about, one.versions, one.history, summary, one.read_analysis() or {})


def _group(runs: list[Run], left_out: list[str]) -> Comparison:
    _check_same_data(runs)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = _describe_without_seed(run)
        twin = next((r for r in groups.get(key, []) if r.seed == run.seed), None)
        if twin:
            left_out.append(f"{run.folder} repeats {twin.folder}: the same settings and the same seed.")
        else:
            groups.setdefault(key, []).append(run)
    made: list[Group] = []
    for several in groups.values():
        run, labels = several[0], {g.label for g in made}
        label = run.folder.label if run.folder.seed_of_several else _name_algorithm(run)
        if label in labels:  # the same algorithm under other settings
            path = run.folder.path
            home = path.parent if run.folder.seed_of_several else path
            label = home.name if home.name not in labels else str(home)
        made.append(Group(label, sorted(several, key=lambda r: r.seed)))
    return Comparison(made, left_out, _find_metric(runs))


def _describe_without_seed(run: Run) -> str:
    """Return what runs of one group have in common; the user's own parts and model are not in the configuration."""
    about = run.about
    parts = [{k: v for k, v in part.items() if k != "seed"} for part in about.get("parts", [])]
    config = {k: v for k, v in run.config.items() if k != "seed"}
    own = [(about.get(key) or {}).get(what) for key, what in (("model", "structure"), ("loss", "type"))]
    return json.dumps([about["algorithm"], parts, own, config], sort_keys=True)


def _name_algorithm(run: Run) -> str:
    """Return the name under which the run was recorded, with what was added."""
    name: str = run.about["algorithm"]
    if "format" in run.about or run.config["algorithm"].startswith(OWN):
        return name
    # Version 0.1.0 recorded settings, too.
    return "+".join([name.partition("+")[0], *map(shorten, run.config["add"])])


def _check_same_data(runs: list[Run]) -> None:
    """Refuse data of different names; of one name, data with different content, unless each seed holds out its own."""
    names = list(dict.fromkeys(r.config["data"] for r in runs))
    if len(names) > 1:
        raise SteppeError(f"The runs are on different data ({', '.join(names)}): make one report for each.")
    hashes = {(share := r.config["validation"], share and r.seed, r.about["data"]["hash"])
              for r in runs if "data" in r.about}  # fmt: skip
    if len({(share, seed) for share, seed, _ in hashes}) < len(hashes):
        raise SteppeError(f"The runs are on data of the same name, {names[0]}, but with different content (hashes "
                          f"{', '.join(sorted(h for *_, h in hashes))}): make one report for each.")  # fmt: skip


def _find_metric(runs: list[Run]) -> Metric:
    metrics = {run.metric.name: run.metric for run in runs}
    if len(metrics) > 1:
        raise SteppeError(
            f"The runs are evaluated by different metrics ({', '.join(metrics)}): make a report for each."
        )
    return next(iter(metrics.values()))
