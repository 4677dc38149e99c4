"""Metrics that are not finite: null in records, which is neither damage nor a lack of test data."""

import json
import math

import pytest
import torch
from torch import nn

import steppe
from steppe.core.errors import RunFailed, SteppeError

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)
LABELS = torch.arange(120) % 2
KEYS = {"clients": 4, "per_round": 2, "partition": "iid", "epochs": 1, "rounds": 3, "progress": False}
TOO_FAST = 3000.0  # the squares of the errors overflow; the weights do not


class Linear(nn.Module):
    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(6, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class TwoClasses(Linear):
    def __init__(self) -> None:
        super().__init__(2)


REGRESSION = (X, Y, X[:30], Y[:30])
ONE_CLASS = (X, LABELS, X[:30:2], LABELS[:30:2])  # no ranking, so no AUC
UNTESTED = (X, Y, X[:0], Y[:0])


def test_a_run_that_diverged_can_be_loaded_resumed_and_is_no_damaged_one(tmp_path):
    here = tmp_path / "run"
    one = steppe.run("fedavg", Linear(), REGRESSION, out=here, lr=TOO_FAST, **KEYS)
    assert math.isinf(one.score)
    before = (here / "result.json").read_text()
    assert json.loads(before)["last"] is None
    found = steppe.load(here)
    assert math.isnan(found.score)
    assert "mse not finite after 3 rounds" in repr(found)
    again = steppe.run("fedavg", Linear(), REGRESSION, out=here, resume=True, lr=TOO_FAST, **KEYS)
    assert math.isnan(again.score)
    assert "mse not finite" in repr(again)
    assert (here / "result.json").read_text() == before
    longer = steppe.run("fedavg", Linear(), REGRESSION, out=here, resume=True, lr=TOO_FAST, **KEYS | {"rounds": 4})
    assert longer.summary["rounds"] == 4
    with pytest.raises(SteppeError, match="run: the final mse is not finite"):
        steppe.write_report([here], tmp_path / "page.md")


def test_a_metric_that_is_not_finite_makes_no_failure_of_a_run_but_of_a_comparison(tmp_path):
    here = tmp_path / "run"
    steppe.run("fedavg", TwoClasses(), ONE_CLASS, metric="auc", out=here, lr=0.01, **KEYS)
    longer = steppe.run("fedavg", TwoClasses(), ONE_CLASS, metric="auc", out=here, resume=True, lr=0.01,
                        **KEYS | {"rounds": 4})  # fmt: skip
    assert math.isnan(longer.score)
    with pytest.raises(RunFailed, match=r"The auc of the final model is not finite, although its loss is\.$"):
        steppe.compare(["fedavg", "fedsam"], TwoClasses, ONE_CLASS, metric="auc", lr=0.01, **KEYS)


def test_what_diverged_counts_as_failed_whatever_the_metric():
    found = steppe.sweep("fedavg", {"lr": [0.01, TOO_FAST]}, Linear, REGRESSION, jobs=1, **KEYS)
    assert "has diverged" in found.failed[f"lr={TOO_FAST}"][0]
    assert found.best.settings == {"lr": 0.01}
    with pytest.raises(RunFailed, match="the run has diverged"):
        steppe.compare(["fedavg", "fedsam"], Linear, REGRESSION, lr=TOO_FAST, **KEYS)


def test_without_test_data_there_is_nothing_to_compare():
    with pytest.raises(RunFailed, match="no test data, so there is nothing to compare"):
        steppe.compare(["fedavg", "fedsam"], Linear, UNTESTED, lr=0.01, **KEYS)


@pytest.mark.parametrize("key", ["loss", "mean_of_last_ten", "best"])
def test_other_numbers_that_are_not_finite_are_shown_as_such(tmp_path, key):
    here = tmp_path / "run"
    steppe.run("fedavg", Linear(), REGRESSION, out=here, lr=0.01, **KEYS)
    summary = json.loads((here / "result.json").read_text())
    (here / "result.json").write_text(json.dumps(summary | {key: None}))
    for page, cell in (("page.md", "| nan |"), ("page.html", ">nan</td>")):
        assert cell in steppe.write_report(here, tmp_path / page).read_text()
