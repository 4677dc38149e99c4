"""Losses and metrics by name and as functions: what counts, where the classes are, what records say."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tools.docs.folder_page import TABLES
from torch import Tensor, nn

import steppe
from steppe.core.errors import SteppeError
from steppe.core.losses import IGNORED, weigh_targets
from steppe.core.metric import TAKEN
from steppe.report.compare_table import Line
from tests.scene import blobs, seeded

FEW: dict[str, Any] = {"clients": 3, "per_round": 2, "rounds": 2, "epochs": 1, "batch": 4, "partition": "iid",
                       "workers": 0, "dtype": "float64", "progress": False}  # fmt: skip


class Repeat(nn.Module):
    """Predicts every token as itself, with certainty, and has one parameter that changes nothing."""

    def __init__(self, vocabulary: int, axis: int = -1) -> None:
        super().__init__()
        self.vocabulary, self.axis = vocabulary, axis
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        one = (x[..., None] == torch.arange(self.vocabulary)).to(self.shift.dtype)
        return (100 * one + self.shift).movedim(-1, self.axis)


class Tokens(nn.Module):
    """A learned table of logits per token."""

    def __init__(self, vocabulary: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


def masked_text(n: int = 16, time: int = 6, vocabulary: int = 5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, vocabulary, (n, time), generator=g)
    y = (x + 1) % vocabulary
    for i in range(n):
        y[i, i % time :] = -100  # some examples have few tokens that count, and some none
    return x, y


def test_a_perfect_model_on_half_masked_text_is_perfect() -> None:
    x = torch.randint(0, 5, (12, 8))
    y = x.clone()
    y[:, 4:] = -100
    result = steppe.run("fedavg", Repeat(5), (x, y, x, y), metrics=["accuracy", "perplexity"], **FEW)
    assert result.accuracy == 1.0
    assert result.metrics["perplexity"] == pytest.approx(1.0)
    assert [n for n in result.history[-1] if n in ("accuracy", "perplexity")] == ["accuracy", "perplexity"]


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_ignored_tokens_count_nowhere(executor: str) -> None:
    """The loss of a batch is PyTorch's mean, also with padded batches; the evaluation is the mean over all tokens."""
    x, y = masked_text()
    torch.manual_seed(0)
    model = Tokens().double()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    result = steppe.run("fedavg", model, (x, y, x, y), executor=executor, lr=0.5, weight_decay=0.0,
                        **{**FEW, "rounds": 1, "clients": 1, "per_round": 1, "batch": 16})  # fmt: skip
    by_hand = Tokens().double()
    by_hand.load_state_dict(start)
    F.cross_entropy(by_hand(x).movedim(-1, 1), y).backward()
    with torch.no_grad():
        by_hand.table.weight -= 0.5 * by_hand.table.weight.grad
        torch.testing.assert_close(result.model.state_dict()["table.weight"], by_hand.table.weight.data)
        wanted = F.cross_entropy(by_hand(x).movedim(-1, 1), y)
        real = y != -100
        assert result.history[-1]["loss"] == pytest.approx(float(wanted))
        assert result.accuracy == pytest.approx(float((by_hand(x).argmax(-1) == y)[real].double().mean()))


def test_another_index_is_ignored_by_loss_and_metrics() -> None:
    x = torch.randint(1, 5, (12, 8))
    x[:, 5:] = 0  # padding, which the model gets wrong
    y = torch.where(x == 0, 0, x)
    worse = torch.where(x == 0, 1, x)
    for loss, wanted in (("cross_entropy", 5 / 8), ("cross_entropy:ignore_index=0", 1.0)):
        result = steppe.run("fedavg", Repeat(6), (worse, y, worse, y), loss=loss, metrics="accuracy,top5", **FEW)
        assert result.accuracy == pytest.approx(wanted)
        assert result.config.loss == loss


