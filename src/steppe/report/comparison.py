"""What a report is made of: runs, grouped by algorithm over seeds, and their curves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np

from steppe import data as datasets
from steppe.config import OWN, Config, list_keys
from steppe.core.errors import SteppeError
from steppe.core.metric import Metric
from steppe.core.rounding import Number
from steppe.data import Data, Partition
from steppe.data.npz import read_npz
from steppe.flatness.landscape import Landscape
from steppe.report.measure_tables import Profile, average_seeds, read_numbers, read_profile
from steppe.report.seeds import compute_spread, describe_variation
from steppe.runs.curves import align_seeds
from steppe.runs.folder import RunFolder
from steppe.runs.records import restore_number

SHOWN = 20_000  # clients up to which a page shows who holds what
Axis = Literal["round", "bytes", "gradients", "simulated"]


class Curve(NamedTuple):
    """The mean over seeds and its sample standard deviation, at the rounds that all seeds have."""

    x: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    seeds: int


class DensityCurve(NamedTuple):
    grid: np.ndarray
    density: np.ndarray
    error: np.ndarray
    ends: tuple[float, float]  # the smallest and the largest eigenvalue found
    one: float  # the height of a single eigenvalue


@dataclass
class Run:
    """A finished run."""

    folder: RunFolder
    config: dict[str, Any]
    about: dict[str, Any]
    versions: dict[str, Any]
    records: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any]
    analysis: dict[str, Any] = field(repr=False)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def partition(self) -> Partition | None:
        return self.folder.partition

    @cached_property
    def metric(self) -> Metric:
        return self.folder.metric

    @cached_property
    def traffic(self) -> np.ndarray:
        """Return the bytes sent up to the end of each round, down and up, by all clients together."""
        cost = self.about["cost"]

        def clients(*kinds: str) -> np.ndarray:
            return np.cumsum([r["clients"] + sum(len(r.get(kind, ())) for kind in kinds) for r in self.records])

        sent = clients("refused", "late")  # for nothing, but sent
        return clients("refused", "late", "dropped") * cost["bytes_down"] + sent * cost["bytes_up"]

    @cached_property
    def steps(self) -> np.ndarray | None:
        """Return the local steps of all clients up to the end of each round; None if a round's were not recorded."""
        steps = [r.get("steps") for r in self.records]
        return None if None in steps else np.cumsum(np.array(steps, int))

    @property
    def gradients(self) -> np.ndarray | None:
        """Return batch gradients computed up to the end of each round."""
        return None if self.steps is None else self.steps * int(self.about["cost"]["gradients"])

    @cached_property
    def data(self) -> Data | None:
        """Return the run's data, if this machine has them under their name; the content must be the same."""
        name, recorded = self.config["data"], self.about.get("data")
        if name.startswith(OWN):
            return None
        validation = self.config["validation"]
        held_out = None if self.partition is None or self.partition.held_out is None else self.partition.held_out
        found = find_data(name, self.config["data_folder"], validation if held_out is None else 0.0,
                          self.seed if validation and held_out is None else 0)  # fmt: skip
        found = found if found is None or held_out is None else found.hold_out(held_out)
        if found is None:
            return None
        found = found.judged_by_validation() if self.config["judged_on"] == "validation" else found
        if recorded:
            return found if found.hash == recorded["hash"] else None
        inputs = self.about.get("inputs", {})  # all that version 0.1.0 recorded
        return found if [list(found.mean), list(found.std)] == [inputs.get("mean"), inputs.get("std")] else None

    @cached_property
    def simulated(self) -> np.ndarray | None:
        """Return the simulated seconds up to the end of each round, if clients have a speed."""
        each: list[Any] = [r.get("simulated_seconds") for r in self.records]
        return None if None in each else np.cumsum(each)

    @cached_property
    def landscapes(self) -> dict[str, dict[str, Landscape]]:
        """Return landscapes by measure: a single one under the empty name, several by their own names."""

        def load(entry: dict[str, Any]) -> Landscape:
            path = self.folder.path / entry["file"]
            return _check_intact(path, lambda: Landscape.load(path))

        found = {}
        for name, entry in self.analysis.get("measures", {}).items():
            several = {"": entry} if isinstance(entry, dict) and "file" in entry else entry
            if isinstance(several, dict) and several and all(isinstance(v, dict) and "kind" in v
                                                             for v in several.values()):  # fmt: skip
                found[name] = {key: load(v) for key, v in several.items()}
        return found

    @cached_property
    def densities(self) -> dict[str, DensityCurve]:
        """Return densities: of the whole Hessian under the empty name, of its blocks by their own names."""
        measures = self.analysis.get("measures", {})
        entries = ({"": measures["density"]} if "density" in measures else {}) | measures.get("density_layers", {})

        def load(one: dict[str, Any]) -> DensityCurve:
            height = 1 / (one["size"] * one["sigma"] * (2 * np.pi) ** 0.5)
            file = read_npz(self.folder.path / one["file"])
            met = file["nodes"][file["weights"] > 0]
            ends = float(met.min()), float(met.max())
            return DensityCurve(file["grid"], file["density"], file["error"], ends, height)

        return {name: _check_intact(self.folder.path / one["file"], partial(load, one))
                for name, one in entries.items()}  # fmt: skip

    @cached_property
    def measures(self) -> dict[str, Number]:
        """Return the numbers of its analysis, by heading."""
        content = {"measures": {}, **self.analysis}
        return _check_intact(self.folder.path / "analysis.json", lambda: read_numbers(content))

    @cached_property
    def measured(self) -> list[tuple[int, dict[str, Number]]]:
        """Return what was measured during training: the round, and its numbers."""
        return [(r["round"], read_numbers(r)) for r in self.records if r.get("measures")]


