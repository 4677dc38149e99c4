"""Compare, sweep, cost and trace in Python, with names and with objects of one's own."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steppe
from steppe.core.errors import RunFailed, SteppeError
from steppe.engine.progress import handle_logs
from steppe.engine.rounds import simulate
from steppe.parts.sam import SAM
from steppe.runs.folder import RunFolder
from tests.lookback import LookBack, mine
from tests.scene import Net, blobs, seeded

FEW: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 2, "epochs": 1, "batch": 16, "partition": "iid",
                       "workers": 0, "progress": False}  # fmt: skip


def tapped() -> torch.nn.Module:
    model = seeded()
    model.taps = ["first"]  # type: ignore[assignment]
    return model


def test_parts_as_names_and_objects_side_by_side() -> None:
    one = steppe.run("fedsam", tapped(), blobs(), add=[LookBack(0.1), "man:weight=0.1"], **FEW)
    assert [p.name for p in one.experiment.algorithm.parts] == ["look_back", "man", "sam", "sgd"]
    assert one.config.add == ["own:tests.lookback.LookBack", "man:weight=0.1"]
    two = steppe.run("fedsam+man:weight=0.1", tapped(), blobs(), add=LookBack(0.1), **FEW)
    assert torch.equal(two.x, steppe.run("fedsam", tapped(), blobs(), add=["man:weight=0.1", LookBack(0.1)], **FEW).x)
    three = steppe.run(mine, seeded(), blobs(), rho=0.1, **FEW)
    assert torch.equal(three.x, steppe.run((SAM(0.1), LookBack(0.1)), seeded(), blobs(), **FEW).x)
    with pytest.raises(SteppeError, match=r"add has the class LookBack: give an instance, LookBack\(…\)"):
        steppe.run("fedavg", seeded(), blobs(), add=[LookBack], **FEW)  # type: ignore[list-item]
    with pytest.raises(SteppeError, match="is not a part"):
        steppe.run("fedavg", seeded(), blobs(), add=[3], **FEW)  # type: ignore[list-item]
    for wrong, sentence in ((LookBack, r"add has the class LookBack: .* LookBack\(…\)"), (None, "add is None: give")):
        with pytest.raises(SteppeError, match=sentence):
            steppe.run("fedavg", seeded(), blobs(), add=wrong, **FEW)  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match="no part 'mam' to add; did you mean 'sam' or 'man'"):
        steppe.run("fedavg", seeded(), blobs(), add="mam", **FEW)
    with pytest.raises(SteppeError, match="algorithm is 3: give a name"):
        steppe.run(3, seeded(), blobs(), **FEW)
    with pytest.raises(SteppeError, match=r"rho is a setting of LookBack, .*: write LookBack\(rho=…\)"):
        steppe.run(LookBack(0.1), seeded(), blobs(), rho=0.3, **FEW)
    by_class = steppe.run(LookBack, seeded(), blobs(), rho=0.3, **FEW)
    assert torch.equal(by_class.x, steppe.run(LookBack(0.3), seeded(), blobs(), **FEW).x)
    with pytest.raises(SteppeError, match="algorithm mine has no setting 'rh'; did you mean 'rho'"):
        steppe.run(mine, seeded(), blobs(), rh=0.3, **FEW)
    for returned in (None, "fedsam"):
        with pytest.raises(SteppeError, match=r"returns .*, but must return a part"):
            steppe.run(lambda: returned, seeded(), blobs(), **FEW)  # noqa: B023  # called at once


def test_a_run_with_an_added_object_resumes_and_is_measured_with_it_again(tmp_path: Path) -> None:
    steppe.run("fedsam", seeded(), blobs(), add=[LookBack(0.1)], out=tmp_path / "a", **FEW)
    more = {**FEW, "rounds": 3}
    with pytest.raises(SteppeError, match=r"rho of look_back was 0\.1 and is 0\.2"):
        steppe.run("fedsam", seeded(), blobs(), add=[LookBack(0.2)], out=tmp_path / "a", resume=True, **more)
    steppe.run("fedsam", seeded(), blobs(), add=[LookBack(0.1)], out=tmp_path / "a", resume=True, **more)
    with pytest.raises(SteppeError, match=r"pass it again from Python, with add=\[…\]"):
        steppe.analyze(tmp_path / "a", ["lambda1"], model=seeded(), data=blobs())
    found = steppe.analyze(tmp_path / "a", ["lambda1"], model=seeded(), data=blobs(), add=[LookBack(0.1)])
    assert "lambda1" in found


def double(v: Any) -> Any:
    return 2 * v


class Shifts(steppe.Part):
    """Its settings are an array and a function."""

    name = "shifts"

    def __init__(self, by: torch.Tensor, of: Any) -> None:
        self.by, self.of = by, of

    def gradient(self, grad: steppe.Oracle, w: torch.Tensor, s: steppe.LocalStep) -> torch.Tensor:
        return self.of(grad(w)) + self.by.mean()


def test_arrays_and_functions_in_a_part_are_recorded_by_what_they_are(tmp_path: Path) -> None:
    by = torch.zeros(5000)
    steppe.run(Shifts(by, double), seeded(), blobs(), out=tmp_path / "a", **FEW)
    recorded = steppe.load(tmp_path / "a").about["parts"][0]
    assert recorded["of"].endswith("test_lab.double")
    assert recorded["by"].startswith("shape (5000,), hash ")
    other = by.clone()
    other[2500] = 1  # not seen in the text of so long a tensor
    with pytest.raises(SteppeError, match="by of shifts was 'shape"):
        steppe.run(Shifts(other, double), seeded(), blobs(), out=tmp_path / "a", resume=True, **{**FEW, "rounds": 3})


class Holds(steppe.Part):
    """Its settings are anything, and one has the name of what is recorded about every part."""

    name = "holds"

    def __init__(self, what: Any, type: str = "l2") -> None:
        self.what, self.type = what, type


class Inner(Holds):
    name = "inner"


def test_what_a_part_holds_is_recorded_and_compared_on_resume(tmp_path: Path) -> None:
    """Two values that differ have different texts, also if they are inside others; the same one has the same text."""
    long, other = torch.zeros(5000), torch.zeros(5000)
    other[2500] = 1
    teacher, another = (torch.nn.Linear(2, 2) for _ in range(2))
    pairs = [((long,), (other,)), ({"a": long}, {"a": other}), (teacher, another), (Holds(1), Inner(1)),
             (partial(double, 1), partial(double, 2)), ({1: 2, (1, 2): np.float64(3)}, {}), (object(), teacher),
             (float("nan"), 1.0), ({"b", "a"}, {"a"}), (lambda v: v, double)]  # fmt: skip
    for k, (one, two) in enumerate(pairs):
        again = {"model": seeded(), "data": blobs(), "out": tmp_path / str(k), "resume": True, **FEW, "rounds": 2}
        steppe.run(Holds(one), **{**again, "rounds": 1, "resume": False})
        with pytest.raises(SteppeError, match=r"what of holds was .* and is"):
            steppe.run(Holds(two), **again)
        steppe.run(Holds(one), **again)
    recorded = steppe.load(tmp_path / "0").about["parts"][0]
    assert (recorded["part"], recorded["type"], recorded["type_"]) == ("holds", "tests.api.test_lab.Holds", "l2")
    page = steppe.write_report(tmp_path / "1", tmp_path / "page.md").read_text()
    assert r"Holds(what={'a': 'shape (5000,), hash " in page
    assert "type='l2')" in page
    assert "data=" not in page.partition("repeat the run")[2]
    steppe.run(LookBack(0.1), "mlp", "digits", out=tmp_path / "named", **FEW)
    page = steppe.write_report(tmp_path / "named", tmp_path / "page.md").read_text()
    assert "data='digits', model='mlp', " in page.partition("repeat the run")[2]


def test_what_an_earlier_version_said_less_clearly_may_be_the_same(tmp_path: Path) -> None:
    """It wrote Python's text of most objects, and only the settings of a part that another part holds."""
    was: list[tuple[Any, Any, Any]] = [
        (partial(double, 1), partial(double, 2), "functools.partial"), ({"a", "b"}, {"a"}, "{'a', 'b'}"),
        ([torch.ones(2)], [1.0], ["tensor([1., 1.])"]), (Inner(1), Inner(2), {"what": 1}),
        (lambda v: v, "text", f"{__name__}.<lambda>"), ("one", "two", "one"), (1, 2, 1)]  # fmt: skip
    for k, (same, other, text) in enumerate(was):
        again = {"model": seeded(), "data": blobs(), "out": tmp_path / str(k), "resume": True, **FEW, "rounds": 2}
        steppe.run(Holds(same), **{**again, "rounds": 1, "resume": False})
        folder = RunFolder(tmp_path / str(k))
        about = folder.about
        folder.write("about.json", {**about, "format": 2, "parts": [{**about["parts"][0], "what": text},
                                                                   *about["parts"][1:]]})  # fmt: skip
        if k > 3:
            with pytest.raises(SteppeError, match=r"what of holds was .* and is"):
                steppe.run(Holds(other), **again)
        steppe.run(Holds(same), **again)
        assert steppe.analyze(folder.path, "loss", samples=20, algorithm=Holds(same), model=seeded(),
                              data=blobs())  # fmt: skip