def test_a_ranking_leaves_out_what_the_loss_ignores() -> None:
    """Of plain labels, of pixels and of tokens, also if there are as many pixels per side as classes."""
    x, y, test_x, test_y = blobs()
    g = torch.Generator().manual_seed(0)
    pixels = torch.randn(20, 1, 4, 4, generator=g)
    classes = (pixels[:, 0] > 0).long() + 2 * (pixels[:, 0] > 1).long()
    classes[:, 0] = -100
    text, words = masked_text()
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 4, 1))
    for model, data, loss, ignored, axis in (
        (seeded(), (x, y, test_x, test_y), "cross_entropy:ignore_index=0", 0, 1),
        (net, (pixels, classes, pixels, classes), "cross_entropy", -100, 1),
        (Tokens(), (text, words, text, words), "cross_entropy", -100, -1),
    ):
        result = steppe.run("fedavg", model, data, loss=loss, metrics="auc", **FEW)
        scores = result.model(data[2] if data[2].dtype == torch.int64 else data[2].double()).softmax(axis)
        scores, labels = scores.movedim(axis, -1).flatten(0, -2), data[3].flatten()
        areas = []
        for label in set(labels.tolist()) - {ignored}:
            own, other = (scores[kept, label] for kept in (labels == label, (labels != label) & (labels != ignored)))
            above = own[:, None] - other
            areas.append(((above > 0).double() + (above == 0) / 2).mean().item())
        assert result.score == pytest.approx(sum(areas) / len(areas), abs=1e-6)


def test_a_direction_is_no_text() -> None:
    with pytest.raises(SteppeError, match="lower of the metric gap is 'higher', but must be True or False"):
        steppe.Metric("gap", gap, lower="higher")  # type: ignore[arg-type]


def test_what_records_and_tables_contain_is_no_name_of_a_metric() -> None:
    columns = re.findall(r"^ +(\w+)", TABLES["rounds.jsonl"] + TABLES["result.json"], re.M)
    assert {*columns, *(field.name for field in fields(Line))} - {"validation_"} <= TAKEN


def test_a_metric_has_one_function() -> None:
    with pytest.raises(SteppeError, match="spread has each and tally: give it one of them"):
        steppe.Metric("spread", spread, tally=spread, finish=float)


def test_a_plain_label_may_be_ignored() -> None:
    """It has no weight; by default, plain labels need no weights."""
    each, labels = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 2])
    assert weigh_targets(each, labels, IGNORED) is each
    values, weights = weigh_targets(each, labels, 1)
    assert values is each
    assert weights.tolist() == [1, 0, 1]


@pytest.mark.parametrize("size", [4, 3])
def test_segmentation_has_its_classes_where_pytorch_has_them(size: int) -> None:
    """Also where classes, height and width are equal, which no shape can tell."""
    x = torch.randint(0, 4, (12, size, size))
    perfect = steppe.run("fedavg", Repeat(4, axis=1), (x, x, x, x), metrics=["accuracy", "iou", "dice"], **FEW)
    assert perfect.metrics == {"accuracy": 1.0, "iou": 1.0, "dice": 1.0}
    assert perfect.history[-1]["loss"] < 1e-6
    last = steppe.run("fedavg", Repeat(4), (x, x, x, x), loss="cross_entropy:axis=-1", **FEW)
    assert last.accuracy == 1.0
    assert any("first or last" in note for note in perfect.notes) == (size == 4)
    assert not any("first or last" in note for note in last.notes)


def test_overlap_by_hand() -> None:
    truth = torch.tensor([[[0, 0, 1, 1]], [[1, 1, -100, 2]]])
    found = torch.tensor([[[0, 1, 1, 1]], [[1, 0, 0, 2]]])
    result = steppe.run("fedavg", Repeat(4, axis=1), (found, truth, found, truth), metrics=["iou", "dice", "accuracy"],
                        **{**FEW, "clients": 1, "per_round": 1})  # fmt: skip
    # class 0: 1 of 3; class 1: 3 of 5; class 2: 1 of 1; class 3 occurs nowhere
    assert result.metrics["iou"] == pytest.approx((1 / 3 + 3 / 5 + 1) / 3)
    assert result.metrics["dice"] == pytest.approx((2 / 4 + 6 / 8 + 1) / 3)
    assert result.metrics["accuracy"] == pytest.approx(5 / 7)


@pytest.mark.parametrize("loss", ["bce", "dice"])
def test_losses_for_masks_are_learned(loss: str) -> None:
    x = torch.randn(40, 1, 4, 4)
    y = (x > 0).float()
    torch.manual_seed(0)
    result = steppe.run("fedavg", nn.Conv2d(1, 1, 1), (x, y[:, 0], x, y[:, 0]), loss=loss, metrics=["dice", "accuracy"]
                        if loss == "bce" else "dice", lr=1.0, **{**FEW, "rounds": 8})  # fmt: skip
    assert result.score > 0.9 > 0.5 > result.history[-1]["loss"]
    assert result.summary["metric"] == "dice"


