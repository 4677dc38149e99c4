"""What can be made of a result, and of a run that was read back: views, tables, pictures, exports."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import steppe
from steppe.core.errors import SteppeError
from steppe.runs import outcome
from tests.scene import Net, blobs, launch, listening

FEW: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 2, "max_steps": 1, "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def result() -> steppe.Result:
    return steppe.run("fedsam", "mlp", **FEW)


@pytest.fixture(scope="module")
def loaded(result: steppe.Result, tmp_path_factory: pytest.TempPathFactory) -> steppe.Run:
    return steppe.load(result.save(tmp_path_factory.mktemp("saved") / "run"))


def test_a_result_is_shown_in_one_line_and_as_a_table_in_notebooks(result: steppe.Result, loaded: steppe.Run) -> None:
    score = f"accuracy {100 * result.accuracy:.2f} %"
    assert repr(result) == f"<Result of fedsam: {score} after 2 rounds>"
    assert repr(loaded) == f"<Run of fedsam: {score} after 2 rounds, in {loaded.folder}>"
    page = loaded._repr_html_()
    assert "<table>" in page
    assert f"{100 * result.accuracy:.2f} %" in page
    assert str(loaded.folder) in page
    odd = loaded.folder.with_name("<b>")
    shutil.copytree(loaded.folder, odd)
    assert "<b>" not in steppe.load(odd)._repr_html_()  # a folder's name is text


def test_the_model_of_a_result_can_be_trained_on(tmp_path: Path) -> None:
    """It is one module, not a new one at every look; what is saved is still the run's."""
    result = steppe.run("fedavg", Net(), blobs(), **FEW)
    before = result.model.state_dict()["first.weight"].clone()
    optimiser = torch.optim.SGD(result.model.parameters(), lr=1.0)
    result.model(blobs()[0]).sum().backward()
    optimiser.step()
    assert not torch.equal(result.model.state_dict()["first.weight"], before)
    back = steppe.load(result.save(tmp_path / "run"), model=Net())
    assert torch.equal(back.model.state_dict()["first.weight"], before)


def test_save_writes_what_load_reads(result: steppe.Result, tmp_path: Path) -> None:
    path = result.save(tmp_path / "run")
    back = steppe.load(path)
    assert back.history == result.history
    assert back.summary == result.summary
    assert back.score == result.score
    for name, tensor in result.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], tensor)
    exported = result.export(tmp_path / "model.safetensors")
    assert {p.stat().st_mode for p in (exported, path / "model.safetensors", path / "config.json")} == {
        (path / "config.json").stat().st_mode
    }
    with pytest.raises(SteppeError, match="already holds a run"):
        result.save(path)
    assert steppe.analyze(path, "gradient_norm", samples=20)["gradient_norm"]["value"] > 0


def test_a_run_that_has_not_finished_says_so(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path / "run", watch=stop)
    run = steppe.load(tmp_path / "run")
    assert "not finished after 1 round, in" in repr(run)
    assert "not finished" in run._repr_html_()
    with pytest.raises(SteppeError, match="has not finished, so it has no final score"):
        _ = run.score
    with pytest.raises(SteppeError, match="no model yet"):
        run.export(tmp_path / "model.pt")


def test_frame_is_the_table_of_rounds(result: steppe.Result, loaded: steppe.Run, monkeypatch: Any) -> None:
    pytest.importorskip("pandas")
    table = result.frame()
    assert list(table.index) == [1, 2]
    assert table["accuracy"].tolist() == [r["accuracy"] for r in result.history]
    assert table["seconds.all"].tolist() == [r["seconds"]["all"] for r in result.history]
    assert "participants" not in table
    assert table.equals(loaded.frame())
    monkeypatch.setattr(outcome, "find_spec", lambda name: None)
    with pytest.raises(SteppeError, match=r"pip install 'steppe\[pandas\]'"):
        result.frame()
    with pytest.raises(SteppeError, match="needs matplotlib"):
        result.plot()


def test_plot_draws_the_records(result: steppe.Result, tmp_path: Path) -> None:
    import matplotlib

    backend = matplotlib.rcParams._get("backend")
    left, right = result.plot(tmp_path / "curves.svg")
    assert left.lines[0].get_ydata().tolist() == [100 * r["accuracy"] for r in result.history]
    assert right.lines[0].get_ydata().tolist() == [r["loss"] for r in result.history]
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    assert all(tick == round(tick) for axis in (left, right) for tick in axis.get_xticks())  # there is no round 1.5
    assert matplotlib.rcParams._get("backend") == backend  # a notebook keeps showing its figures
    with pytest.raises(SteppeError, match=r"curves\.xyz cannot be written as a picture"):
        result.plot(tmp_path / "curves.xyz")