def test_the_code_of_a_base_class_is_part_of_a_parts_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import steppe\nclass Base(steppe.Part):\n    name = 'b'\n"
    text += "    def finish(self, delta, s):\n        return delta\n"
    monkeypatch.syspath_prepend(tmp_path)
    given: dict[str, Any] = {"model": seeded(), "data": blobs(), "out": tmp_path / "run", **FEW}
    for k, line in enumerate(("return delta", "return 2 * delta")):
        path = tmp_path / f"ideas_{k}.py"
        path.write_text(text.replace("return delta", line) + "class Heir(Base):\n    pass\n")
        heir = importlib.import_module(f"ideas_{k}").Heir()
        if not k:
            steppe.run(heir, **given)
    with pytest.raises(SteppeError, match=r"the code of ideas_1\.Base .* is not what it was"):
        steppe.run(heir, resume=True, **{**given, "rounds": 3})


def test_a_grid_of_objects_has_a_run_for_each(tmp_path: Path) -> None:
    long, other = torch.zeros(5000), torch.zeros(5000)
    other[2500] = 9
    given: dict[str, Any] = {"model": seeded(), "data": blobs(), **{**FEW, "rounds": 1}}
    found = steppe.sweep(Shifts, {"by": [long, other], "of": [double]}, out=tmp_path / "a", **given)
    assert len(found.records) == len({r["by"] for r in found.records}) == 2
    folders = sorted(p.name for p in (tmp_path / "a").glob("by=*"))
    steppe.sweep(Shifts, {"by": [other.clone(), long.clone()], "of": [double]}, out=tmp_path / "a", **given)
    assert folders == sorted(p.name for p in (tmp_path / "a").glob("by=*"))  # the same ones, not new ones
    steppe.sweep("fedavg", {"lr_schedule": [(1.0, 0.5)]}, out=tmp_path / "t", **given)
    assert [p.name for p in (tmp_path / "t").glob("lr*")] == ["lr_schedule=(1.0,_0.5)"]
    found = steppe.sweep("fedavg", {"add": [[], [LookBack(0.1)], [LookBack(0.9)]]}, **given)
    assert [r["add"] for r in found.records] == [[], ["LookBack(rho=0.1)"], ["LookBack(rho=0.9)"]]
    with pytest.raises(SteppeError, match=r"two values of of are called .*: give each function a name of its own"):
        steppe.sweep(Shifts, {"of": [lambda v, k=k: k * v for k in (1, 2)], "by": [long]}, **given)


