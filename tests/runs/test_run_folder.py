"""What a run's folder says is what happened, and one process writes to it."""

from __future__ import annotations

import importlib
import json
import linecache
import multiprocessing
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe import Metric, SteppeError
from steppe.core.scopes import LocalStep, Oracle
from steppe.data import load
from steppe.runs.folder import RunFolder, check_place
from tests.scene import Net, blobs, launch, listening, seeded

MINE = """
from dataclasses import dataclass
import steppe
from torch import nn
from torch.nn import functional as F

@dataclass(frozen=True)
class Slower(steppe.Part):
    name = "slower"
    by: float = 0.5

    def gradient(self, grad, w, s):
        return self.by * grad(w)

class Small(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

def smooth(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)
"""


@dataclass(frozen=True)
class LookBack(steppe.Part):
    """A part of the user's own: the gradient a little behind."""

    name = "look_back"
    rho: float = 0.1

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w - self.rho * (w - s.x))


class Wider(nn.Module):
    """The same tensors as `Net`, another function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).abs()


SHORT: dict[str, Any] = {"clients": 3, "per_round": 2, "rounds": 2, "batch": 8, "partition": "iid", "workers": 0}


def about(out: Path) -> dict[str, Any]:
    return json.loads((out / "about.json").read_text())


def test_objects_of_the_users_own_are_recorded_as_such(tmp_path: Path) -> None:
    x, _, tx, _ = blobs()
    out = tmp_path / "own"
    metric = Metric("absolute_error", absolute, lower=True)
    result = steppe.run(LookBack(0.2), nn.Linear(6, 1), (x, x[:, 0], tx, tx[:, 0]), loss=absolute, metric=metric,
                        out=out, **SHORT)  # fmt: skip
    config, told = json.loads((out / "config.json").read_text()), about(out)
    assert config["algorithm"] == "own:tests.runs.test_run_folder.LookBack"
    assert config["model"] == "own:torch.nn.modules.linear.Linear"
    assert config["data"] == "own:arrays"
    assert told["parts"][0] == {"part": "look_back", "type": "tests.runs.test_run_folder.LookBack", "rho": 0.2}
    assert told["metric"] == {"name": "absolute_error", "direction": "lower", "percent": False}
    assert told["loss"] == {"own": True, "type": "tests.runs.test_run_folder.absolute"}
    assert (told["data"]["train"], told["data"]["test"], told["parameters"]) == (90, 30, 7)
    assert RunFolder(out).own == ["algorithm", "model", "data", "loss"]
    curve = [r["absolute_error"] for r in result.history]
    assert result.summary["best"] == min(curve)
    assert not any("accuracy" in r for r in result.history)


def test_named_things_have_names(tmp_path: Path) -> None:
    steppe.run("fedsam", "mlp", "digits", add=["ema"], out=tmp_path / "run", **{**SHORT, "rounds": 1})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["algorithm"], config["add"], config["model"], config["data"]) == ("fedsam", ["ema"], "mlp", "digits")
    assert RunFolder(tmp_path / "run").own == []
    assert about(tmp_path / "run")["data"]["hash"] == load("digits").hash


def test_every_round_names_its_clients(tmp_path: Path) -> None:
    result = launch(tmp_path / "run", dropout=0.3)
    for record in result.history:
        called = result.experiment.sample(record["round"] - 1)
        assert record["participants"] == [i for i in called if i not in record.get("dropped", [])]
        assert record["clients"] == len(record["participants"])


def test_a_resumed_run_must_have_its_data_and_its_model(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launch(out, rounds=2)
    x, y, tx, ty = blobs()
    with pytest.raises(SteppeError, match="the content of the data differs from the run's"):
        launch(out, resume=True, data=(x + 1e-3, y, tx, ty))
    torch.manual_seed(3)
    with pytest.raises(SteppeError, match=r"model was 'own:tests.scene.Net' and is 'own:tests.runs.*Wider'"):
        launch(out, resume=True, model=Wider())
    changed = seeded()
    changed.last = nn.Sequential(nn.Linear(16, 3), nn.Identity())
    with pytest.raises(SteppeError, match=r"differs from the run's|parameters"):
        launch(out, resume=True, model=changed)
    with pytest.raises(SteppeError, match="head was 'last' and is 'first'"):
        launch(out, resume=True, rounds=3, head="first")
    assert len(launch(out, resume=True, rounds=3).history) == 3


def test_a_run_goes_on_with_the_same_classes_of_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {
        "in_script": MINE,
        "in_package": MINE,
        "changed": MINE.replace("self.by *", "2 * self.by *"),
    }.items():
        (tmp_path / f"{name}.py").write_text(text)

    def go_on(name: str, rounds: int, by: float = 0.5, **more: Any) -> steppe.Result:
        of = importlib.import_module(name)
        return launch(tmp_path / "run", resume=rounds > 1, model=of.Small(), algorithm=of.Slower(by), loss=of.smooth,
                      rounds=rounds, **more)  # fmt: skip

    go_on("in_script", 1)
    with listening() as said:
        assert len(go_on("in_package", 2).history) == 2
    assert any("in_script.Small is in_package.Small now" in line for line in said)
    with pytest.raises(SteppeError, match=r"the code of changed\.Slower .* is not what it was"):
        go_on("changed", 3)
    with pytest.raises(SteppeError, match=r"by of \w+ was 0\.5 and is 0\.4"):
        go_on("in_package", 3, by=0.4)


OBJECTS = """
import torch
from torch import nn

