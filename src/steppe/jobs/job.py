"""One run to make: a configuration with its seed, and where its records go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.runs.folder import RunFolder

# Runs that differ only in these keys can share compiled code.
NOT_COMPILED: dict[str, Any] = {"partition": "iid", "partition_seed": None, "rounds": 1, "measure": [],
                                "personal": None, "seed": 0, "vary": None}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run. Without a folder nothing is recorded; the facts about the run are returned instead."""

    config: Config  # seed included
    label: str
    where: Path | None = None
    stage: tuple[int, ...] = ()  # jobs of a lower stage start first

    @cached_property
    def group(self) -> str:
        """Jobs of one group are given to the same process where possible."""
        return self.config.model_copy(update=NOT_COMPILED).hash

    @cached_property
    def weight(self) -> float:
        """Roughly proportional to the time that the job takes."""
        return float(self.config.rounds)

    @property
    def finished(self) -> bool:
        """Whether the folder already holds all rounds of this run."""
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
        if changed := folder.differences(self.config):
            raise SteppeError(f"{folder} holds a run with other settings: {', '.join(changed)}. Choose another --out.")