def test_a_run_of_an_own_function_is_measured_and_reported(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": seeded(), "data": blobs()}
    steppe.run(mine, rho=0.3, out=tmp_path / "b", **given, **FEW)
    with pytest.raises(SteppeError, match="algorithm"):
        steppe.analyze(tmp_path / "b", "gradient_norm", algorithm=mine, **given)
    found = steppe.analyze(tmp_path / "b", "gradient_norm", algorithm=mine, rho=0.3, **given)
    assert found["gradient_norm"]["value"] > 0
    with pytest.raises(SteppeError, match="analyze has no argument rho"):
        steppe.analyze(tmp_path / "b", "gradient_norm", rho=0.3, **given)
    steppe.run("fedavg", out=tmp_path / "a", **given, **FEW)
    page = steppe.write_report([tmp_path / "a", steppe.load(tmp_path / "b")], tmp_path / "both.md")
    assert r"look\_back" in page.read_text()
    assert "fedavg" in page.read_text()
    with pytest.raises(SteppeError, match="nowhere"):
        steppe.write_report(tmp_path / "nowhere")


def test_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**FEW, "rounds": 1}
    algorithms = ["fedavg", mine, LookBack(0.1), LookBack(0.3), "fedsam+ema"]
    found = steppe.compare(algorithms, Net, blobs(), seeds=2, rho=0.15, out=tmp_path / "c", **keys)
    labels = ["fedavg", "mine", "look_back LookBack(rho=0.1)", "look_back LookBack(rho=0.3)", "fedsam+ema"]
    assert [one.algorithm for one in found.lines] == labels
    about = [folder.about["parts"] for folder in (found.runs[label][0] for label in labels)]
    assert [[p["rho"] for p in parts if "rho" in p] for parts in about] == [[], [0.1, 0.15], [0.1], [0.3], [0.15]]
    # The class was built from the run's seed.
    by_hand = steppe.run(LookBack(0.3), _net(1), blobs(), seed=1, vary="all", **keys)
    assert found.points[3].results[1]["loss"] == by_hand.summary["loss"]
    assert found.table().splitlines()[1].split()[:2] == ["algorithm", "last"]
    assert repr(found) == f"<ComparedRuns: {found.title}>"
    assert "2 seeds" in found.title
    assert "<table>" in found._repr_html_()
    assert found.records[1]["last_std"] >= 0
    assert {type(value) for one in found.records for value in one.values()} <= {str, int, float, type(None)}
    assert [one["accuracy"] for one in found.records] == [one["last"] for one in found.records]
    found.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "mine" in found.report(tmp_path / "page.md").read_text()
    axes = found.plot(tmp_path / "other.svg", metrics=["train_loss", "seconds.all"])
    assert [axis.get_ylabel() for axis in axes] == ["train_loss", "seconds.all"]
    with pytest.raises(SteppeError, match="no number 'lose' to draw; did you mean 'loss'"):
        found.plot(metrics=["lose"])
    # The class was built from each seed; an instance is the same for all of them.
    assert "seeds vary the initial model" in found.table()
    same = steppe.compare(["fedavg"], seeded(), blobs(), seeds=2, add=LookBack(0.1), **keys)
    assert "; all share the initial model" in same.table()
    assert [one.algorithm for one in same.lines] == ["fedavg+look_back"]
    assert same.runs["fedavg+look_back"][0].about["algorithm"] == "fedavg+look_back"

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    with handle_logs(Heard()):
        again = steppe.compare(algorithms, Net, blobs(), seeds=2, rho=0.15, out=tmp_path / "c", **keys)
    assert sum("already finished" in line for line in lines) == 10
    assert again.records == found.records
    with pytest.raises(SteppeError, match="holds a run with other settings: rho of look_back was"):
        steppe.compare({labels[2]: LookBack(0.2)}, Net, blobs(), out=tmp_path / "c", **keys)
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("steppe.report.result_objects.find_spec", lambda _: None)
    with pytest.raises(SteppeError, match="needs pandas"):
        found.frame()


