"""Measures of a run: what they are computed from, that they are right, and that they are computed once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steppe import analyze
from steppe.analysis import Analysis, Options
from steppe.core.errors import SteppeError
from steppe.core.rounding import format_number
from steppe.flatness import Landscape, Sample
from steppe.measures.during_training import MEASURES, choose_measures, parse_schedule
from steppe.report.measure_tables import (
    COLUMNS,
    PROFILES,
    average_seeds,
    make_tables,
    read_numbers,
    shorten_paths,
    split_to_width,
)
from tests.runs.test_resume import killed
from tests.scene import bits, blobs, launch, listening, records, remains, seeded


def finished(out: Path, **options: Any) -> Any:
    return launch(out, **{"partition": "iid", "lr_schedule": "constant", **options})


def own(data: Any = None) -> dict[str, Any]:
    """What the folder of a run of one's own cannot tell."""
    return {"model": seeded(), "data": data or blobs()}


def opened(out: Path, **options: Any) -> Analysis:
    from steppe.data import from_arrays

    return Analysis(out, Options(**options), {"model": seeded(), "data": from_arrays(*blobs())})


# --- what a measure says


def test_numbers_are_those_of_the_dense_hessian(tmp_path: Path) -> None:
    result = finished(tmp_path, dtype="float64")
    found = analyze(tmp_path, ["hessian", "gradient_norm", "loss"], **own())
    task, (x, y, *_) = result.experiment.task, blobs()
    inputs = result.experiment.federation.plain(x)

    def f(w: torch.Tensor) -> torch.Tensor:
        return task.loss(task.forward(w, inputs, {}, learning=False).logits, {"y": y})

    H = torch.func.hessian(f)(result.x)
    values = torch.linalg.eigvalsh(H).flip(0)
    assert found["lambda1"]["top"]["values"] == pytest.approx(values[:5].tolist(), rel=1e-3)
    assert found["lambda1"]["ratio"] == pytest.approx(float(values[0] / values[4]), rel=1e-3)
    assert found["smallest"]["bottom"]["values"] == pytest.approx(values[-1:].tolist(), abs=1e-3 * float(values[0]))
    for name in ("trace", "trace_pp"):
        assert abs(found[name]["value"] - float(H.trace())) < 4 * found[name]["error"] + 1e-9
    head = task.layout.mask("head")
    block = H[head][:, head]
    assert found["per_layer"]["lambda1"]["head"]["value"] == pytest.approx(
        float(torch.linalg.eigvalsh(block)[-1]), 1e-3
    )
    assert set(found["per_layer"]["trace"]) == {"head", "body"}  # the layers `last` and `first`, each said once
    assert found["gradient_norm"]["value"] == pytest.approx(float(torch.func.grad(f)(result.x).norm()))
    assert found["lambda1"]["ratio_error"] < 0.01 * found["lambda1"]["ratio"]
    assert found["loss"]["value"] == pytest.approx(float(f(result.x)))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn", "fedsmoo", "fedscar", "fedgloss", "fedavgm"])
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_the_extra_round_is_the_run_s_next_one(algorithm: str, store: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"algorithm": algorithm, "store": store}
    if algorithm == "fedscar":
        options["rounds"] = 5
    finished(tmp_path / "five", **options)
    before = {p: p.read_bytes() for p in (tmp_path / "five/checkpoints").rglob("*") if p.is_file()}
    six = finished(tmp_path / "six", **{**options, "rounds": 6})
    extra = opened(tmp_path / "five").play_extra_round()
    assert bits(extra.after) == bits(six.server.x)
    assert extra.local.shape == (3, len(extra.x))
    assert {p: p.read_bytes() for p in before} == before
    resumed = finished(tmp_path / "five", **{**options, "rounds": 6}, resume=True)  # the folder is as it was
    assert bits(resumed.server.x) == bits(six.server.x)