def test_several_labels_per_example_and_their_ranking() -> None:
    x = torch.randn(60, 3)
    y = (x > 0).long()
    torch.manual_seed(0)
    result = steppe.run("fedavg", nn.Linear(3, 3), (x, y, x, y), loss="bce", metrics=["accuracy", "auc"], lr=1.0,
                        **{**FEW, "rounds": 4})  # fmt: skip
    outputs = result.model(x.double()).detach()
    assert result.accuracy == pytest.approx(float(((outputs > 0) == (y > 0)).double().mean()))
    pairs = [(outputs[y[:, k] == 1, k][:, None] > outputs[y[:, k] == 0, k][None]).double().mean() for k in range(3)]
    assert result.metrics["auc"] == pytest.approx(float(sum(pairs) / 3))


def test_regression_metrics_and_directions() -> None:
    x = torch.randn(40, 2)
    y = x[:, 0]
    result = steppe.run("fedavg", nn.Linear(2, 1), (x, y, x, y), metrics=["mae", "rmse", "mse"], **FEW)
    errors = (result.model(x.double())[:, 0] - y).detach()
    assert result.score == pytest.approx(float(errors.abs().mean()))
    assert result.metrics["rmse"] == pytest.approx(float(errors.square().mean().sqrt()))
    assert result.summary["best"] == min(r["mae"] for r in result.history)
    assert {one["direction"] for one in result.summary["metrics"].values()} == {"lower"}


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.std(1)


def gap(outputs: Tensor, targets: Tensor) -> float:
    """Of all predictions at once."""
    return float(outputs.max() - outputs.min())


def test_own_metrics_are_recorded_with_their_names_and_directions(tmp_path: Path) -> None:
    own = [("spread", spread, "lower"), "accuracy", steppe.Metric("gap", on_all=gap)]
    out = tmp_path / "r"
    result = steppe.run("fedavg", seeded(), blobs(), metrics=own, out=out, validation=0.1, early_stopping=5,
                        early_stopping_by="accuracy", **FEW)  # fmt: skip
    outputs = result.model(blobs()[2].double()).detach()
    assert result.score == pytest.approx(float(outputs.std(1).mean()))
    assert result.metrics["gap"] == pytest.approx(float(outputs.max() - outputs.min()))
    assert result.summary["best"] == min(r["spread"] for r in result.history)
    told = json.loads((out / "about.json").read_text())
    assert [(m["name"], m["direction"]) for m in told["metrics"]] == [("spread", "lower"), ("accuracy", "higher"),
                                                                      ("gap", "higher")]  # fmt: skip
    assert json.loads((out / "config.json").read_text())["metrics"] == ["own:" + __name__ + ".spread", "accuracy",
                                                                        "own:gap"]  # fmt: skip
    with (out / "rounds.csv").open() as file:
        columns = next(csv.reader(file))
    assert {"spread", "accuracy", "gap", "validation_spread", "validation_accuracy", "validation_gap"} <= set(columns)
    measured = steppe.analyze(out, "local_score", model=seeded(), data=blobs(), metrics=own)
    assert measured["local_score"]["given"] == pytest.approx(result.score, abs=1.0)


def test_early_stopping_by_a_metric() -> None:
    """The chosen round is the best by what was named, in its direction."""
    rounds = {}
    for by, direction in (("loss", "lower"), ("spread", "lower"), ("spread", "higher")):
        metric = ("spread", spread, "lower" if by == "loss" else direction)
        result = steppe.run("fedavg", seeded(), blobs(), validation=0.3, early_stopping=100, early_stopping_by=by,
                            metrics=["accuracy", metric], lr=2.0, **{**FEW, "rounds": 10})  # fmt: skip
        values = [r[f"validation_{by}"] for r in result.history]
        rounds[by, direction] = values.index(min(values) if direction == "lower" else max(values)) + 1
        assert result.summary["model_of_round"] == rounds[by, direction]
    assert len(set(rounds.values())) == 3


def test_early_stopping_does_not_stay_at_a_metric_that_is_not_a_number() -> None:
    """An evaluation without a value is one without improvement, whether the metric is the main one or not."""

    def choose(scores: list[float], *before: str) -> tuple[int, int]:
        values = iter(scores)
        metric = steppe.Metric("score", on_all=lambda o, t: next(values))
        result = steppe.run("fedavg", seeded(), blobs(), validation=0.3, early_stopping=2, early_stopping_by="score",
                            judged_on="validation", metrics=[*before, metric], **{**FEW, "rounds": 4})  # fmt: skip
        return result.summary["model_of_round"], result.summary["rounds"]

    def twice(*scores: float) -> list[float]:
        return [v for v in scores for _ in range(2)]  # each round is evaluated on the same samples under two names

    nan = float("nan")
    for before in ((), ("accuracy",)):
        assert choose(twice(nan, 0.1, 0.3, 0.2), *before) == (3, 4)
        assert choose(twice(0.5, nan, nan), *before) == (1, 3)