def test_an_interrupted_comparison_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def interrupted(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return simulate(*given, **more)

    monkeypatch.setattr("steppe.jobs.worker.simulate", interrupted)
    keys = {**FEW, "rounds": 1, "out": tmp_path / "c"}
    with pytest.raises(KeyboardInterrupt):
        steppe.compare(["fedavg", "fedsam"], seeded(), blobs(), **keys)
    assert len(list((tmp_path / "c").rglob("result.json"))) == 1
    found = steppe.compare(["fedavg", "fedsam"], seeded(), blobs(), **keys)
    assert (len(found.lines), len(calls)) == (2, 3)  # the first was used again


def test_a_metric_that_is_lower_everywhere(tmp_path: Path) -> None:
    keys = {**FEW, "rounds": 2, "metrics": [("distance", _distance, "lower"), "accuracy"], "validation": 0.3}
    found = steppe.sweep("fedsam", {"rho": [0.1, 1.0]}, seeded(), blobs(), search=2, ranges={"lr": "0.001..1:log"},
                         out=tmp_path / "s", **keys)  # fmt: skip
    scores = {p.label: p.mean("validation") for p in found.points}
    assert found.best is not None
    assert scores[found.best.label] == min(scores.values())
    assert "distance (lower is better)" in found.table()
    compared = steppe.compare(["fedavg", "fedsam"], seeded(), blobs(), out=tmp_path / "c", **keys)
    best = min(compared.lines, key=lambda one: one.last[0]).algorithm
    assert "distance, lower is better" in compared.table()
    page = compared.report(tmp_path / "page.md").read_text()
    assert page.startswith(f"# {best} ")
    assert "final distance" in page
    axes = compared.plot(tmp_path / "p.png")
    assert [axis.get_ylabel() for axis in axes] == ["test distance", "test loss", "test accuracy (%)"]
    header = next((tmp_path / "c").rglob("rounds.csv")).read_text().splitlines()[0].split(",")
    assert {"distance", "accuracy", "validation_distance"} <= set(header)


def _distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) - targets).abs().float()


