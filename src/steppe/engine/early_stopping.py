"""Early stopping: the best round so far by its loss or a metric on the validation data."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from torch.utils._pytree import tree_map

from steppe.core.errors import RunFailed
from steppe.core.metric import Metric
from steppe.core.server import Server
from steppe.runs import checkpoint
from steppe.runs.client_store import MemoryStore
from steppe.runs.folder import RunFolder

LOSS = Metric("loss", lower=True)


@dataclass
class Best:
    """The best validation loss so far, or that of another metric. The test set is not used for early stopping."""

    loss: float | None = None  # or the metric's value
    round: int = 0
    since: int = 0  # evaluations since the best one
    server: Server | None = None
    by: Metric = LOSS

    def update(self, record: dict[str, Any], server: Server, folder: RunFolder | None) -> None:
        """Compare a round's record with the best one; keep and save the server of a better round."""
        if "validation_loss" not in record:  # a round without evaluation
            return
        self.since += 1
        value = record.get(f"validation_{self.by.name}", nan)  # absent where it is not defined; nan is never the best
        if isfinite(value) and (self.loss is None or self.by.is_better(value, self.loss)):
            self.loss, self.round, self.since, self.server = value, record["round"], 0, server
            if folder is not None:
                checkpoint.save(folder.best, record["round"], server, MemoryStore(dict), {})

    def is_over(self, patience: int | None) -> bool:
        """Return whether `patience` evaluations have passed without an improvement."""
        return patience is not None and self.since >= patience

    def list_notes(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"loss": self.loss, "round": self.round, "since": self.since}

    def restore(self, server: Server, folder: RunFolder | None) -> Server:
        """Return the server of the best round; after a resume it may only be on disk."""
        if self.server is None and folder is not None:
            saved, _ = checkpoint.load(folder.best, MemoryStore(dict))
            if saved is None or saved.round != self.round:
                raise RunFailed(f"The best model so far, of round {self.round}, should be in {folder.best}, but is "
                                "missing or damaged: start the run again.")  # fmt: skip
            self.server = tree_map(lambda t: t.to(server.x.device), saved.server)
        return self.server or server