def test_the_witness_sees_local_models(tmp_path: Path) -> None:
    """FedAvg with equal weights: the new global model is the mean of theirs, wherever the update was uploaded."""
    finished(tmp_path, algorithm="fedavg", weighting="uniform")
    extra = opened(tmp_path).play_extra_round()
    assert torch.allclose(extra.local.mean(0), extra.after, atol=1e-6)
    found = analyze(tmp_path, ["consistency", "divergence", "lambda1_clients"], **own())
    squares = (extra.local - extra.local.mean(0)).square().sum(1)
    assert found["consistency"]["mean"]["value"] == pytest.approx(float(squares.mean()), rel=1e-5)
    assert found["divergence"]["global_local"]["value"] == pytest.approx(
        float((extra.local - extra.x).norm(dim=1).mean()), rel=1e-5)  # fmt: skip
    assert found["lambda1_clients"]["ids"] == extra.ids


def test_what_local_training_forgets(tmp_path: Path) -> None:
    result = finished(tmp_path, algorithm="fedavg")
    found = analyze(tmp_path, ["local_score", "forgetting"], **own())
    extra, task = opened(tmp_path).play_extra_round(), result.experiment.task
    x, y = blobs()[2:]

    def accuracy(w: torch.Tensor) -> float:
        logits = task.forward(w, result.experiment.federation.plain(x), {}, learning=False).logits
        return float((logits.argmax(1) == y).double().mean())

    each = [accuracy(w) for w in extra.local]
    assert found["local_score"]["each"] == pytest.approx(each)
    assert found["local_score"]["mean"]["value"] == pytest.approx(np.mean(each))
    assert found["local_score"]["given"] == pytest.approx(accuracy(extra.x))
    assert found["forgetting"]["value"] == pytest.approx(accuracy(extra.x) - np.mean(each))


def test_any_number_of_clients(tmp_path: Path) -> None:
    finished(tmp_path)
    found = analyze(tmp_path, "lambda1_clients", clients=6, **own())
    assert found["lambda1_clients"]["ids"] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(SteppeError, match="7 of 6 clients"):
        analyze(tmp_path, "lambda1_clients", clients=7, **own())


def test_clients_curvature_looks_at_no_more_than_the_sample(tmp_path: Path) -> None:
    """All of a client's data, many times over, would take hours where they are images."""
    finished(tmp_path)
    whole, few = (analyze(tmp_path, "lambda1_clients", samples=n, **own())["lambda1_clients"] for n in (90, 5))
    assert all("all " in name for name in whole["samples"])
    assert all(re.search(r", 5 of \d+, seed 0$", name) for name in few["samples"])
    assert few["each"] != whole["each"]
    alone = opened(tmp_path, samples=5, client=few["ids"][0]).measure(["lambda1"])
    assert alone["measures"]["lambda1"]["lambda1"] == pytest.approx(few["each"][0], rel=1e-3)  # as --client says it


def test_every_measure_ends_up_in_the_folder(tmp_path: Path) -> None:
    finished(tmp_path)
    found = analyze(tmp_path, "numbers", **own())
    assert list(found) == choose_measures(["numbers"])
    drawn = [n for n in choose_measures(["drawn"]) if n != "line"]  # that one starts at a model that is not kept here
    found = analyze(tmp_path, drawn, points=5, **own())
    content = json.loads((tmp_path / "analysis.json").read_text())
    assert content["measures"] == found
    assert "all 90" in content["sample"]
    land = Landscape.load(tmp_path / found["landscape"]["file"])
    assert land.values.shape == (5, 5)
    assert land.values[2, 2] == pytest.approx(found["loss"]["value"], rel=1e-5)  # the model is in the middle
    assert Landscape.load(tmp_path / "analysis/plane.npz").marks["global"] == [0.0, 0.0]
    for name, count, shape in (("line_clients", 3, (5,)), ("lines", 4, (9,)), ("landscape_clients", 3, (5, 5)),
                               ("landscape_random_clients", 3, (5, 5))):  # fmt: skip
        assert len(found[name]) == count
        for told_ in found[name].values():
            assert Landscape.load(tmp_path / told_["file"]).values.shape == shape
    # A client's own loss, and the middle of the plane, where the model is.
    client = Landscape.load(tmp_path / next(iter(found["landscape_clients"].values()))["file"])
    assert "client" in client.sample
    middle = Landscape.load(tmp_path / found["lines"]["eigenvector-1"]["file"])
    np.testing.assert_allclose(middle.values[::2], land.values[:, 2], rtol=1e-5)  # the plane's own axis
    with np.load(tmp_path / found["density"]["file"]) as file:
        assert np.trapezoid(file["density"], file["grid"]) == pytest.approx(1, abs=0.01)