def _net(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net()


def test_compare_refuses() -> None:
    for wrong, sentence in (
        ("fedavg", "give several"),
        ([], "at least one"),
        ([mine, mine], "Two algorithms are called"),
        ([lambda: LookBack(0.1), lambda: LookBack(0.2)], "Two algorithms are called '<lambda>': give them names"),
        ([[]], "algorithm has no parts: give at least one"),
        ([seeded()], "algorithm is the module Net: give an algorithm first, and then the model"),
    ):
        with pytest.raises(SteppeError, match=sentence):
            steppe.compare(wrong, seeded(), blobs(), **FEW)  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match=r"model is the class Linear, .*: give an instance, Linear\(…\)"):
        steppe.compare(["fedavg"], torch.nn.Linear, blobs(), **FEW)
    for name, count in (("seeds", 0), ("seeds", [3, 5]), ("jobs", -1), ("jobs", "all")):
        with pytest.raises(SteppeError, match=f"{name} is .*, but must be a whole number, at least 1"):
            steppe.compare(["fedavg"], seeded(), blobs(), **{name: count}, **FEW)
    with pytest.raises(SteppeError, match="search is 0, but must be"):
        steppe.sweep("fedsam", ranges={"rho": "0.1..1"}, search=0, validation=0.1)
    with pytest.raises(SteppeError, match="there is no key 'rhoo'; did you mean 'rho'"):
        steppe.compare(["fedavg", "fedsam"], seeded(), blobs(), rhoo=0.1, **FEW)
    with pytest.raises(RunFailed, match="Every run failed, the first because: round"):
        steppe.compare(["fedavg"], seeded(), blobs(), lr=1e9, weight_decay=1e9, **FEW)


def test_a_table_says_which_runs_failed() -> None:
    class Breaks(steppe.Part):
        name = "breaks"

        def server(self, delta: torch.Tensor, s: steppe.Aggregation) -> torch.Tensor:
            return delta * torch.nan

    found = steppe.compare({"fine": "fedavg", "diverges": Breaks()}, seeded(), blobs(), seeds=2, **FEW)
    assert found.failed.keys() == {"diverges"}
    assert found.table().endswith("runs that failed, and are left out: diverges 2 of 2")


def test_sweep(tmp_path: Path) -> None:
    found = steppe.sweep(mine, {"rho": [0.1, 0.2], "lr": [0.05]}, seeded(), blobs(), validation=0.2, **FEW)
    assert [p.settings for p in found.points] == [{"rho": 0.1, "lr": 0.05}, {"rho": 0.2, "lr": 0.05}]
    assert found.best in found.points
    assert repr(found.best).startswith("Point(label='rho=0.")
    assert len(repr(found.best)) < 200  # without its whole configuration
    assert "the test set played no part in it" in found.table()
    assert [r["rho"] for r in found.records] == [0.1, 0.2]
    assert len(steppe.sweep(LookBack, {"rho": [0.1, 0.2]}, seeded(), blobs(), **FEW).points) == 2
    empty = "something to vary"
    for wrong, sentence in (({}, empty), ({"rho": []}, empty), ({"rho": 0.1}, "a list"), ({"model": "mlp"}, "a list")):
        with pytest.raises(SteppeError, match=sentence):
            steppe.sweep("fedsam", wrong, seeded(), blobs(), **FEW)
    with pytest.raises(SteppeError, match="ranges are for a search"):
        steppe.sweep("fedsam", ranges={"rho": "0.01..1"}, **FEW)
    for name, more in (("grid", {"grid": ["rho"]}), ("ranges", {"ranges": ["rho=0..1"], "search": 2})):
        with pytest.raises(SteppeError, match=rf"{name} is \['rho.*, but must be a dictionary, such as \{{"):
            steppe.sweep("fedsam", model=seeded(), data=blobs(), **more, **FEW)
    with pytest.raises(SteppeError, match=r"^ranges=\{'rho': \(0.1, 1\)\}: after the key, write low\.\.high"):
        steppe.sweep("fedsam", None, seeded(), blobs(), ranges={"rho": (0.1, 1)}, search=2, **FEW)  # type: ignore[dict-item]


