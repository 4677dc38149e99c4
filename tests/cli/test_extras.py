"""The library alone: everything else that a command needs is asked for in one sentence, with the command to type."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from steppe.core.errors import make_missing_error
from tests.cli.conftest import Steppe

QUICK = ("-s", "model=mlp", "-s", "clients=4", "-s", "per_round=2", "-s", "max_steps=2", "-s", "workers=0", "-r", "1")
EXTRAS = ["cryptography", "datasets", "dp_accounting", "flwr", "mlflow", "onnx", "optuna", "pandas", "plotly", "scipy",
          "tensorboard", "wandb"]  # fmt: skip


class Hiding:
    """Python's own finder, blind for the extras: as if nobody had installed them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in EXTRAS else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(context: Any) -> Any:
        return [] if context.name in EXTRAS else PathFinder.find_distributions(context)


@pytest.fixture
def alone(steppe: Steppe, monkeypatch: pytest.MonkeyPatch) -> Steppe:
    """The command line of an installation without extras."""
    for name in [m for m in sys.modules if m.partition(".")[0] in EXTRAS]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hiding if f is PathFinder else f for f in sys.meta_path])
    return steppe


def test_the_extras_are_hidden(alone: Steppe) -> None:
    for name in EXTRAS:
        with pytest.raises(ImportError):
            __import__(name)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flwr")


@pytest.mark.parametrize(("words", "extra"), [
    (["run", "--track", "tensorboard", *QUICK], "tensorboard"),
    (["run", "--track", "wandb:online", *QUICK], "wandb"),
    (["sweep", "fedavg", "--grid", "lr=0.1", "-s", 'track=["mlflow"]', *QUICK], "mlflow"),
    (["run", "--add", "dp", *QUICK], "dp"),
    (["compare", "fedavg", "fedavg+dp", *QUICK], "dp"),
    (["sweep", "fedavg", "--grid", "lr=0.1", "--add", "dp", *QUICK], "dp"),
    (["sweep", "fedsam", "--search", "2", "--range", "rho=0.1..1", "-s", "validation=0.1", *QUICK], "optuna"),
    (["run", "-s", "data=hub:some/set", *QUICK], "hub"),
    (["partition", "--data", "svhn", "--data-folder", "."], "mat"),
    (["run", "-s", "data=svhn", "-s", "data_folder=.", *QUICK], "mat"),
    (["federate", "up"], "flower"),
    (["federate", "init", "study"], "flower"),
], ids=lambda v: " ".join(v[:4]) if isinstance(v, list) else v)  # fmt: skip
def test_what_is_not_installed_is_asked_for(alone: Steppe, words: list[str], extra: str, tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    said = alone(*words)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert f"pip install 'steppe[{extra}]'" in said.err
    assert [p.name for p in tmp_path.iterdir()] == ["svhn"]  # nothing was begun


def test_what_the_library_does_alone(alone: Steppe, tmp_path: Path) -> None:
    for words in (["run", "fedsam", "--out", "one", *QUICK], ["compare", "fedavg", "scaffold", "--out", "two", *QUICK],
                  ["analyze", "one", "-m", "lambda1,loss", "--samples", "50"], ["plot", "one", "two"],
                  ["report", "two", "--format", "md", "-o", "r.md"], ["report", "two", "-o", "r.tex"]):  # fmt: skip
        said = alone(*words)
        assert said.code == 0, said.err
    page = tmp_path / "report.html"  # after a demo, without another install
    assert alone("report", "two", "-o", page).code == 0
    assert page.stat().st_size < 100_000


def test_the_command_is_for_the_python_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my env/bin/python"))
    monkeypatch.setattr(shutil, "which", lambda _: str(tmp_path / "my env/bin/pip"))
    assert str(make_missing_error("It needs x", "x")) == "It needs x; install it with: pip install 'steppe[x]'"
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/pip")
    assert f"'{tmp_path}/my env/bin/python' -m pip install" in str(make_missing_error("It needs x", "x"))
    monkeypatch.chdir(tmp_path)
    assert "with: 'my env/bin/python' -m pip install" in str(make_missing_error("It needs x", "x"))