def test_lines_begin_where_they_say(tmp_path: Path) -> None:
    import steppe

    quick: dict[str, Any] = {"clients": 4, "per_round": 2, "max_steps": 3, "rounds": 1, "model": "mlp", "workers": 0}
    first = steppe.run("fedavg", **quick, out=tmp_path / "a")
    second = steppe.run("fedavg", **quick, seed=1, out=tmp_path / "b")
    a, b = (Analysis(tmp_path / name, Options(points=4, samples=200)) for name in "ab")
    a.measure(["line", "line_runs"])
    assert "line_runs" not in a.stored()["measures"]  # there is no line to itself
    b.measure(["line_runs"], [a])
    line = Landscape.load(tmp_path / "a/analysis/line.npz")
    assert line.marks == {"initial": [0.0], "final": [1.0]}
    assert line.axes[0][[1, 5]].tolist() == [0, 1]
    ends = [a.subject.loss.value(w) for w in (first.experiment.task.x0, first.x)]
    assert line.values[[1, 5]].tolist() == pytest.approx(ends, rel=1e-5)
    between = Landscape.load(tmp_path / "b/analysis/line_runs.npz")
    assert np.allclose(between.directions[0], (second.x - first.x).numpy(), atol=1e-6)
    assert set(between.marks) == {"a", "this"}


# --- computed once


def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    finished(tmp_path)
    said: list[str] = []

    def again(*names: str, **options: Any) -> list[str]:
        with listening() as now:
            analyze(tmp_path, names, **own(), **options)
        said[:] = now
        return [s.partition(": ")[2].partition(",")[0] for s in said if ", " in s and s.endswith(" s")]

    assert again("lambda1", "loss") == ["lambda1", "loss"]
    assert again("lambda1", "loss", "gradient_norm") == ["gradient_norm"]
    assert again("lambda1", "loss", samples=1000) == []  # both are all that there is
    assert again("consistency") == ["consistency"]
    assert again("consistency", "lambda1", clients=2) == ["consistency"]  # λ1 does not depend on clients
    assert again("landscape_random", points=3) == ["landscape_random"]
    assert again("landscape_random", "loss", points=5) == ["landscape_random"]
    assert again("loss", seed=1) == ["loss"]
    assert again("lambda1", "loss", seed=1) == ["lambda1"]
    assert again("lambda1", samples=30, seed=1) == ["lambda1"]
    assert any("are replaced" in s for s in said)
    assert list(json.loads((tmp_path / "analysis.json").read_text())["measures"]) == ["lambda1"]
    finished(tmp_path, rounds=6, resume=True)  # another model
    assert again("lambda1", samples=30, seed=1) == ["lambda1"]


def test_two_processes_may_measure_one_run(tmp_path: Path) -> None:
    finished(tmp_path)

    def meanwhile(said: str) -> None:
        if "loss," in said:  # it is written, and the next one not yet
            opened(tmp_path).measure(["gradient_norm"])

    with listening(meanwhile):
        opened(tmp_path).measure(["loss", "sharpness"])
    assert set(opened(tmp_path).stored()["measures"]) == {"loss", "sharpness", "gradient_norm"}


def test_a_measure_that_takes_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path)
    monkeypatch.setattr("steppe.analysis.LONG", 0.0)
    with listening() as said:
        analyze(tmp_path, ["lambda1", "trace", "density_layers"], **own())
    blocks = len(opened(tmp_path).subject.blocks)
    assert blocks == 2
    for count in (100, 200 * blocks):
        assert [s for s in said if f" {count} products" in s and s.endswith(" s")]
    assert len(said) == 5  # lambda1's number is not known beforehand
    with listening() as said:
        analyze(tmp_path, "density", **own())  # nothing was timed before
    assert " 800 products" in said[0]