@pytest.mark.slow
def test_a_parametrized_model_travels_to_other_processes() -> None:
    model = Net()
    torch.nn.utils.parametrizations.weight_norm(model.first)
    here, there = (steppe.compare(["fedavg"], model, blobs(), jobs=jobs, **FEW).records for jobs in (1, 2))
    assert here[0]["loss"] == there[0]["loss"]


@pytest.mark.slow
def test_own_objects_travel_to_other_processes(tmp_path: Path) -> None:
    here = steppe.compare([LookBack(0.1), mine], Net, blobs(), out=tmp_path / "a", **FEW)
    there = steppe.compare([LookBack(0.1), mine], Net, blobs(), out=tmp_path / "b", jobs=2, **FEW)
    assert [r["loss"] for r in here.records] == [r["loss"] for r in there.records]


def test_cost_and_trace() -> None:
    found = steppe.cost(["fedavg", "scaffold+man", LookBack(0.1), mine], "mlp", shape=(1, 8, 8), rho=0.3)
    assert [r["gradients"] for r in found.records] == [1, 1, 2, 4]
    assert [round(r["bytes_x"], 6) for r in found.records] == [1, 2, 1, 1]
    example = {"x": torch.zeros(5, 6), "y": torch.zeros(5, dtype=torch.int64)}
    assert steppe.cost(LookBack(0.1), seeded(), example=example).records[0]["bytes_up"] == 4 * 163
    given = steppe.cost(["fedavg", LookBack(0.1)], Net, blobs())  # a batch of the data, and the class of a model
    assert [r["gradients"] for r in given.records] == [1, 2]
    assert given.records[0]["flops"] == 10 * steppe.cost("fedavg", seeded(), example=example).records[0]["flops"]
    assert steppe.cost("fedsam", "gpt", "shakespeare").records[0]["flops_x"] == 2
    with pytest.raises(
        SteppeError, match=r"Net cannot be traced with inputs of shape \(3, 32, 32\) .* one of its batches"
    ):
        steppe.cost("fedavg", seeded())
    problem = {"clients": [{"A": [[1.0]], "b": [1.0]}], "x0": [0.0], "rounds": [[0]], "steps": 2, "lr": 0.5}
    # Towards 1: first by 0.5·1; then by 0.5·(0.75·0.5 + 0.25·1).
    traced = steppe.trace(LookBack(0.25), problem)
    assert traced.rounds[0]["x"] == [0.5 + 0.5 * (0.75 * 0.5 + 0.25)]
    assert traced.table().splitlines()[-1].split() == ["1", "0.8125"]
    assert steppe.trace("fedavg", problem).rounds[0]["x"] == [0.75]
    with pytest.raises(SteppeError, match="lr belongs to the problem"):
        steppe.trace("fedavg", problem, lr=0.1)
    with pytest.raises(SteppeError, match="there is no key 'cleints'"):
        steppe.trace("fedavg", {**problem, "cleints": []})
    with pytest.raises(SteppeError, match="problem is not a dictionary or the path of a JSON file: it is None"):
        steppe.trace("fedavg", None)  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match="no problem file"):
        steppe.trace("fedavg", "nowhere.json")


def test_a_wrong_setting_of_any_point_is_found_before_the_first_run(tmp_path: Path) -> None:
    few = {**FEW, "data": blobs(), "out": tmp_path / "r"}
    with pytest.raises(SteppeError, match="rho='x': rho of algorithm 'fedsam' must be a number"):
        steppe.compare(["fedavg", "fedsam"], seeded(), rho="x", **few)
    with pytest.raises(SteppeError, match="rho=-1: rho of algorithm 'fedsam' is -1"):
        steppe.sweep("fedsam", {"rho": [0.1, -1]}, seeded(), **few)
    with pytest.raises(SteppeError, match="optimiser='adamw:beta1=2': beta1 of part 'adamw' is 2"):
        steppe.compare(["fedavg"], seeded(), optimiser="adamw:beta1=2", **few)
    assert not (tmp_path / "r").exists()


def test_the_class_of_a_model_is_built_from_the_runs_seed() -> None:
    few = {**FEW, "data": blobs(), "rounds": 1, "vary": "model"}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    losses = [steppe.run("fedavg", Net, seed=seed, **few).history[-1]["loss"] for seed in (0, 0, 1)]
    steppe.cost("fedavg", Net, shape=(6,), classes=3)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is left alone
    assert losses[0] == losses[1] != losses[2]
    assert [r["loss"] for r in steppe.compare(["fedavg"], Net, seeds=np.int64(1), **few).records] == losses[:1]