@dataclass
class Group:
    """One algorithm under one configuration, over its seeds."""

    label: str
    runs: list[Run]

    def average(self, key: str) -> tuple[float, float]:
        """Return mean and sample standard deviation of a number of the summary."""
        return compute_spread([restore_number(r.summary[key]) for r in self.runs])

    def average_metric(self, name: str) -> tuple[float, float]:
        """Return the same of one of several metrics of the final model."""
        return compute_spread([restore_number(r.summary["metrics"][name]["last"]) for r in self.runs])

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def variation(self) -> str:
        """Return what differs from seed to seed, in words."""
        return describe_variation(self.runs[0].config, [r.about for r in self.runs])

    @property
    def by_seed(self) -> dict[int, float]:
        """Return the final model's metric by seed."""
        return {r.seed: float(r.summary["last"]) for r in self.runs}

    @property
    def traffic(self) -> float:
        return fmean(float(r.traffic[-1]) for r in self.runs)

    @property
    def gradients(self) -> float | None:
        return self._count_passes("gradients")

    @property
    def forwards(self) -> float | None:
        """Return the forward passes in addition to those of the gradients."""
        return self._count_passes("forwards")

    def _count_passes(self, kind: str) -> float | None:
        found = [(r.steps, r.about["cost"][kind]) for r in self.runs]
        each = [float(steps[-1]) * count for steps, count in found if steps is not None]
        return fmean(each) if len(each) == len(found) else None

    def make_curve(self, key: str, against: Axis = "round") -> Curve | None:
        """Make the curve of a key of the records over rounds, or over their cost; None where it was not recorded."""
        return self._make_curve([{r["round"]: r.get(key) for r in run.records} for run in self.runs], against)

    def make_class_curve(self, label: int) -> Curve | None:
        """Make the curve of the metric on one class; a class without a test sample has none."""
        each = [{r["round"]: r["by_class"][label] for r in run.records if label < len(r.get("by_class", ()))}
                for run in self.runs]  # fmt: skip
        return self._make_curve(each, "round")

    def _make_curve(self, seeds: list[dict[int, float | None]], against: Axis) -> Curve | None:
        rounds, values = align_seeds(seeds)
        if not len(rounds):
            return None
        x = rounds.astype(float)
        if against != "round":
            totals = []
            for run in self.runs:
                series = {"bytes": run.traffic, "gradients": run.gradients, "simulated": run.simulated}[against]
                if series is None:
                    return None
                at = {r["round"]: float(v) for r, v in zip(run.records, series, strict=True)}
                totals.append([at[t] for t in rounds])
            x = np.mean(totals, 0)
        spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
        return Curve(x, values.mean(0), spread, len(values))

    def make_measure_curve(self, heading: str) -> Curve | None:
        """Make the curve of a measure taken during training."""
        return self._make_curve([{t: found[heading][0] for t, found in run.measured if heading in found}
                            for run in self.runs], "round")  # fmt: skip

    def find_landscapes(self, name: str) -> tuple[Run, dict[str, Landscape]] | None:
        """Return the landscapes of the first seed that has this measure."""
        return next(((r, r.landscapes[name]) for r in self.runs if name in r.landscapes), None)

    def find_analysed(self, measure: str) -> Run | None:
        """Return the first seed that has this measure."""
        return next((r for r in self.runs if measure in r.analysis.get("measures", {})), None)

    def count_seeds_with(self, measure: str) -> int:
        return sum(measure in r.analysis.get("measures", {}) for r in self.runs)

    def average_profile(self, which: Profile) -> dict[str, Number]:
        """Average a measure of every layer over the seeds that have it."""
        each = [_check_intact(r.folder.path / "analysis.json", partial(read_profile, r.analysis, which))
                for r in self.runs]  # fmt: skip
        return average_seeds([one for one in each if one])

    def find_density(self, block: str = "") -> DensityCurve | None:
        """Return the density of the first seed that has one."""
        return next((r.densities[block] for r in self.runs if block in r.densities), None)

    @property
    def measures(self) -> dict[str, Number]:
        """Return mean and spread over the seeds that were analysed; of a single one, its own uncertainty."""
        return average_seeds([r.measures for r in self.runs if r.measures])


