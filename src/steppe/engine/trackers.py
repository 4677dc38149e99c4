"""Trackers follow a run: they receive its configuration, every round's record, and its summary.

Any object with the three methods of `Tracker` is a tracker. The named ones write to local files, and send nothing over
a network unless asked to:

    tensorboard      events in the run's folder: tensorboard --logdir runs
    wandb            an offline run in the run's folder: wandb sync; wandb:online, or WANDB_MODE=online, sends it
    mlflow           a local file store, ./mlruns, or the one that MLFLOW_TRACKING_URI names
"""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from steppe.core.errors import SteppeError, make_missing_error, quote, suggest_name, take_first_line
from steppe.runs.folder import RunFolder
from steppe.runs.records import tabulate

log = logging.getLogger("steppe")


class Tracker(Protocol):
    """The objects that `steppe.run(…, track=[…])` accepts in addition to names."""

    def begin(self, config: dict[str, Any]) -> None:
        """Receive the configuration, before the first round of a new or resumed run."""

    def round(self, record: dict[str, Any]) -> None:
        """Receive a round's record, as in rounds.jsonl."""

    def end(self, summary: dict[str, Any] | None) -> None:
        """Receive the summary at the end; None if the run failed or was interrupted."""


class Callback:
    """A function as a tracker: it receives only the records."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        if not callable(function):
            raise SteppeError(f"watch: {quote(function)} is not a function: give one that takes a round's record.")
        self.function = function
        self.__name__ = f"watch: {getattr(function, '__name__', type(function).__name__)}"

    def begin(self, config: dict[str, Any]) -> None:
        pass

    def round(self, record: dict[str, Any]) -> None:
        self.function(record)

    def end(self, summary: dict[str, Any] | None) -> None:
        pass


class Tracking:
    """Several trackers. One that fails is named once and dropped, and the run continues."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def __call__(self, moment: str, content: dict[str, Any] | None) -> None:
        for tracker in list(self.trackers):
            try:
                getattr(tracker, moment)(copy.deepcopy(content))  # what it changes is its own
            except Exception as error:  # a tracker may raise anything, and must not end the run
                self.trackers.remove(tracker)
                why = f"{type(error).__name__}: {take_first_line(error)}".removesuffix(": ")
                name = getattr(tracker, "__name__", type(tracker).__name__)
                log.warning(f"{name} failed and is no longer used: {why}")