def test_a_partition_can_be_looked_at_before_it_is_used(tmp_path: Path) -> None:
    split = steppe.partition(blobs(), "lda(0.5)", clients=4, seed=3)
    used = steppe.run("fedavg", seeded(), blobs(), **{**FEW, "partition": "lda(0.5)"}, partition_seed=3)
    assert used.experiment.federation.partition.hash == split.hash  # type: ignore[union-attr]
    axes = split.plot(blobs()[1], 3)
    assert (axes.get_xlabel(), axes.get_title()) == ("client", "lda(0.5), seed 3")
    split.plot(blobs()[1], 3, tmp_path / "split.png")
    assert (tmp_path / "split.png").stat().st_size > 1000


def test_a_loss_of_a_result_is_that_of_its_training_data() -> None:
    result = steppe.run("fedavg", seeded(), blobs(), **FEW)
    data, loss = result.experiment.federation.data, steppe.flatness.Loss.of(result)
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(result.model(data.train_inputs), data.train_targets)
    assert loss.value(result.x) == pytest.approx(float(wanted), rel=1e-5)
    assert repr(data).startswith(f"<Data arrays: {len(data.train_targets)} training and ")


def test_a_report_needs_folders() -> None:
    result = steppe.run("fedavg", seeded(), blobs(), **FEW)
    with pytest.raises(SteppeError, match=r"runs has <Result of fedavg: .*: give folders of runs, or"):
        steppe.write_report(result)  # type: ignore[arg-type]


def test_colours_alone_make_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from steppe.engine.progress import Progress

    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook sets it for its commands
    with Progress(2) as shown:
        assert shown.bar is None


def test_runs_that_are_evaluated_by_different_numbers_are_not_ranked() -> None:
    for grid, options in (({"metrics": ["accuracy", "cross_entropy"]}, {}), ({"loss": ["cross_entropy", "mse"]}, {}),
                          ({"judged_on": ["test", "validation"]}, {"validation": 0.2})):  # fmt: skip
        with pytest.raises(SteppeError, match=r"the runs are evaluated by .* and .*, which cannot be compared"):
            steppe.sweep("fedavg", grid, seeded(), blobs(), **FEW, **options)
    found = steppe.sweep("fedavg", {"loss": [None, "cross_entropy:ignore_index=-1"]}, seeded(), blobs(), **FEW)
    assert not found.failed  # the first one has the loss of the second
    with pytest.raises(SteppeError, match="seeds is None, but must be a whole number"):
        steppe.compare(["fedavg"], seeded(), blobs(), seeds=None, **FEW)  # type: ignore[arg-type]


def test_a_table_of_held_out_samples_does_not_speak_of_the_test_set(tmp_path: Path) -> None:
    few = {"clients": 4, "per_round": 2, "rounds": 2, "max_steps": 1, "workers": 0, "progress": False, "seeds": 2}
    held_out: dict[str, Any] = {"validation": 0.1, "judged_on": "validation", **few}
    found = steppe.compare(["fedavg", "fedprox"], "mlp", out=tmp_path / "c", **held_out)
    page = {kind: found.report(tmp_path / f"report.{kind}").read_text() for kind in ("html", "md", "tex")}
    swept = steppe.sweep("fedprox", {"mu": [0.1, 1.0]}, "mlp", **held_out)
    axes = [*found.plot(tmp_path / "c.png"), *steppe.load(found.runs["fedavg"][0].path).plot(tmp_path / "r.png")]
    for text in (*page.values(), found.table(), swept.table(), *(axis.get_ylabel() for axis in axes)):
        said = re.findall(r"[^.;>\n]*\btest\b[^.;<\n]*", re.sub(r"(paired|no) t?-?test|the test set played", "", text))
        assert [one for one in said if "(test)" not in one] == []
        assert "validation" in text
    assert "steppe run fedavg --set" in page["md"]  # the data of this machine are those of the run
    assert swept.cells()[0] == ["mu", "validation", "validation, last 2", "validation loss", "runs", ""]
    test = steppe.compare(["fedavg"], "mlp", **few)
    assert "accuracy in % on the test set" in test.table()
