"""Trackers: what they wrote, read back with their own readers; that they send nothing; that they cost no run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from steppe.core.errors import RunFailed, SteppeError
from steppe.engine import trackers
from tests.scene import launch, listening, records


def _wants(name: str) -> None:
    if find_spec(trackers.TRACKERS[name][1]) is None:
        pytest.skip(f"{name} is not installed: pip install 'steppe[{name}]'")


# --- the interface


class Notebook:
    def __init__(self, fails_at: str = "") -> None:
        self.pages: list[tuple[str, Any]] = []
        self.fails_at = fails_at

    def _write(self, moment: str, content: Any) -> None:
        if moment == self.fails_at:
            raise OSError("the disk is full\nand more")
        self.pages.append((moment, content))

    def begin(self, config: dict[str, Any]) -> None:
        self._write("begin", config)

    def round(self, record: dict[str, Any]) -> None:
        self._write("round", record)

    def end(self, summary: dict[str, Any] | None) -> None:
        self._write("end", summary)


def test_an_own_tracker_sees_everything(tmp_path: Path) -> None:
    book = Notebook()
    result = launch(tmp_path / "run", track=[book])
    assert [moment for moment, _ in book.pages] == ["begin", *["round"] * 5, "end"]
    assert book.pages[0][1] == result.config.model_dump(mode="json")
    assert [content for _, content in book.pages[1:-1]] == result.history
    assert book.pages[-1][1] == result.summary


@pytest.mark.parametrize("moment", ["begin", "round", "end"])
def test_a_tracker_that_fails_is_left_out_and_said_once(moment: str) -> None:
    from steppe.config import resolve
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate

    bad, good = Notebook(moment), Notebook()
    config = resolve({"model": "mlp", "clients": 4, "per_round": 2, "rounds": 3, "max_steps": 1, "workers": 0})
    with listening() as said:
        result = simulate(build_experiment(config), trackers=[bad, good])
    assert result.summary["rounds"] == 3
    assert said[1:] == ["Notebook failed and is no longer used: OSError: the disk is full"]
    assert len(good.pages) == 5
    assert len(bad.pages) == {"begin": 0, "round": 1, "end": 4}[moment]


def test_what_a_callback_changes_is_its_own() -> None:
    import steppe

    few: dict[str, Any] = {"rounds": 2, "max_steps": 1, "workers": 0, "progress": False}
    seen = Notebook()
    result = steppe.run("fedavg", "mlp", watch=lambda record: record.clear(), track=[seen], **few)
    assert [r["round"] for r in result.history] == [1, 2]
    assert seen.pages[1] == ("round", result.history[0])


def test_what_is_no_callback_or_tracker_is_a_sentence() -> None:
    for wrong, sentence in (({"watch": 3}, "watch: 3 is not a function"),
                            ({"watch": "print"}, "watch: 'print' is not a function"),
                            ({"watch": [None, "log"]}, "watch: 'log' is not a function"),
                            ({"track": object()}, "neither the name of a tracker nor an object with begin"),
                            ({"track": [Notebook]}, "an instance of a steppe.Tracker"),
                            ({"track": "tensorbord"}, "did you mean 'tensorboard'")):  # fmt: skip
        with pytest.raises(SteppeError, match=sentence):
            launch(**wrong)


def test_a_run_that_fails_ends_its_trackers() -> None:
    book = Notebook()
    with pytest.raises(RunFailed):
        launch(algorithm="fedavg", lr=1e9, weight_decay=1e9, epochs=5, track=[book])
    assert book.pages[-1] == ("end", None)


def test_trackers_change_neither_the_name_nor_the_run(tmp_path: Path) -> None:
    from steppe.config import resolve

    assert resolve({"track": ["mlflow"]}).hash == resolve({}).hash != resolve({"lr": 0.1}).hash
    _wants("tensorboard")
    launch(tmp_path / "run", rounds=2)
    launch(tmp_path / "run", resume=True, track="tensorboard")  # may join later
    launch(tmp_path / "plain")
    assert records(tmp_path / "run") == records(tmp_path / "plain")


@pytest.mark.parametrize(
    ("track", "told"),
    [
        (["tensorbord"], "did you mean 'tensorboard'"),
        (["wandb:onlin"], "did you mean 'wandb:online'"),
        (["tensorboard:x"], "'tensorboard:x'"),
        ([Notebook], "an instance of a steppe.Tracker"),
    ],
)
def test_unknown_trackers(track: list[Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(SteppeError, match="track") as caught:
        launch(tmp_path / "run", track=track)
    assert told in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_missing_package_is_a_sentence_with_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(SteppeError, match=rf"pip install 'steppe\[{name}\]'"):
        trackers.check_trackers([name])


def test_a_named_tracker_needs_a_folder() -> None:
    _wants("tensorboard")
    with pytest.raises(SteppeError, match="folder"):
        launch(track=["tensorboard"])


# --- what they write


def test_tensorboard_has_every_number_also_of_a_resumed_run(tmp_path: Path) -> None:
    _wants("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    launch(out, rounds=3, track=["tensorboard"])
    launch(out, rounds=5, resume=True, track=["tensorboard"])
    found = EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    lines = records(out)
    for name in ("accuracy", "loss", "train_loss", "lr"):
        points = [(e.step, e.value) for e in found.Scalars(name)]
        assert [step for step, _ in points] == [1, 2, 3, 4, 5]
        assert [value for _, value in points] == pytest.approx([r[name] for r in lines], rel=1e-6)
    norms = [e.value for e in found.Scalars("server_norms.control_variates.c")]
    assert norms == pytest.approx([r["server_norms"]["control_variates.c"] for r in lines], rel=1e-6)
    texts = found.Tensors("config/text_summary")
    assert b'"algorithm": "scaffold"' in texts[0].tensor_proto.string_val[0]
    assert b'"last"' in found.Tensors("summary/text_summary")[-1].tensor_proto.string_val[0]


class Ear:
    """A proxy that nobody should call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.door = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self.door.accept()
            except OSError:
                return
            caller.settimeout(1)
            self.calls.append(caller.recv(200))
            caller.close()

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        both = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), address)
        return {**both, **{name.upper(): value for name, value in both.items()}, "no_proxy": "", "NO_PROXY": ""}


