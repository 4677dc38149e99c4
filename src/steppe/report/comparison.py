"""What a report is made of: runs, grouped by algorithm over their seeds, and their curves."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np

from steppe import data as datasets
from steppe.config import Config, resolve
from steppe.core.errors import SteppeError
from steppe.core.metric import Metric
from steppe.data import Partition
from steppe.data.federation import Federation
from steppe.engine.build import build_algorithm
from steppe.experiment import Experiment
from steppe.flatness.landscape import Landscape
from steppe.report.measure_tables import Number, Profile, numbers, over_seeds, profile
from steppe.report.tables import size
from steppe.runs.folder import RunFolder

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
    ends: tuple[float, float]  # smallest and largest eigenvalue that were met
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
    def checked(self) -> Config:
        return resolve(self.config, str(self.folder.path / "config.json"))

    @cached_property
    def partition(self) -> Partition | None:
        return self.folder.partition

    @cached_property
    def metric(self) -> Metric:
        return self.folder.metric

    @cached_property
    def traffic(self) -> np.ndarray:
        """Bytes sent up to the end of each round, down and up, by all clients together."""
        cost = self.about["cost"]

        def clients(*kinds: str) -> np.ndarray:
            return np.cumsum([r["clients"] + sum(len(r.get(kind, ())) for kind in kinds) for r in self.records])

        sent = clients("refused", "late")  # for nothing, but sent
        return clients("refused", "late", "dropped") * cost["bytes_down"] + sent * cost["bytes_up"]

    @cached_property
    def gradients(self) -> np.ndarray | None:
        """Gradients of a batch computed up to the end of each round: who took part is a function of the settings."""
        split, config = self.partition, self.checked
        if split is None:
            return None
        built = build_algorithm(config)
        known = built.name == self.about["algorithm"]  # otherwise it was made of the user's own parts
        if any(p["part"] == "dp" and p["amplified"] and (p["secret"] or not known) for p in self.about["parts"]):
            return None  # who took part is a secret, or was drawn by a part that is not here
        local_steps = built.local_steps if known else (lambda epochs, batches: epochs * batches)
        # Neither question needs the data or the model.
        held = Federation(None, split, config.batch, config.epochs, None, config.seed, max_steps=config.max_steps)  # type: ignore[arg-type]
        schedule = Experiment(config, built, None, held, None)  # type: ignore[arg-type]
        steps = np.array([held.steps(i, local_steps) for i in range(held.clients)])
        each = [int(steps[schedule.sample(r["round"] - 1) or slice(0)].sum()) for r in self.records]
        return np.cumsum(each) * int(self.about["cost"]["gradients"])

    @cached_property
    def simulated(self) -> np.ndarray | None:
        """Simulated seconds up to the end of each round, where clients have a speed."""
        each: list[Any] = [r.get("simulated_seconds") for r in self.records]
        return None if None in each else np.cumsum(each)

    @cached_property
    def landscapes(self) -> dict[str, dict[str, Landscape]]:
        """By measure: the only one under the empty name, several by their own names."""

        def loaded(told: dict[str, Any]) -> Landscape:
            path = self.folder.path / told["file"]
            return _intact(path, lambda: Landscape.load(path))

        found = {}
        for name, told in self.analysis.get("measures", {}).items():
            several = {"": told} if isinstance(told, dict) and "file" in told else told
            if (
                isinstance(several, dict)
                and several
                and all(isinstance(v, dict) and "kind" in v for v in several.values())
            ):
                found[name] = {key: loaded(v) for key, v in several.items()}
        return found

    @cached_property
    def densities(self) -> dict[str, DensityCurve]:
        """Of the whole Hessian under the empty name, of its blocks by their own names."""
        measures = self.analysis.get("measures", {})
        told = ({"": measures["density"]} if "density" in measures else {}) | measures.get("density_layers", {})

        def loaded(one: dict[str, Any]) -> DensityCurve:
            height = 1 / (one["size"] * one["sigma"] * (2 * np.pi) ** 0.5)
            with np.load(self.folder.path / one["file"], allow_pickle=False) as file:
                met = file["nodes"][file["weights"] > 0]
                ends = float(met.min()), float(met.max())
                return DensityCurve(file["grid"], file["density"], file["error"], ends, height)

        return {name: _intact(self.folder.path / one["file"], partial(loaded, one)) for name, one in told.items()}

    @cached_property
    def measures(self) -> dict[str, Number]:
        """The numbers of its analysis, by heading."""
        return _intact(self.folder.path / "analysis.json", lambda: numbers({"measures": {}, **self.analysis}))

    @cached_property
    def measured(self) -> list[tuple[int, dict[str, Number]]]:
        """What was measured during training: the round, and its numbers."""
        return [(r["round"], numbers(r)) for r in self.records if r.get("measures")]


@dataclass
class Group:
    """One algorithm under one configuration, over its seeds."""

    label: str
    runs: list[Run]

    def over(self, key: str) -> tuple[float, float]:
        """Mean and sample standard deviation of a number of the summary."""
        return mean_and_spread([float(r.summary[key]) for r in self.runs])

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def traffic(self) -> float:
        return fmean(float(r.traffic[-1]) for r in self.runs)

    @property
    def gradients(self) -> float | None:
        found = [r.gradients for r in self.runs]
        return None if any(g is None for g in found) else fmean(float(g[-1]) for g in found if g is not None)

    def curve(self, key: str, against: Axis = "round") -> Curve | None:
        """`key` of the records over rounds, or over what they cost; None where it was not recorded."""
        return self._curve([{r["round"]: r.get(key) for r in run.records} for run in self.runs], against)

    def class_curve(self, label: int) -> Curve | None:
        """The accuracy on one class; a class without a test sample has none."""
        each = [{r["round"]: r["by_class"][label] for r in run.records if label < len(r.get("by_class", ()))}
                for run in self.runs]  # fmt: skip
        return self._curve(each, "round")

    def _curve(self, seeds: list[dict[int, float | None]], against: Axis) -> Curve | None:
        known = [{t: v for t, v in one.items() if v is not None} for one in seeds]
        rounds = sorted(set.intersection(*(set(one) for one in known)))
        if not rounds:
            return None
        values = np.array([[one[t] for t in rounds] for one in known], float)
        x = np.array(rounds, float)
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

    def measured_curve(self, heading: str) -> Curve | None:
        """A measure taken during training."""
        return self._curve([{t: found[heading][0] for t, found in run.measured if heading in found}
                            for run in self.runs], "round")  # fmt: skip

    def landscapes(self, name: str) -> tuple[Run, dict[str, Landscape]] | None:
        """Of the first seed that has any."""
        return next(((r, r.landscapes[name]) for r in self.runs if name in r.landscapes), None)

    def analysed(self, measure: str) -> Run | None:
        """The first seed with this measure."""
        return next((r for r in self.runs if measure in r.analysis.get("measures", {})), None)

    def seeds_with(self, measure: str) -> int:
        return sum(measure in r.analysis.get("measures", {}) for r in self.runs)

    def profile(self, which: Profile) -> dict[str, Number]:
        """A measure of every layer: mean and spread over the seeds that have it."""
        each = [_intact(r.folder.path / "analysis.json", lambda r=r: profile(r.analysis, which)) for r in self.runs]
        return over_seeds([one for one in each if one])

    def density(self, block: str = "") -> DensityCurve | None:
        """Of the first seed that has one."""
        return next((r.densities[block] for r in self.runs if block in r.densities), None)

    @property
    def measures(self) -> dict[str, Number]:
        """Mean and spread over the seeds that were analysed; of a single one, its own uncertainty."""
        return over_seeds([r.measures for r in self.runs if r.measures])


@dataclass
class Comparison:
    """Everything that a report shows. Groups stand in the order in which they were given."""

    groups: list[Group]
    left_out: list[str]  # sentences
    metric: Metric

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def ranking(self) -> list[Group]:
        """The best final model first."""
        return sorted(self.groups, key=lambda g: g.over("last")[0] * (1 if self.metric.lower else -1))

    @cached_property
    def differences(self) -> dict[str, list[Any]]:
        """Keys of the protocol in which the runs differ: then it was not one protocol."""
        free = {"algorithm", "settings", "add", "seed", "measure", "personal", "personal_lr", "device", "workers",
                "chunk", "executor", "compile", "store", "checkpoint_every", "evaluate_every",
                "data_folder"}  # fmt: skip
        found = {}
        for key in Config.model_fields:
            values = list({json.dumps(r.config.get(key)): r.config.get(key) for r in self.runs}.values())
            if key not in free and len(values) > 1:
                found[key] = values
        return found

    @cached_property
    def labels(self) -> dict[str, tuple[np.ndarray, tuple[str, ...] | None]]:
        """For each partition by its hash: samples of each class at each client, and the names of the classes.

        Empty where the data are not on this machine, or are the user's own.
        """
        found: dict[str, tuple[np.ndarray, tuple[str, ...] | None]] = {}
        for run in self.runs:
            split = run.partition
            if split is None or split.hash in found:
                continue
            config = run.checked
            try:
                data = datasets.load(config.data, config.data_folder)
                data = data.with_validation(config.validation, config.seed) if config.validation else data
            except SteppeError:
                continue
            told = run.about.get("inputs", {})
            same = [list(data.mean), list(data.std)] == [told.get("mean"), told.get("std")]
            if same and data.classes and max(int(c.max()) for c in split.clients) < len(data.train_targets):
                found[split.hash] = split.counts(data.train_targets, data.classes), data.class_names
        return found

    @cached_property
    def partitions(self) -> dict[str, Partition]:
        return {run.partition.hash: run.partition for run in self.runs if run.partition is not None}


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def _intact(path: Path, read_it: Any) -> Any:
    try:
        return read_it()
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise SteppeError(f"{path} is damaged ({error}): delete it and run steppe analyze again.") from error


def traffic_text(count: float) -> str:
    """
    >>> traffic_text(3 * 2**40), traffic_text(2048)
    ('3.0 TiB', '2.0 KiB')
    """
    return f"{count / 2**40:.1f} TiB" if count >= 2**40 else size(count)


def count_text(count: float | None) -> str:
    """
    >>> count_text(12_345), count_text(3_250_000), count_text(None)
    ('12,345', '3.25 million', '–')
    """
    if count is None:
        return "–"
    return f"{count / 1e6:,.2f} million" if count >= 1e6 else f"{count:,.0f}"
