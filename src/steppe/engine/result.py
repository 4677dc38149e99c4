"""The result of a finished run, and its summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from steppe.config import Config
from steppe.core.errors import RunFailed, SteppeError
from steppe.core.inputs import take
from steppe.core.layout import Tensors
from steppe.core.metric import Metric
from steppe.core.server import Server
from steppe.engine import privacy
from steppe.experiment import Experiment
from steppe.runs.folder import RunFolder, check_place
from steppe.runs.outcome import Outcome
from steppe.runs.provenance import describe, find_versions
from steppe.runs.records import Record, restore_number
from steppe.runs.trained_parameters import save_adapter


@dataclass(repr=False)
class Result(Outcome):
    """The result of a finished run: records, summary, model, and what can be made of them."""

    config: Config  # every key of the run
    history: list[Record]  # one record per round, as in rounds.jsonl
    summary: dict[str, Any]  # as in result.json
    experiment: Experiment  # all that the run was made of
    server: Server  # global model and server states after the last round
    x: Tensor  # the evaluated model, as a flat vector
    buffers: Tensors  # its running statistics
    folder: Path | None = None  # where the run was recorded
    notes: list[str] = field(default_factory=list)  # what the run said at its start

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm."""
        return self.experiment.algorithm.name

    @property
    def metric(self) -> Metric:
        """Return the main metric, by which the model was evaluated."""
        return self.experiment.task.metric

    @property
    def other_metrics(self) -> Sequence[Metric]:
        """Return the further metrics, after the main one."""
        return self.experiment.task.metrics[1:]

    @property
    def judged_on(self) -> str:
        """Return which samples the model was evaluated on."""
        return self.config.judged_on

    @property
    def accuracy(self) -> float:
        """Return the accuracy of the final model, if it is one of the run's metrics."""
        if self.metric.name == "accuracy":
            return self.score
        if "accuracy" not in self.metrics:
            raise SteppeError(f"The metric of this run is {self.metric.name}, so it has no accuracy: use result.score.")
        return self.metrics["accuracy"]

    @cached_property
    def model(self) -> nn.Module:
        """Return the trained module, ready to predict or to train on, with an ordinary state_dict().

        It is a copy, made at the first call: what is done to it changes neither the records nor what `save` writes.
        """
        return self.experiment.task.module(self.x, self.buffers)

    def example(self) -> Any:
        """Return two test samples as the model sees them."""
        federation = self.experiment.federation
        return federation.plain(take(federation.data.test_inputs, slice(2)))

    def save(self, path: str | Path) -> Path:
        """Write the folder that the run would have left with `out=path`, without checkpoints; steppe.load reads it."""
        check_place(path)
        folder, e = RunFolder(path), self.experiment
        if folder.exists:
            raise SteppeError(f"{path} already holds a run: choose another folder.")
        with folder.lock():
            folder.prepare(self.config, describe(e), find_versions(self.x.device), e.federation.partition, self.history)
            save_adapter(self.experiment.task.module(self.x, self.buffers), folder.path)
            folder.finish(self.experiment.task.state_dict(self.x, self.buffers), self.history, self.summary)
        return folder.path


def summarize(experiment: Experiment, records: list[Record], judged: Record, chosen: int) -> dict[str, Any]:
    """Summarise a run. `last` and `loss` are those of the last round or, with early stopping, of the chosen one."""
    metric = experiment.task.metric
    found = {m.name: _summarize_metric(m, records, judged) for m in experiment.task.metrics}
    main = found[metric.name] or {"last": None, "mean_of_last_ten": None, "best": None}
    missing = sum(len(r.get(kind, ())) for r in records for kind in ("dropped", "late"))
    simulated = [r["simulated_seconds"] for r in records if "simulated_seconds" in r]
    failures = ({"missing": missing} if missing else {}) | ({"simulated_seconds": sum(simulated)} if simulated else {})
    summary = {
        "algorithm": experiment.algorithm.name, "metric": metric.name,
        "rounds": records[-1]["round"] if records else 0, "model_of_round": chosen, "last": main["last"],
        "mean_of_last_ten": main["mean_of_last_ten"], "best": main["best"], "loss": judged.get("loss"),
        "evaluations": sum(metric.name in r for r in records),
        "metrics": {name: one for name, one in found.items() if one},
        "seconds": round(sum(r["seconds"]["all"] for r in records), 3),
    }  # fmt: skip
    refused = sum(len(r.get("refused", ())) for r in records)
    spent = privacy.compute_spent(experiment.algorithm, summary["rounds"])
    return summary | failures | ({"refused": refused} if refused else {}) | spent


def _summarize_metric(metric: Metric, records: list[Record], judged: Record) -> dict[str, Any]:
    """Return a metric's last, mean and best values with its direction; {} if it was never computed."""
    name = metric.name
    found = [r for r in records if name in r] or [r for r in (judged,) if name in r]
    curve = [restore_number(r[name]) for r in found]  # rounds before a resumed run began are read from its records
    if not curve:
        return {}
    tail = curve[-10:]
    return {"last": judged.get(name), "mean_of_last_ten": sum(tail) / len(tail), "best": metric.best(curve),
            "direction": metric.record["direction"]}  # fmt: skip


def check_converged(summary: dict[str, Any], where: object = None) -> None:
    """Raise an error if a run ended with a loss or a main metric that is not finite. `where` has its records."""
    if summary.get("last") is None and not summary.get("metrics"):  # there are no test data
        return
    kept = f" What was recorded is in {where}." if where else ""
    if not math.isfinite(restore_number(summary.get("loss"))):
        raise RunFailed(
            f"The loss of the final model is not finite: the run has diverged. Lower lr, or set clip = 10.{kept}"
        )
    if not math.isfinite(restore_number(summary.get("last"))):
        metric = summary.get("metric", "metric")
        raise RunFailed(f"The {metric} of the final model is not finite, although its loss is.{kept}")
