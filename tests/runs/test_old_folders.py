"""Folders written by version 0.1.0 are read, resumed, reported and analysed.

`named` is a run of the command line (fedsam+ema), `own` one of a module from Python, `comparison` what `steppe compare`
wrote. The `*-after-six.jsonl` are the records that version 0.1.0 itself wrote when it went on to six rounds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import steppe
from steppe.cli.app import app
from steppe.core.errors import SteppeError
from steppe.data import load
from steppe.report import repeat
from steppe.report.read_runs import read
from steppe.runs.folder import RunFolder

WRITTEN = Path(__file__).parents[1] / "fixtures" / "v0.1.0"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(WRITTEN, tmp_path / "old")
    return tmp_path / "old"


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def call(*words: Any) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def assert_close(new: Any, old: Any, relative: float, where: str) -> None:
    """The same numbers under every key that the old version wrote, except times."""
    if isinstance(old, dict):
        for key in old.keys() - {"seconds"}:
            assert_close(new[key], old[key], relative, f"{where}.{key}")
    elif isinstance(old, list):
        assert len(new) == len(old), where
        for i, (a, b) in enumerate(zip(new, old, strict=True)):
            assert_close(a, b, relative, f"{where}[{i}]")
    elif isinstance(old, float):
        assert new == pytest.approx(old, rel=relative, abs=relative * 1e-3), where
    else:
        assert new == old, where


def check_six_rounds(where: Path, relative: float) -> None:
    records = RunFolder(where).history
    wanted = [json.loads(line) for line in (WRITTEN / f"{where.name}-after-six.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == [r["round"] for r in wanted] == [1, 2, 3, 4, 5, 6]
    for new, old in zip(records, wanted, strict=True):
        assert_close(new, old, relative, f"round {old['round']}")
    assert len(records[-1]["participants"]) == 3


def test_named_run_is_loaded(old: Path) -> None:
    run = steppe.load(old / "named")
    data = load("digits")
    with torch.no_grad():
        inputs = (data.test_inputs.float() / 255 - data.mean[0]) / data.std[0]
        correct = run.model(inputs).argmax(1) == data.test_targets
    assert run.history[-1]["round"] == 4
    assert run.summary is not None
    assert float(correct.double().mean()) == pytest.approx(run.summary["last"], abs=1e-9)


def test_run_of_an_own_module_is_loaded(old: Path) -> None:
    with pytest.raises(steppe.SteppeError, match=r"steppe\.load\('.*own', model=YourModule\(\)\)"):
        _ = steppe.load(old / "own").model
    run = steppe.load(old / "own", linear())
    assert next(run.model.parameters()).dtype == torch.float64


def test_named_run_goes_on(old: Path) -> None:
    call("run", "--resume", "--out", old / "named", "--rounds", 6)
    check_six_rounds(old / "named", 1e-4)  # float32, whose last digits depend on the machine


def test_run_of_an_own_module_goes_on(old: Path) -> None:
    steppe.run("scaffold", linear(), clients=6, per_round=3, epochs=1, checkpoint_every=4, rounds=6, dtype="float64",
               workers=0, out=old / "own", resume=True, progress=False)  # fmt: skip
    check_six_rounds(old / "own", 1e-12)
    assert RunFolder(old / "own").own == ["model"]  # from now on it is recorded


def test_another_module_is_refused(old: Path) -> None:
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    with pytest.raises(steppe.SteppeError, match="number of parameters was 650 and is 640"):
        steppe.run("scaffold", other, clients=6, per_round=3, epochs=1, checkpoint_every=4, rounds=6, dtype="float64",
                   workers=0, out=old / "own", resume=True, progress=False)  # fmt: skip


@pytest.mark.parametrize("name", ["named", "comparison"])
@pytest.mark.parametrize("kind", ["html", "md", "tex"])
def test_reports(old: Path, tmp_path: Path, name: str, kind: str) -> None:
    call("report", old / name, "--format", kind, "--out", tmp_path / f"r.{kind}")
    text = (tmp_path / f"r.{kind}").read_text("utf-8")
    label = {"named": "fedsam", "comparison": "fedprox"}[name]
    assert label in text
    assert "written by version 0.1.0" in text  # what is not known is said


def test_what_was_not_recorded_is_not_guessed(old: Path) -> None:
    for run in read([old / "named", old / "own"]).runs:
        assert run.gradients is None
    named, own = (read([old / name]).runs[0] for name in ("named", "own"))
    assert "if none was, this command repeats it" in repeat.explain_repeat(named).sentence
    assert "steppe run fedsam --add ema" in (repeat.explain_repeat(named).command or "")
    assert repeat.explain_repeat(own).command is None


def test_analyses(old: Path) -> None:
    shown = call("analyze", old / "named", "--samples", 200, "-m", "lambda1,gradient_norm")
    assert "λ1" in shown
    found = RunFolder(old / "named").read_analysis()
    assert found is not None
    assert {"lambda1", "gradient_norm"} <= set(found["measures"])


@pytest.mark.parametrize("factor", [1 + 1e-12, 1.01])
def test_another_machines_last_digits_are_no_other_data(old: Path, factor: float) -> None:
    about = json.loads((old / "named" / "about.json").read_text())
    about["inputs"]["mean"] = [factor * value for value in about["inputs"]["mean"]]
    (old / "named" / "about.json").write_text(json.dumps(about))
    if factor < 1.001:
        assert "gradient_norm" in steppe.analyze(old / "named", measures=["gradient_norm"], samples=50)
    else:
        with pytest.raises(steppe.SteppeError, match="not trained with the data"):
            steppe.analyze(old / "named", measures=["gradient_norm"], samples=50)


def test_plots(old: Path, tmp_path: Path) -> None:
    call("plot", old / "comparison", "--out", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_goes_on_with_the_seeds_that_it_had(old: Path) -> None:
    """As the upgrade notes say: its seeds share one partition, which is `vary = model`."""
    keys = {k: v for k, v in RunFolder(old / "comparison" / "fedavg" / "seed-0").read("config.json").items()
            if k not in ("algorithm", "seed", "track")}  # fmt: skip
    with pytest.raises(SteppeError, match="vary was None and is 'all'"):
        steppe.compare(["fedavg", "fedprox"], seeds=2, out=old / "comparison", progress=False, **keys)
    found = steppe.compare(["fedavg", "fedprox"], seeds=2, vary="model", out=old / "comparison", progress=False, **keys)
    assert [line.seeds for line in found.lines] == [2, 2]
    assert not any("format" in run.about for run in found.runs["fedavg"])  # nothing was trained again
