"""A page says what ran, and prints a command only where that command would repeat the run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.cli import arguments
from steppe.data import Partition
from steppe.report.comparison import Run
from steppe.report.read_runs import read
from steppe.report.repeat import Repeat, explain_repeat
from steppe.report.write import write
from steppe.runs.folder import RunFolder
from tests.report.test_report import change

QUICK: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 2, "epochs": 1, "workers": 0, "progress": False}
SAID_FALSELY = re.compile(r"fedavg|digits|\bcnn\b|accuracy", re.I)


@dataclass(frozen=True)
class LookBack(steppe.Part):
    """Pull towards the start of the round."""

    name = "look_back"
    strength: float = 0.1

    def gradient(self, grad: Any, w: Tensor, s: Any) -> Tensor:
        return grad(w) + self.strength * (w - s.x)


class Ramp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x).squeeze(-1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs()


def cubed_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return absolute_error(outputs, targets) ** 3


def top_two(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.topk(2).indices == targets[:, None]).any(1).double()


def arrays() -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)
    return x[:48], y[:48], x[48:], y[48:]


def launch(out: Path, **more: Any) -> Run:
    """A run of nothing but the user's own objects, unless others are given."""
    own = {"algorithm": LookBack(), "data": arrays(), "model": Ramp(), "loss": absolute_error, "metric": cubed_error}
    torch.manual_seed(0)
    steppe.run(**{**own, **QUICK, **more}, out=out)  # type: ignore[arg-type]
    return read([out]).runs[0]


def named(out: Path, **more: Any) -> Run:
    return launch(out, **{"algorithm": "fedsam", "data": None, "model": "mlp", "loss": None, "metric": None, **more})


def visible(path: Path) -> str:
    """What a reader can see of a page, and the data of its figures."""
    text = path.read_text("utf-8")
    return unescape(re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.S))


def test_a_run_of_own_objects_is_told_truly(tmp_path: Path) -> None:
    run = launch(tmp_path / "r")
    folder = RunFolder(tmp_path / "r")
    assert folder.own == ["algorithm", "model", "data", "loss"]
    for name in ("config.json", "about.json", "result.json", "rounds.jsonl"):
        assert not SAID_FALSELY.search((tmp_path / "r" / name).read_text()), name
    where = __name__
    about = folder.about
    assert about["metric"]["name"] == "cubed_error"
    assert not about["metric"]["percent"]
    said = explain_repeat(run)
    assert said.command is None
    for fact in (f"{where}.LookBack", f"{where}.Ramp", f"{where}.absolute_error", about["data"]["hash"],
                 about["model"]["structure"], "48 training and 12 test examples", "clients=4", "rounds=2"):  # fmt: skip
        assert fact in said.sentence
    for page in (tmp_path / "r.md", tmp_path / "r.tex", tmp_path / "r.html"):
        write([tmp_path / "r"], page)
        text = visible(page)
        assert not SAID_FALSELY.search(text), (page, SAID_FALSELY.search(text))
        assert "steppe run" not in text
        plain = text.replace("\\_", "_").replace("-{}", "-")
        assert f"{where}.LookBack" in plain
        assert about["data"]["hash"] in plain
        assert "look_back reached" in plain


def test_a_regression_has_no_percentages(tmp_path: Path) -> None:
    run = launch(tmp_path / "r", loss="mse", metric=None)
    assert (run.metric.name, run.metric.lower) == ("mse", True)
    for page in (tmp_path / "r.md", tmp_path / "r.html"):
        write([tmp_path / "r"], page, figures=tmp_path / "figures")
        text = visible(page)
        assert "test mse" in text
        assert not re.search(r"accuracy|%(?!\{)", text), re.search(r".{30}(accuracy|%(?!\{)).{30}", text)


def words_of(said: Repeat) -> Any:
    """The configuration that the command asks for."""
    assert said.command is not None
    words = shlex.split(said.command)
    options: dict[str, list[str]] = {"--set": [], "--add": [], "--rounds": []}
    for option, value in zip(words[3::2], words[4::2], strict=True):
        options[option].append(value)
    return arguments.read_configuration(words[2], None, options["--set"], options["--add"], int(options["--rounds"][0]))


def test_a_named_run_has_its_command(tmp_path: Path) -> None:
    run = named(tmp_path / "r", rho=0.03)
    said = explain_repeat(run)
    assert said.sentence == ""
    assert words_of(said) == run.folder.config