def test_a_function_without_a_direction_is_told() -> None:
    result = steppe.run("fedavg", seeded(), blobs(), metric=spread, **FEW)
    assert any("higher is taken to be better" in note for note in result.notes)
    told = steppe.run("fedavg", seeded(), blobs(), metric=steppe.Metric(spread, lower=True), **FEW)
    assert not any("direction" in note for note in told.notes)
    assert told.summary["best"] == min(r["spread"] for r in told.history)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"loss": "cross_entropy:ignore=0"}, "the loss cross_entropy has no setting 'ignore'; did you mean 'ignore_index'"),
    ({"loss": "cross_entropy:ignore_index=x"}, "ignore_index of the loss cross_entropy is 'x', but must be a number"),
    ({"loss": 3}, "loss is 3, but must be a name or a function"),
    ({"loss": nn.MSELoss}, r"give an instance, MSELoss\(\)"),
    ({"metrics": "acuracy"}, "no metric 'acuracy'; did you mean 'accuracy'"),
    ({"metrics": ["accuracy", "accuracy"]}, "two metrics 'accuracy'"),
    ({"metrics": ["accuracy"], "metric": "mse"}, "both given"),
    ({"metrics": [("gap", gap, "down")]}, "must be 'lower' or 'higher'"),
    ({"metrics": lambda o, t: o[:, 0]}, "cannot be the name of a metric"),
    ({"metrics": [("loss", spread, "lower")]}, "cannot be called loss"),
    ({"metrics": [("running_mean", spread, "lower")]}, "cannot be called running_mean"),
    ({"metrics": [("seconds.all", spread, "lower")]}, "cannot be called seconds.all"),
    ({"metrics": [("loss_std", spread, "lower")]}, "cannot be called loss_std"),
    ({"loss": "cross_entropy:axis=7"}, "axis 7 of the outputs cannot be that of the classes"),
    ({"metrics": [("accuracy", spread, "lower")]}, "cannot be better when lower"),
    ({"metrics": [("test_Accuracy", spread, "lower")]}, "cannot be better when lower"),
    ({"metrics": "top5"}, "with at most five classes"),
    ({"loss": lambda o, t: (o.argmax(1) != t).float()}, "loss has no gradient"),
    ({"metrics": [steppe.Metric("empty")]}, "has no function"),
    ({"metrics": [steppe.Metric("gap", gap)]}, "on_all=f"),
    ({"metrics": [steppe.Metric("broken", on_all=lambda o, t: o[9999])]}, "metric broken fails on all outputs"),
    ({"metrics": 3}, "a metric is 3, but must be a name"),
    ({"metrics": {"gap": gap}}, r"metrics is a dictionary: give a list, such as \[\("),
    ({"metrics": [steppe.Metric("gap", spread, finish=lambda v: 1 / 0)]}, "finish of the metric gap fails on .*Zero"),
    ({"metrics": [steppe.Metric("gap", spread, finish=lambda v: "x")]}, "finish of the metric gap fails on"),
    ({"metrics": [("far", lambda o, t: t.zero_() + o[:, 0], "lower")]}, "metric far changes its targets in place"),
    ({"loss": lambda o, t: F.cross_entropy(o.mul_(2), t, reduction="none")}, "loss changes its outputs in place"),
    ({"loss": lambda o, t: o.argmax(1) != t}, "loss returns values of type bool, so the loss has no gradient"),
    ({"loss": lambda o, t: o[:, 0] / 0 * 0}, "loss is nan for every sample of the first batch, before any training"),
    ({"loss": "mse"}, "loss fails on outputs .*: it needs one output per target, in the shape of the targets"),
    ({"metrics": "perplexity", "loss": "mse"}, "loss fails on outputs"),
    ({"metrics": "iou"}, "metric iou fails .*: one label per sample has no overlap"),
    ({"early_stopping": 2, "validation": 0.1, "early_stopping_by": "auc"}, "no such metric; known: accuracy, loss"),
])  # fmt: skip
def test_what_is_wrong_is_a_sentence(options: dict[str, Any], sentence: str) -> None:
    data = (blobs()[0], blobs()[1], *blobs()[:2])
    with pytest.raises(SteppeError, match=sentence):
        steppe.run("fedavg", seeded(), data, **FEW, **options)