def test_what_was_found_before_an_error_is_kept(tmp_path: Path) -> None:
    finished(tmp_path)
    for path in (tmp_path / "checkpoints").glob("*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(SteppeError, match="no checkpoint"):
        analyze(tmp_path, ["loss", "consistency"], **own())
    assert list(json.loads((tmp_path / "analysis.json").read_text())["measures"]) == ["loss"]


def test_a_new_run_in_the_folder_takes_the_old_measures_away(tmp_path: Path) -> None:
    from steppe.engine.rounds import simulate

    result = finished(tmp_path)
    analyze(tmp_path, ["loss", "landscape_random"], points=3, **own())
    simulate(result.experiment, tmp_path)
    assert not (tmp_path / "analysis.json").exists()
    assert not (tmp_path / "analysis").exists()


# --- what a folder cannot tell


def test_a_run_of_ones_own_needs_what_it_was_made_of(tmp_path: Path) -> None:
    finished(tmp_path)
    with pytest.raises(SteppeError, match="trained your own module"):
        analyze(tmp_path, "loss")
    with pytest.raises(SteppeError, match="other data than those that you pass"):
        analyze(tmp_path, "loss", model=seeded(), data=blobs(seed=2, samples=60))
    with pytest.raises(SteppeError, match="initial model"):
        analyze(tmp_path, "line", **own())
    assert analyze(tmp_path, "loss", **own()) == analyze(tmp_path, "loss")  # stored, so that nothing is needed
    with pytest.raises(SteppeError, match="other data than those that you pass"):
        analyze(tmp_path, "loss", model=seeded(), data=blobs(seed=2, samples=60))


def test_a_federation_s_run_is_measured_on_given_data(tmp_path: Path) -> None:
    finished(tmp_path)
    there = analyze(tmp_path, "lambda1", **own())
    (tmp_path / "analysis.json").unlink()
    (tmp_path / "partition.json").unlink()
    nodes = {"partition": "at the nodes", "data": "nodes of study"}
    for name, change in (("result", {"executor": "nodes"}), ("about", {"partition": None}), ("config", nodes)):
        file = tmp_path / f"{name}.json"
        content = json.loads(file.read_text()) | change
        if name == "about":
            content["data"]["hash"] = "of stand-ins"
        file.write_text(json.dumps(content))
    with pytest.raises(SteppeError, match=r"training data are on its nodes: .*steppe\.analyze\(.*, data=…\)"):
        analyze(tmp_path, "lambda1", model=seeded())
    assert analyze(tmp_path, "lambda1", **own()) == there
    for more in ({"measures": "consistency"}, {"measures": "loss", "client": 1}):
        with pytest.raises(SteppeError, match=r"data.* are on the federation's nodes"):
            analyze(tmp_path, **more, **own())


def test_a_partition_from_a_file_need_not_be_there_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = finished(tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    result.experiment.federation.partition.save("split.json")
    finished(tmp_path / "second", partition="split.json")
    Path("split.json").unlink()
    assert "loss" in analyze(tmp_path / "second", "loss", **own())


# --- during training


def test_measures_during_training_change_nothing(tmp_path: Path) -> None:
    plain = finished(tmp_path / "plain", rounds=6)
    watched = finished(tmp_path / "watched", rounds=6, measure=["lambda1:2", "consistency:3", "gradient_norm"])
    assert bits(plain.x) == bits(watched.x)
    assert plain.experiment.cost == watched.experiment.cost
    taken = {r["round"]: set(r.get("measures", {})) for r in records(tmp_path / "watched")}
    assert taken[1] == {"gradient_norm"}
    assert taken[2] == taken[4] == {"gradient_norm", "lambda1"}
    assert taken[3] == {"gradient_norm", "consistency"}
    assert taken[6] == {"gradient_norm", "lambda1", "consistency"}
    assert all(r["seconds"]["measure"] > 0 for r in watched.history)
    assert not any("measure" in r["seconds"] for r in plain.history)
    last = records(tmp_path / "watched")[-1]["measures"]
    later = analyze(tmp_path / "watched", ["lambda1", "gradient_norm"], **own())
    assert last["lambda1"]["lambda1"] == pytest.approx(later["lambda1"]["lambda1"], rel=1e-3)
    assert last["gradient_norm"]["value"] == pytest.approx(later["gradient_norm"]["value"], rel=1e-4)
    five = finished(tmp_path / "five", rounds=5)  # its extra round is the sixth
    assert five is not None
    sixth = analyze(tmp_path / "five", "consistency", **own())["consistency"]
    assert last["consistency"]["mean"]["value"] == pytest.approx(sixth["mean"]["value"], rel=1e-5)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_a_killed_run_ends_with_the_same_measures(executor: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"measure": ["lambda1:2", "lpf:3", "flatness_discrepancy"], "executor": executor}
    whole = tmp_path / "whole"
    expected = remains(whole, launch(whole, **options))
    assert "flatness_discrepancy" in expected["records"][-1]["measures"]
    died = 0
    for at in (24, 41, 55):
        out = tmp_path / f"killed-{at}"
        died += killed(at, out, options)
        assert remains(out, launch(out, resume=True, **options)) == expected, f"killed at {at}"
    assert died >= 2


def test_a_folder_from_before_the_key_goes_on(tmp_path: Path) -> None:
    finished(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["measure"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert len(finished(tmp_path, rounds=6, resume=True).history) == 6


@pytest.mark.parametrize(("words", "said"), [
    (["lamda1:10"], "did you mean 'lambda1'"), (["lambda1:0"], "lambda1:10"), (["lambda1:x"], "lambda1:10"),
    (["density:5"], "not available during training"), (["landscape"], "not available during training"),
])  # fmt: skip
def test_bad_words(words: list[str], said: str) -> None:
    with pytest.raises(SteppeError, match=said):
        parse_schedule(words)
    with pytest.raises(SteppeError, match=said):
        launch(measure=words)


# --- tables


def test_every_number_has_its_place() -> None:
    """A measure that is no picture has a column or a profile, and every column belongs to a measure."""
    shown = {c.measure for columns in COLUMNS.values() for c in columns} | {p.measure for p in PROFILES}
    assert shown == {name for name, m in MEASURES.items() if m.kind != "drawn"}
    headings = [c.heading for columns in COLUMNS.values() for c in columns]
    assert len(headings) == len(set(headings))
    assert all(m.about for m in MEASURES.values())


def test_tables_have_every_number(tmp_path: Path) -> None:
    finished(tmp_path)
    analyze(tmp_path, "numbers", **own())
    content = json.loads((tmp_path / "analysis.json").read_text())
    found = read_numbers(content)
    assert len(found) == sum(map(len, COLUMNS.values()))
    assert set(read_numbers(content, ["lambda1"])) == {"λ1", "λ1/λ5"}
    made = make_tables({"a run of a long name": found})
    assert [t.title for t in made] == list(COLUMNS)
    for table in made:
        pieces = split_to_width(table, 80)
        assert [c for p in pieces for c in p.columns[1:]] == table.columns[1:]  # nothing is lost
        assert len({p.title for p in pieces}) == min(len(pieces), 2)
        for p in pieces:
            assert sum(max(len(r[i]) for r in [p.columns, *p.rows]) + 2 for i in range(len(p.columns))) - 2 <= 80


def test_over_seeds() -> None:
    each: list[dict[str, Any]] = [{"λ1": (1.0, None), "trace": (5.0, 1.0)}, {"λ1": (3.0, None)}]
    assert average_seeds(each) == {"λ1": (2.0, pytest.approx(2**0.5)), "trace": (5.0, 1.0)}  # what only one seed has
    assert average_seeds(each[:1]) == each[0]


def test_numbers_as_people_read_them() -> None:
    assert format_number((76.3, 9.3)) == "76 ± 9"
    assert format_number((140.2, 96.0)) == "140 ± 96"
    assert format_number((0.0, None)) == "0.00"
    assert format_number((1.5e-7, None)) == "1.50e-07"
    assert format_number((float("nan"), None)) == "nan"
    assert shorten_paths([Path("runs/a/seed-0"), Path("runs/a/seed-1"), Path("runs/b")]) == [
        "a/seed-0",
        "a/seed-1",
        "b",
    ]


def test_the_default_sample_is_never_of_the_run(tmp_path: Path) -> None:
    """Two runs with different seeds and partitions are measured on the same examples."""
    finished(tmp_path / "a", seed=0)
    finished(tmp_path / "b", seed=5, partition="dirichlet(0.5)")
    samples: list[Sample] = [opened(tmp_path / name, samples=30).subject.sample for name in "ab"]
    assert samples[0].name == samples[1].name
    assert torch.equal(samples[0].inputs, samples[1].inputs)