def test_a_state_dict_comes_back_without_steppe(result: steppe.Result, loaded: steppe.Run, tmp_path: Path) -> None:
    own = result.model.state_dict()
    plain = torch.load(result.export(tmp_path / "new/model.pt"), weights_only=True)
    safe = load_file(loaded.export(tmp_path / "model.safetensors"))
    assert list(plain) == list(own)
    for name, tensor in own.items():
        assert torch.equal(plain[name], tensor)
        assert torch.equal(safe[name], tensor)
    with pytest.raises(SteppeError, match=r"known: \.onnx, \.pt, \.safetensors"):
        result.export(tmp_path / "model.h5")


def test_onnx_gives_the_models_outputs(
    result: steppe.Result, loaded: steppe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    inputs = result.example()[:1].repeat(5, 1, 1, 1)  # another batch size than the example's
    expected = result.model(inputs).detach()
    program = reference.ReferenceEvaluator(str(loaded.export(tmp_path / "model.onnx")))
    (got,) = program.run(None, {program.input_names[0]: inputs.numpy()})
    assert torch.allclose(torch.from_numpy(got), expected, atol=1e-5)
    again = loaded.export(tmp_path / "again.onnx", example=inputs.double().numpy())
    (same,) = reference.ReferenceEvaluator(str(again)).run(None, {program.input_names[0]: inputs.numpy()})
    assert (same == got).all()
    with warnings.catch_warnings(), monkeypatch.context() as patch:
        warnings.simplefilter("error")
        heard: list[logging.LogRecord] = []
        patch.setattr(logging.Logger, "handle", lambda self, record: heard.append(record))
        loaded.export(tmp_path / "quiet.onnx")
    assert not [record.getMessage() for record in heard if record.levelno >= logging.WARNING]
    with pytest.raises(SteppeError, match=r"export: example has 0\.5 in it: pass a tensor or a NumPy array"):
        loaded.export(tmp_path / "never.onnx", example=[0.5, 1.0])
    with pytest.raises(SteppeError, match=r"export: the model cannot take these inputs: .*shapes cannot be multiplied"):
        loaded.export(tmp_path / "never.onnx", example=inputs[:, :, :3])


def test_a_run_without_test_data_has_ended_without_a_score(tmp_path: Path) -> None:
    x, y, test_x, test_y = blobs()
    ended = steppe.run("fedavg", Net(), (x, y, test_x[:0], test_y[:0]), out=tmp_path / "run", **FEW)
    assert "no test data after 2 rounds" in repr(ended)
    for name in ("score", "accuracy"):
        with pytest.raises(SteppeError, match="no test data, so there is no score"):
            getattr(ended, name)
    with pytest.raises(SteppeError, match="no test data, so there is nothing to report"):
        steppe.write_report(tmp_path / "run")


def test_onnx_without_its_packages_or_a_shape(result: steppe.Result, tmp_path: Path, monkeypatch: Any) -> None:
    own = steppe.run("fedavg", Net(), blobs(), **FEW)
    back = steppe.load(own.save(tmp_path / "own"), model=Net())
    monkeypatch.setattr(steppe.Run, "_check_onnx", lambda self: None)
    with pytest.raises(SteppeError, match="pass example="):
        back.export(tmp_path / "model.onnx")
    monkeypatch.setattr(outcome, "find_spec", lambda name: None)
    with pytest.raises(SteppeError, match=r"pip install 'steppe\[onnx\]'"):
        result.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_callback_that_raises_is_named_once_and_switched_off() -> None:
    seen: list[int] = []

    def forgetful(record: dict[str, Any]) -> None:
        seen.append(record["round"])
        raise KeyError("colour")

    rounds: list[int] = []
    with listening() as said:
        done = launch(watch=[forgetful, lambda record: rounds.append(record["round"])], progress=False)
    assert done.summary["rounds"] == 5
    assert seen == [1]
    assert rounds == [1, 2, 3, 4, 5]
    assert [line for line in said if "forgetful" in line] == [
        "watch: forgetful failed and is no longer used: KeyError: 'colour'"
    ]
    with pytest.raises(SteppeError, match="watch: 3 is not a function"):
        launch(watch=3)


def test_the_page_about_results_tells_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of Python on docs/how-to/results.md runs, with fewer rounds."""
    pytest.importorskip("pandas")
    pytest.importorskip("onnxscript")
    import re

    import matplotlib.pyplot

    page = (Path(__file__).parents[2] / "docs/how-to/results.md").read_text()
    monkeypatch.chdir(tmp_path)
    short = {"model": "mlp", "clients": 4, "per_round": 2, "max_steps": 1, "workers": 0, "progress": False}
    run = steppe.run
    monkeypatch.setattr(steppe, "run", lambda *args, **given: run(*args, **{**given, **short, "rounds": 2}))
    monkeypatch.setattr(matplotlib.pyplot, "figure", lambda **given: matplotlib.figure.Figure(**given))
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace('["tensorboard", Notes()], out="runs/mine"', "[Notes()]"), {"steppe": steppe})
    assert {"model.pt", "model.safetensors", "model.onnx", "runs"} <= {path.name for path in tmp_path.iterdir()}