class Block(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()

class Small(nn.Sequential):
    def __init__(self):
        torch.manual_seed(1)
        super().__init__(Block(6, 4), nn.Linear(4, 3))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def error(outputs, targets):
    return (outputs.argmax(1) != targets).float()

def rule(gradient, w, memory, k):
    return gradient

def make(**more):
    return dict(model=Small(), loss=loss, metrics=error, optimiser=rule, momentum=0, predict=lambda o: o[:, :3], **more)
"""


@pytest.mark.parametrize(("before", "after", "named"), [
    (".relu()", ".tanh()", "Block"), ('"none")', '"none") * 2', "loss"), ("!=", "==", "error"),
    ("return gradient", "return 2 * gradient", "rule"), ("o[:, :3]", "o[:, :3] * 2", "make.<locals>.<lambda>"),
])  # fmt: skip
def test_the_code_of_own_objects_is_compared_on_resume(
    tmp_path: Path, before: str, after: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def go_on(text: str, rounds: int) -> steppe.Result:
        (tmp_path / "objects.py").write_text(text)
        linecache.clearcache()
        sys.modules.pop("objects", None)
        module = importlib.import_module("objects")
        return launch(tmp_path / "run", resume=rounds > 1, algorithm="fedavg", **module.make(rounds=rounds))

    go_on(OBJECTS, 1)
    assert len(go_on(OBJECTS.replace("**more)", "** more)"), 2).history) == 2  # the line of the lambda, but not itself
    with pytest.raises(SteppeError, match=rf"the code of objects\.{re.escape(named)} in .* is not what it was"):
        go_on(OBJECTS.replace(before, after), 3)


def test_a_model_that_computes_something_else_is_another(tmp_path: Path) -> None:
    from steppe.runs.provenance import hash_structure

    assert hash_structure(Net()) == hash_structure(seeded())
    assert hash_structure(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) != hash_structure(
        nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    )
    frozen = Net()
    frozen.first.weight.requires_grad = False
    assert hash_structure(frozen) != hash_structure(Net())


def _hold(path: Path, held: Any, release: Any) -> None:
    with RunFolder(path).lock():
        held.set()
        release.wait(20)


def test_a_second_process_is_refused_in_a_sentence(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "run", held, release))
    other.start()
    assert held.wait(20)
    try:
        with pytest.raises(SteppeError, match=r"Another process is writing to .*run"):
            launch(tmp_path / "run")
    finally:
        release.set()
        other.join()
    launch(tmp_path / "run", rounds=1)


def test_places_that_cannot_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("/", tmp_path / "file", "a\0b", "x" * 5000):
        with pytest.raises(SteppeError, match="cannot be the folder of a run"):
            check_place(place)
    check_place(tmp_path / "new")


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append({"round": 1, "loss": float("nan"), "each": [1.0, float("inf")]})
    assert folder.history == [{"round": 1, "loss": None, "each": [1.0, None]}]
    folder.write("result.json", {"last": float("-inf")})
    assert folder.read("result.json") == {"last": None}


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe", b"[1, 2]", b"{", b"[" * 100_000, b"null", b'"text"'], ids=lambda b: repr(b[:8])
)
@pytest.mark.parametrize("name", ["config.json", "about.json", "result.json", "analysis.json", "rounds.jsonl"])
def test_a_damaged_file_is_named(name: str, damage: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(damage + b"\n" + damage)
    folder = RunFolder(tmp_path)
    with pytest.raises(SteppeError, match=f"{name} is damaged"):
        _ = folder.history if name == "rounds.jsonl" else folder.read(name)


@pytest.mark.parametrize("name", ["config.json", "rounds.jsonl"])
def test_a_pipe_or_device_in_the_place_of_a_file_is_not_read(name: str, tmp_path: Path) -> None:
    """A folder from elsewhere may hold either, and reading it would never end."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(SteppeError, match=f"{name} is damaged.*not an ordinary file"):
        _ = RunFolder(tmp_path).history if name == "rounds.jsonl" else RunFolder(tmp_path).read(name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(SteppeError, match=f"{name} is damaged.*not an ordinary file"):
        _ = RunFolder(tmp_path).history if name == "rounds.jsonl" else RunFolder(tmp_path).read(name)


def test_the_callers_random_state_and_switches_are_left_alone() -> None:
    model = seeded()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    launch(rounds=1, model=model)
    assert torch.equal(torch.rand(3), expected)


def test_progress_and_warnings_are_shown_and_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    launch(rounds=2)
    assert "round 2/2  accuracy" in capsys.readouterr().err
    launch(rounds=2, progress=False)
    assert capsys.readouterr().err == ""
    with listening() as said:
        launch(rounds=1, progress=False)
    assert any("memory:" in text for text in said)