def test_a_mistake_in_a_loss_leaves_the_data_as_they_are() -> None:
    x, y, *_ = blobs()
    mine = y.clone()
    with pytest.raises(SteppeError, match="changes its targets in place"):
        steppe.run("fedavg", seeded(), (x, mine, x, mine), loss=lambda o, t: t.clamp_(max=0) + o[:, 0], **FEW)
    assert torch.equal(mine, y)


def test_a_function_with_settings_has_its_own_name() -> None:
    loss = partial(F.cross_entropy, reduction="none", label_smoothing=0.1)
    assert steppe.run("fedavg", seeded(), blobs(), loss=loss, **FEW).metric.name == "cross_entropy"


def test_a_metric_that_is_not_a_number_at_the_end_counts_as_failed(tmp_path: Path) -> None:
    """Its run is kept; what compares runs leaves it out and says so. An early one is no reason to."""
    rounds: list[int] = []

    def never(outputs: Tensor, targets: Tensor) -> float:
        return float("nan")

    def first_not(outputs: Tensor, targets: Tensor) -> float:
        rounds.append(len(rounds))
        return float("inf") if len(rounds) == 1 else 1.0

    one = steppe.run("fedavg", seeded(), blobs(), metric=steppe.Metric("a", on_all=never), out=tmp_path / "a", **FEW)
    assert one.score != one.score
    assert repr(steppe.load(tmp_path / "a")).startswith("<Run of fedavg: a not finite after 2 rounds")
    with pytest.raises(SteppeError, match="a: the final a is not finite"):
        steppe.write_report(tmp_path / "a", tmp_path / "a.md")
    for call in (steppe.compare, lambda *these, **few: steppe.sweep("fedavg", {"lr": [0.1]}, *these[1:], **few)):
        with pytest.raises(SteppeError, match="the first because: The a of the final model is not finite"):
            call(["fedavg"], seeded(), blobs(), metric=steppe.Metric("a", on_all=never), **FEW)
    found = steppe.compare(["fedavg"], seeded(), blobs(), metric=steppe.Metric("b", on_all=first_not), **FEW)
    assert found.lines[0].last == (1.0, 0.0)
    assert found.report(tmp_path / "b.md").exists()


def test_targets_that_are_the_inputs_are_told() -> None:
    ids = torch.arange(40).reshape(8, 5) % 7
    last = torch.full((8, 1), -100)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    notes = {shifted: steppe.run("fedavg", model, (ids, y, ids, y), **FEW).notes
             for shifted, y in ((False, ids), (True, torch.cat([ids[:, 1:], last], 1)))}  # fmt: skip
    assert any("needs targets that are shifted by one place" in note for note in notes[False])
    assert not notes[True]


@pytest.mark.parametrize(("outputs", "targets", "metric", "sentence"), [
    (1, torch.linspace(-2, 2, 40)[:, None], "accuracy", "accuracy needs labels, or targets between 0 and 1"),
    (2, torch.linspace(-2, 2, 80).reshape(40, 2), "auc", "auc needs labels, or targets between 0 and 1"),
    (1, torch.linspace(0, 1, 40)[:, None], "accuracy", "one number per sample"),
])  # fmt: skip
def test_an_error_has_no_accuracy(outputs: int, targets: Tensor, metric: str, sentence: str) -> None:
    """Of numbers, argmax would always be right."""
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SteppeError, match=sentence):
        steppe.run("fedavg", nn.Linear(4, outputs), (x, targets, x, targets), metrics=metric, **FEW)
    own = steppe.Metric("accuracy", lambda o, t: ((o - t).abs() < 1).double())  # within 1, and so called by its user
    assert steppe.run("fedavg", nn.Linear(4, outputs), (x, targets, x, targets), metrics=own, **FEW).metric is own


def test_a_comparison_in_python_has_all_metrics_and_says_what_varied() -> None:
    found = steppe.compare(["fedavg", "fedsam"], "mlp", seeds=2, metrics=["accuracy", ("spread", spread, "lower")],
                           clients=4, per_round=2, rounds=1, max_steps=2, workers=0, progress=False)  # fmt: skip
    assert "spread" in found.cells()[0]
    assert "seeds vary the initial model, the batches, the partition and the clients' schedule" in found.table()
    assert len({r.partition.hash for r in found.runs["fedavg"] if r.partition}) == 2
    assert [a.partition.hash for a in found.runs["fedavg"]] == [b.partition.hash for b in found.runs["fedsam"]]  # type: ignore[union-attr]