@pytest.fixture
def ear() -> Iterator[Ear]:
    one = Ear()
    yield one
    one.door.close()


QUICK = ["-s", "model=mlp", "-s", "clients=4", "-s", "per_round=2", "-s", "max_steps=1", "-s", "workers=0",
         "--rounds", "3", "-s", "checkpoint_every=1"]  # fmt: skip


def _steppe(where: Path, ear: Ear, *words: str) -> subprocess.CompletedProcess[str]:
    """A run in a process of its own, whose every word to the outside would pass the proxy."""
    unset = ("WANDB_", "MLFLOW_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    done = subprocess.run([sys.executable, "-m", "steppe", "run", *words], cwd=where, text=True, capture_output=True,
                          env={**environment, **ear.environment}, timeout=180)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no longer used" not in done.stderr
    return done


def test_the_proxy_would_hear(ear: Ear) -> None:
    """Otherwise the tests below could not fail."""
    code = "import urllib.request; urllib.request.urlopen('http://steppe.invalid/hello', timeout=5)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **ear.environment}, capture_output=True, timeout=60)
    assert ear.calls
    assert b"steppe.invalid" in ear.calls[0]


@pytest.mark.slow
def test_mlflow_keeps_a_local_store(tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    _wants("mlflow")
    _steppe(tmp_path, ear, "fedavg", *QUICK, "--track", "mlflow", "--out", "here")
    _steppe(tmp_path, ear, "--resume", "--out", "here", "--rounds", "5")  # the same run goes on
    assert ear.calls == []
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    home = client.get_experiment_by_name("steppe")
    (run,) = client.search_runs([home.experiment_id])
    assert run.info.run_name == "here"
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm"] == "fedavg"
    assert run.data.params["max_steps"] == "1"
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(r["round"], r["accuracy"]) for r in records(tmp_path / "here")]
    assert run.data.metrics["summary.last"] == history[-1].value


@pytest.mark.slow
def test_wandb_stays_offline_unless_asked(tmp_path: Path, ear: Ear) -> None:
    _wants("wandb")
    _steppe(tmp_path, ear, "fedavg", *QUICK, "--track", "wandb", "--out", "here")
    assert ear.calls == []
    (run,) = (tmp_path / "here/wandb").glob("offline-run-*")
    (written,) = run.glob("*.wandb")
    content = written.read_bytes()
    assert b"train_loss" in content
    assert b"model_of_round" in content
    assert trackers.WandB(tmp_path, "online").mode == "online"
