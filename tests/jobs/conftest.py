"""Jobs that only pretend to train."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from steppe.core.metric import Metric
from steppe.jobs import places
from steppe.runs.folder import RunFolder

METRIC = Metric("accuracy", percent=True)


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let jobs in this process end as their learning rate says; the validation metric is highest at rho = 0.1.

    The test metric is the opposite of the validation metric: whoever chooses by it chooses wrong. Returns the
    configurations of the jobs that were started.
    """
    started: list[dict[str, Any]] = []

    def perform(request: dict[str, Any], emit: Any) -> None:
        config, where = request["config"], request["where"]
        started.append(config)
        if config["lr"] in (2, 3, 4):
            emit({2: {"error": "it diverged."}, 3: {"gone": "its process was ended by signal 9"},
                  4: {"error": "ValueError: odd", "trace": "Traceback …"}}[config["lr"]])  # fmt: skip
            return
        score = 0.9 - 0.1 * math.log10(config["settings"].get("rho", 0.1) / 0.1) ** 2 + 0.001 * config["seed"]
        records: list[dict[str, Any]] = []
        for t in range(1, config["rounds"] + 1):
            records.append({"round": t, "accuracy": 1 - score})
            records[-1] |= {"validation_accuracy": score} if config["validation"] else {}
            emit({"round": t, "state": METRIC.text(1 - score)})
        summary = {"rounds": config["rounds"], "model_of_round": config["rounds"], "last": 1 - score,
                   "mean_of_last_ten": 0.5, "loss": 1.0, "seconds": 0.1}  # fmt: skip
        if where:
            folder = RunFolder(Path(where))
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.write("config.json", config)
            folder.write("about.json", {"format": 2, "metric": METRIC.record})
            (folder.path / "rounds.jsonl").unlink(missing_ok=True)
            for record in records:
                folder.append(record)
            folder.write("result.json", summary)
        emit({"done": {} if where else {"summary": summary}, "text": METRIC.text(1 - score)})

    monkeypatch.setattr(places, "perform", perform)
    return started