class TensorBoard:
    """A tracker that writes scalars per round, and the configuration and the summary as text."""

    def __init__(self, out: Path, how: str) -> None:
        self.out, self.config, self.last = out, dict[str, Any](), 0
        self.writer: Any = None

    def begin(self, config: dict[str, Any]) -> None:
        self.config = config

    def round(self, record: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.last = record["round"]
        if self.writer is None:  # purge what the run wrote after its last checkpoint, before it was resumed
            self.writer = SummaryWriter(str(self.out / "tensorboard"), purge_step=self.last)
            self.writer.add_text("config", _format_text(self.config), self.last)
        for name, value in flatten_numbers(record).items():
            self.writer.add_scalar(name, value, self.last)
        self.writer.flush()

    def end(self, summary: dict[str, Any] | None) -> None:
        if self.writer is not None:
            if summary is not None:
                self.writer.add_text("summary", _format_text(summary), self.last)
            self.writer.close()


class WandB:
    """A tracker that writes a run of the project `steppe`; a resumed run continues the same one."""

    def __init__(self, out: Path, how: str) -> None:
        self.out, self.mode = out, how or os.environ.get("WANDB_MODE", "offline")

    def begin(self, config: dict[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # crash reports would be sent even when offline
        import wandb

        id_ = find_id(self.out, "wandb", lambda: uuid4().hex[:8])
        quiet = wandb.Settings(silent=True, console="off")
        mode: Any = self.mode
        self.run = wandb.init(project="steppe", name=RunFolder(self.out).name, id=id_, resume="allow",
                              dir=str(self.out), mode=mode, config=config, settings=quiet)  # fmt: skip

    def round(self, record: dict[str, Any]) -> None:
        self.run.log(flatten_numbers(record), step=record["round"])

    def end(self, summary: dict[str, Any] | None) -> None:
        self.run.summary.update(flatten_numbers(summary or {}))
        self.run.finish(exit_code=0 if summary is not None else 1)


class MLflow:
    """A tracker that writes a run of the experiment `steppe`; a resumed run continues the same one."""

    def __init__(self, out: Path, how: str) -> None:
        self.out = out

    def begin(self, config: dict[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the store that needs no server and no database
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", Path("mlruns").absolute().as_uri()))
        self.id = find_id(self.out, "mlflow", lambda: self._create_run(config))
        self.client.update_run(self.id, status="RUNNING")

    def _create_run(self, config: dict[str, Any]) -> str:
        home = self.client.get_experiment_by_name("steppe")
        home_id = home.experiment_id if home else self.client.create_experiment("steppe")
        id_: str = self.client.create_run(home_id, run_name=RunFolder(self.out).name).info.run_id
        for name, value in config.items():
            self.client.log_param(id_, name, value)
        return id_

    def _log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step, synchronous=True)

    def round(self, record: dict[str, Any]) -> None:
        self._log(flatten_numbers(record), record["round"])

    def end(self, summary: dict[str, Any] | None) -> None:
        self._log({f"summary.{k}": v for k, v in flatten_numbers(summary or {}).items()}, 0)
        self.client.set_terminated(self.id, "FINISHED" if summary is not None else "KILLED")


# name -> (class, module, which is also the name of the extra that installs it, modes that may follow the name)
TRACKERS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "tensorboard": (TensorBoard, "tensorboard", ()),
    "wandb": (WandB, "wandb", ("online", "offline")),
    "mlflow": (MLflow, "mlflow", ()),
}


def check_trackers(words: Sequence[str]) -> None:
    """Refuse unknown names and missing packages before a run starts."""
    for word in words:
        name, colon, how = word.partition(":")
        if name not in TRACKERS:
            raise SteppeError(f"track: there is no tracker {quote(name)}{suggest_name(name, TRACKERS)}")
        _, module, ways = TRACKERS[name]
        if colon and how not in ways:
            raise SteppeError(
                f"track: {quote(word)} is unknown{suggest_name(word, [name, *(f'{name}:{way}' for way in ways)])}"
            )
        if find_spec(module) is None:
            raise make_missing_error(f"track: {name} is not installed", name)


def make_trackers(words: Sequence[str], out: Path | None) -> list[Tracker]:
    """Create the trackers that a configuration names."""
    check_trackers(words)
    if words and out is None:
        raise SteppeError(f"track: {words[0]} writes to the run's folder: give the run an output folder (out=…).")
    return [TRACKERS[word.partition(":")[0]][0](out, word.partition(":")[2]) for word in dict.fromkeys(words)]


def flatten_numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return a record's finite numbers, with nested keys joined by dots.

    >>> flatten_numbers({"loss": 0.5, "seconds": {"all": 2}, "late": [3], "note": "x", "bad": float("nan")})
    {'loss': 0.5, 'seconds.all': 2.0}
    """
    return {key: float(value) for key, value in tabulate([record])[0].items() if isinstance(value, int | float)}


def find_id(out: Path, name: str, make: Callable[[], str]) -> str:
    """Return a tracker's own ID for this run; it is created once and kept in the run's folder."""
    folder = RunFolder(out)
    known = folder.read("track.json", {})
    if name not in known:
        known[name] = make()
        folder.write("track.json", known)
    return str(known[name])


def _format_text(content: dict[str, Any]) -> str:
    return "\n".join(f"    {line}" for line in json.dumps(content, indent=1, default=str).splitlines())
