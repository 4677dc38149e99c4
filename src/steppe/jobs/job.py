"""One run to make: a configuration with its seed, and where its records go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.engine.build import build_experiment
from steppe.experiment import Experiment
from steppe.models.model_argument import take_module
from steppe.runs.folder import RunFolder
from steppe.runs.provenance import describe
from steppe.runs.same_run import find_differences, find_other_things

Own = Mapping[str, Any]

# Runs that differ only in these keys can share compiled code.
NOT_COMPILED: dict[str, Any] = {"partition": "iid", "partition_seed": None, "rounds": 1, "measure": [],
                                "personal": None, "seed": 0, "vary": None, "validation": 0.0, "judged_on": "test",
                                "running_mean": None}  # fmt: skip


def build_own(config: Config, own: Own) -> Experiment:
    """Build an experiment with the user's own objects. The class of a model is built here, from the run's seed."""
    if isinstance(kind := own.get("model"), type):
        torch.manual_seed(config.seed)
        own = {**own, "model": take_module(kind)}
    return build_experiment(config, **own)


@dataclass(frozen=True)
class Job:
    """One run. Without a folder nothing is recorded; the facts about the run are returned instead."""

    config: Config  # seed included
    label: str
    where: Path | None = None
    stage: tuple[int, ...] = ()  # jobs of a lower stage start first
    own: Own = field(default_factory=dict, compare=False, kw_only=True)  # of the user, for `build_experiment`

    @cached_property
    def group(self) -> str:
        """Return the group of the job: jobs of one group go to the same process if possible."""
        return self.config.model_copy(update=NOT_COMPILED).hash

    @cached_property
    def weight(self) -> float:
        """Return a number roughly proportional to the time that the job takes."""
        return float(self.config.rounds)

    @property
    def finished(self) -> bool:
        """Return whether the folder already holds all rounds of this run."""
        if self.where is None or not (folder := RunFolder(self.where)).finished:
            return False
        return bool(folder.stored["rounds"] == self.config.rounds)

    @property
    def rounds_done(self) -> int:
        return 0 if self.where is None else min(RunFolder(self.where).rounds_done, self.config.rounds)

    def check(self) -> None:
        """Refuse a folder that holds another run."""
        if self.where is None or not (folder := RunFolder(self.where)).exists:
            return
        changed = find_differences(folder, self.config)
        if self.own and not changed:  # a name does not say what is in an object
            changed = find_other_things(folder, describe(build_own(self.config, self.own)))
        if changed:
            raise SteppeError(f"{folder} holds a run with other settings: {', '.join(changed)}. "
                              "Choose another folder (--out, or out= in Python).")  # fmt: skip