@dataclass
class Comparison:
    """Everything that a report shows. Groups are in the order in which they were given."""

    groups: list[Group]
    left_out: list[str]  # sentences
    metric: Metric

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def judged_on(self) -> str:
        """Return which samples the models were evaluated on: test or validation."""
        return str(self.runs[0].config["judged_on"])

    @cached_property
    def others(self) -> list[Metric]:
        """Return the metrics that all runs have, without the main one."""
        each = [{m.name: m for m in run.folder.metrics if m.name in run.summary.get("metrics", {})}
                for run in self.runs]  # fmt: skip
        return [m for m in each[0].values() if m.name != self.metric.name and all(m.name in one for one in each)]

    @cached_property
    def ranking(self) -> list[Group]:
        """Return the groups, the best final model first."""
        return sorted(self.groups, key=lambda g: g.average("last")[0] * (1 if self.metric.lower else -1))

    @cached_property
    def differences(self) -> dict[str, list[Any]]:
        """Return the keys of the protocol in which the runs differ."""
        found = {}
        for key in (key for key in Config.model_fields if key in list_keys("recipe")):
            values = list({json.dumps(r.config.get(key)): r.config.get(key) for r in self.runs}.values())
            if len(values) > 1:
                found[key] = values
        return found

    @cached_property
    def labels(self) -> dict[str, tuple[np.ndarray, tuple[str, ...] | None]]:
        """Return by a partition's hash: samples per client and class, and the names of the classes.

        Empty where the data are not on this machine, or are the user's own.
        """
        found: dict[str, tuple[np.ndarray, tuple[str, ...] | None]] = {}
        for run in self.runs:
            split = run.partition
            if split is None or split.hash in found or len(split.clients) > SHOWN:
                continue
            data = run.data
            if data and data.classes and max(int(c.max()) for c in split.clients) < len(data.train_targets):
                found[split.hash] = split.counts(data.train_targets, data.classes), data.class_names
        return found

    @cached_property
    def partitions(self) -> dict[str, Partition]:
        splits = [run.partition for run in self.runs if run.partition is not None]
        return {split.hash: split for split in splits if len(split.clients) <= SHOWN}


@lru_cache(4)
def find_data(name: str, folder: str | None, validation: float, seed: int) -> Data | None:
    try:
        data = datasets.load(name, folder)
        return data.with_validation(validation, seed) if validation else data
    except SteppeError:
        return None


def _check_intact(path: Path, read: Any) -> Any:
    try:
        return read()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise SteppeError(f"{path} is damaged ({error}): delete it and run steppe analyze again.") from error