@pytest.mark.parametrize(("own", "fact"), [
    ({"loss": "mse", "model": Ramp(), "data": arrays()}, "Ramp"),
    ({"metric": top_two}, f"the metric {__name__}.top_two"),
    ({"loss": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")}, "the loss "),
    ({"head": "0"}, "the head "),
    ({"algorithm": LookBack()}, "LookBack"),
])  # fmt: skip
def test_one_own_object_is_enough(tmp_path: Path, own: dict[str, Any], fact: str) -> None:
    if "head" in own:
        own = {"head": next(name for name, m in named_model().named_modules() if isinstance(m, nn.Linear))}
        fact += own["head"]
    said = explain_repeat(named(tmp_path / "r", **own))
    assert said.command is None
    assert fact in said.sentence


def test_the_names_and_the_parts_settings_are_told_too(tmp_path: Path) -> None:
    said = explain_repeat(named(tmp_path / "r", algorithm="fedsam", add=[LookBack(0.3), "ema"]))
    assert "LookBack(strength=0.3)" in said.sentence
    assert "algorithm='fedsam', add=['ema']" in said.sentence


def predictions(outputs: Tensor) -> Tensor:
    return outputs


@pytest.mark.parametrize(("own", "fact"), [
    ({"optimiser": torch.optim.AdamW}, "the optimiser torch.optim.adamw.AdamW"),
    ({"predict": predictions}, f"the function {__name__}.predictions as predict"),
])  # fmt: skip
def test_an_own_argument_of_a_named_run_is_told(tmp_path: Path, own: dict[str, Any], fact: str) -> None:
    said = explain_repeat(named(tmp_path / "r", **own))
    assert said.command is None
    assert fact in said.sentence
    assert "own:" not in said.sentence


def test_own_indices_are_repeated_from_the_runs_folder(tmp_path: Path) -> None:
    split = [np.arange(i, 48, 4) for i in range(4)]
    run = launch(tmp_path / "r", partition=split)
    file = str(tmp_path / "r/partition.json")
    assert f"partition={file!r}" in explain_repeat(run).sentence
    again = launch(tmp_path / "again", partition=file)
    assert again.about["partition"]["hash"] == run.about["partition"]["hash"]


def test_own_data_under_the_name_of_ours_are_own(tmp_path: Path) -> None:
    data = steppe.from_arrays(*arrays(), name="digits")
    run = launch(tmp_path / "r", data=data)
    assert run.config["data"] == "own:digits"
    assert run.about["data"]["own"]
    assert "the data digits (48 training and 12 test examples" in explain_repeat(run).sentence
    ours = named(tmp_path / "ours", data=steppe.data.load("digits"))
    assert ours.config["data"] == "digits"


def named_model() -> nn.Module:
    from steppe import models

    return models.build("mlp", 10, (1, 8, 8))


def test_a_partition_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    shutil.copy(named(tmp_path / "first").folder.path / "partition.json", file)
    run = named(tmp_path / "r", partition=str(file))
    assert explain_repeat(run) == Repeat("", explain_repeat(run).command)
    assert f"partition={file}" in (explain_repeat(run).command or "")
    file.unlink()
    said = explain_repeat(read([tmp_path / "r"]).runs[0])
    assert f"{file} no longer holds" in said.sentence
    kept = words_of(said).partition
    assert Partition.load(kept).hash == run.about["partition"]["hash"]


def test_data_that_are_elsewhere_or_different(tmp_path: Path) -> None:
    run = named(tmp_path / "r")
    change(tmp_path / "r/about.json", data={**run.about["data"], "hash": "f" * 16})
    said = explain_repeat(read([tmp_path / "r"]).runs[0])
    assert said.command is None
    assert "differs from the run's (hash ffffffffffffffff)" in said.sentence
    change(tmp_path / "r/config.json", data="folder:/nowhere/at/all")
    said = explain_repeat(read([tmp_path / "r"]).runs[0])
    assert "folder:/nowhere/at/all (hash ffffffffffffffff), which is not on this machine" in said.sentence
    assert "data=folder:/nowhere/at/all" in (said.command or "")


def test_a_federation_is_not_repeated_by_a_run(tmp_path: Path) -> None:
    named(tmp_path / "r")
    (tmp_path / "r/partition.json").unlink()
    change(tmp_path / "r/about.json", partition=None)
    said = explain_repeat(read([tmp_path / "r"]).runs[0])
    assert said.command is None
    assert "steppe federate" in said.sentence


def test_own_parts_with_other_settings_are_not_the_same_run(tmp_path: Path) -> None:
    for k, strength in enumerate((0.1, 0.2)):
        launch(tmp_path / str(k), algorithm=LookBack(strength))
    found = read([tmp_path / "0", tmp_path / "1"])
    assert [g.label for g in found.groups] == ["look_back", "1"]
    assert found.left_out == []


def test_other_data_of_the_same_name_are_refused(tmp_path: Path) -> None:
    launch(tmp_path / "a")
    x, y, test_x, test_y = arrays()
    launch(tmp_path / "b", data=(x, y + 1, test_x, test_y))
    with pytest.raises(steppe.SteppeError, match=r"of the same name, .*, but with different content"):
        read([tmp_path / "a", tmp_path / "b"])


def test_gradients_are_those_of_late_clients_too(tmp_path: Path) -> None:
    run = named(tmp_path / "r", speed="uniform(0.5, 1.5)", deadline="0.9x", clients=6, per_round=4, batch=30)
    held = [len(c) for c in json.loads((tmp_path / "r/partition.json").read_text())["clients"]]
    trained = [[*r["participants"], *r.get("late", [])] for r in run.records]
    assert any(r.get("late") for r in run.records)
    assert run.gradients is not None
    assert run.gradients.tolist() == np.cumsum([2 * sum(-(-held[i] // 30) for i in ids) for ids in trained]).tolist()


def test_a_federation_with_an_own_model_is_repeated_by_federate(tmp_path: Path) -> None:
    x, y = torch.randn(40, 3), torch.randn(40)
    steppe.run("fedavg", Ramp(), (x, y, x, y), out=tmp_path / "run", **QUICK)
    (tmp_path / "run" / "partition.json").unlink()  # the server of a federation has no partition
    told = explain_repeat(read([tmp_path / "run"]).runs[0])
    assert told.command is None
    assert told.sentence.startswith("Run by a federation of nodes, each with its own data, with the model ")
    assert told.sentence.endswith(": repeat it with steppe federate.")
