"""The command line, and rows that were never run."""

import pytest

from steppe.reproduce.make_row import describe_run
from tests.cli.conftest import steppe

__all__ = ["row_for", "steppe"]


@pytest.fixture
def row_for():
    """A row as the runner writes it, with a flat curve at this accuracy."""

    def make(cell, accuracy, seed=0, **more):
        config = cell.config.model_copy(update={"seed": seed})
        curve = [accuracy] * config.rounds
        return {"table": cell.table, "cell": cell.id, "scale": "paper", **describe_run(config), "accuracy": curve,
                "last": accuracy, "best": accuracy, "mean_of_last_ten": accuracy, "mean_of_last_fifty": accuracy,
                "seconds": {"total": 10.0}, "processes": 2, "peak_gpu_mib": 100, "hardware": "made up",
                "versions": {}, "commit": None, **more}  # fmt: skip

    return make
