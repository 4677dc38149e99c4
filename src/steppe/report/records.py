"""Runs read back from their folders and grouped for a report: one group an algorithm, one run a seed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np

from steppe import data as datasets
from steppe.config import Config, resolve
from steppe.data import Partition
from steppe.data.federation import Federation
from steppe.errors import SteppeError
from steppe.flatness.landscape import Landscape
from steppe.report.analysis import Number, numbers, over_seeds
from steppe.report.tables import size
from steppe.simulate import folder
from steppe.simulate.setup import Experiment, build_algorithm

Axis = Literal["round", "bytes", "gradients", "simulated"]
LANDSCAPES = {
    "landscape": "Along the two largest eigenvectors of the Hessian",
    "landscape_random": "Along two random directions, normalised filter by filter",
    "plane": "Through three models",
    "line": "Along the largest eigenvector",
    "line_runs": "From one run's model to another's",
}


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


@dataclass
class Run:
    """A finished run."""

    folder: Path
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
        return resolve(self.config, str(self.folder / "config.json"))

    @cached_property
    def partition(self) -> Partition | None:
        path = self.folder / "partition.json"
        return Partition.load(path) if path.exists() else None

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
    def landscapes(self) -> dict[str, Landscape]:
        """Those of the whole federation, by the names of their measures."""
        found = {name: self.folder / "analysis" / f"{name}.npz" for name in LANDSCAPES}
        return {name: _intact(path, lambda path=path: Landscape.load(path))
                for name, path in found.items() if path.exists()}  # fmt: skip

    @cached_property
    def density(self) -> DensityCurve | None:
        path = self.folder / "analysis" / "density.npz"

        def read() -> DensityCurve:
            with np.load(path, allow_pickle=False) as file:
                return DensityCurve(file["grid"], file["density"], file["error"])

        return _intact(path, read) if path.exists() else None

    @cached_property
    def measures(self) -> dict[str, Number]:
        """The numbers of its analysis, by heading."""
        return _intact(self.folder / "analysis.json", lambda: numbers({"measures": {}, **self.analysis}))

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

    def landscape(self, name: str) -> tuple[Run, Landscape] | None:
        """Of the first seed that has one."""
        return next(((r, r.landscapes[name]) for r in self.runs if name in r.landscapes), None)

    @property
    def density(self) -> DensityCurve | None:
        """Of the first seed that has one."""
        return next((r.density for r in self.runs if r.density is not None), None)

    @property
    def measures(self) -> dict[str, Number]:
        """Mean and spread over the seeds that were analysed; of a single one, its own uncertainty."""
        return over_seeds([r.measures for r in self.runs if r.measures])


@dataclass(frozen=True)
class Metric:
    """What `accuracy` in the records is: a share, or a number of the user's own that may be better when lower."""

    name: str
    percent: bool
    lower: bool

    def told(self, value: float, sign: bool = False) -> str:
        plus = "+" if sign else ""
        return f"{100 * value:{plus}.2f}" if self.percent else f"{value:{plus}.4g}"

    def pair(self, mean: float, spread: float, seeds: int) -> str:
        return f"{self.told(mean)} ± {self.told(spread)}" if seeds > 1 else self.told(mean)

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""


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
