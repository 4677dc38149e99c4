"""steppe sweep with real runs, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.jobs.points import Point
from steppe.jobs.search import Search
from tests.cli.conftest import Steppe
from tests.cli.test_bad_input import refused
from tests.scene import records

QUICK = ("-s", "model=mlp", "-s", "clients=4", "-s", "per_round=2", "-s", "epochs=1", "-s", "max_steps=2")


@pytest.mark.slow
def test_a_grid_over_seeds(steppe: Steppe) -> None:
    Path("base.toml").write_text('algorithm = "fedsam"\nrounds = 2\nvalidation = 0.1\n')
    words = ("sweep", "--config", "base.toml", *QUICK, "--jobs", "2")
    said = steppe(*words, "--grid", "lr=0.1,1e9", "--json")
    assert said.code == 3, said.err
    told = json.loads(said.out)
    assert told["chosen_by"] == "validation"
    assert told["best"]["settings"] == {"lr": 0.1}
    good, bad = told["points"]
    where = Path(told["folder"])
    assert good["seeds"] == [0]
    assert "not finite" in bad["failed"]["0"]
    assert "failed: lr=1000000000.0, seed 0: round 2: the update of client" in said.err
    assert "[2/2] lr=" in said.err
    run = where / "lr=0.1/seed-0"
    lines = records(run)
    assert good["validation"] == [lines[-1]["validation_accuracy"], 0]
    assert good["last"] == [lines[-1]["accuracy"], 0]
    assert json.loads((where / "sweep.json").read_text())["points"] == told["points"]
    # A wider grid with one more seed finds what is there, in the folder that it finds by itself.
    before = (run / "result.json").stat().st_mtime_ns
    said = steppe(*words, "--grid", "lr=0.1", "--seeds", "2")
    assert said.code == 0, said.err
    assert "chosen by validation accuracy" in said.out
    assert str(where) in said.out.replace("\n", "")
    assert "2/2" in said.out
    assert (run / "result.json").stat().st_mtime_ns == before
    # Other commands read it.
    assert steppe("plot", where / "lr=0.1", "--out", "both.png").code == 0
    # A run is the one that steppe run makes of the same words.
    assert steppe("run", "--config", "base.toml", *QUICK, "-s", "lr=0.1", "-s", "workers=0", "--out", "one").code == 0
    assert records(Path("one")) == lines


def test_a_terminated_sweep_is_an_interrupted_one(steppe: Steppe, monkeypatch: pytest.MonkeyPatch) -> None:
    from steppe.jobs import places

    monkeypatch.setattr(places, "perform", lambda *_, **__: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(5)))
    said = steppe("sweep", "fedsam", *QUICK, "--grid", "rho=0.1", "--jobs", "1")
    assert said.code == 130
    assert "interrupted" in said.err


@pytest.mark.slow
def test_interrupted_it_stops_its_runs_and_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "steppe", "sweep", "fedavg", *QUICK, "--rounds", "3000", "-s", "checkpoint_every=5",
             "--grid", "lr=0.1", "--seeds", "1", "--out", "here"]  # fmt: skip
    # Started without the shell's habit of shielding background jobs from Ctrl-C.
    start = "import os, signal, sys; signal.signal(2, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
    child = subprocess.Popen([sys.executable, "-c", start, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    run = tmp_path / "here/lr=0.1/seed-0"
    deadline = time.monotonic() + 300
    while not list(run.glob("checkpoints/round-*")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert "interrupted; continue with the same command" in err
    reached = len(records(run))
    assert 0 < reached < 3000
    time.sleep(0.3)
    assert len(records(run)) == reached  # nobody goes on in secret
    assert not (run / "result.json").exists()
    words[words.index("3000")] = str(reached + 3)  # go on, but not for so long
    done = subprocess.run([*words, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [r["round"] for r in records(run)] == list(range(1, reached + 4))
    from steppe.config import resolve
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate

    config = resolve({**json.loads((run / "config.json").read_text()), "workers": 0})
    whole = simulate(build_experiment(config)).history
    for record in whole:
        record.pop("seconds")
    assert records(run) == json.loads(json.dumps(whole))


@pytest.mark.slow
def test_a_search(steppe: Steppe) -> None:
    pytest.importorskip("optuna", reason="the extra `optuna` is not installed")
    said = steppe("sweep", "fedsam", *QUICK, "--rounds", "1", "-s", "validation=0.1", "--search", "2",
                  "--range", "rho=0..1", "--range", "batch=10..20", "--json", "--jobs", "2")  # fmt: skip
    assert said.code == 0, said.err
    points = json.loads(said.out)["points"]
    assert len(points) == 2
    for point in points:
        assert 0 < point["settings"]["rho"] < 1  # a setting of real numbers, though its ends are whole
        assert isinstance(point["settings"]["batch"], int)
        assert 10 <= point["settings"]["batch"] <= 20


def test_trials_of_another_search_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra `optuna` is not installed")
    (tmp_path / "trials.json").write_text('[{"mu": "0"}]')
    with pytest.raises(SteppeError, match="mu is '0', which is not one of this search's choices"):
        Search({}, {"mu": ["1", "2"]}, 2, lambda values: Point("", Config(), values), 0, tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--grid", "rh=0.1,0.5"], ["--grid rh=0.1,0.5", "no key 'rh'", "did you mean 'rho'"]),
        (["--grid", "clientz=3,4"], ["--grid clientz=3,4", "did you mean 'clients'"]),
        (["--grid", "rho=0.1,-1"], ["rho", "is -1, but must be"]),
        (["--grid", "rho=0.1,"], ["--grid rho=0.1,", "key=value,value"]),
        (["--grid", "rho"], ["--grid rho", "key=value,value"]),
        (["--grid", "rho=0.1", "--grid", "rho=0.2"], ["rho is given twice"]),
        (["--grid", "seed=0,1"], ["--seeds"]),
        (["--grid", "algorithm=fedsam,fedsamm"], ["'fedsamm'", "did you mean 'fedsam'"]),
        (["--grid", "data=digits,digitz"], ["did you mean 'digits'"]),
        (["--grid", "lr=0.1,0"], ["lr is 0"]),
        ([], ["something to vary", "--grid"]),
        (["--search", "3"], ["something to vary"]),
        (["--range", "rho=0.1..1"], ["--range rho=0.1..1", "--search"]),
        (["--search", "3", "--range", "rho=1..0.1"], ["--range rho=1..0.1", "low below high"]),
        (["--search", "3", "--range", "rho=0..1:log"], ["begins above 0"]),
        (["--search", "3", "--range", "rhoo=0.1..1"], ["--range rhoo=0.1..1", "did you mean 'rho'"]),
        (["--search", "3", "--range", "rho=0.1..1", "--grid", "rho=1,2"], ["rho is given twice"]),
        (["--search", "3", "--range", "rho=0.1..1"], ["never by the test set", "--set validation=0.1"]),
        (["--grid", "rho=0.1", "--config", "lost.toml"], ["no configuration file lost.toml"]),
        (["--grid", "rho=0.1", "-s", "track=[\"wand\"]"], ["did you mean 'wandb'"]),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_bad_words(steppe: Steppe, words: list[str], told: list[str]) -> None:
    sentence = refused(steppe, "sweep", "fedsam", *words)
    for part in told:
        assert part in sentence


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Any], Path]]:
    """The points of each sweep and its folder; nothing is run."""
    seen: list[tuple[list[Any], Path]] = []

    def note(several: Any, seeds: int, out: Path, *_: Any) -> None:
        seen.append((list(several), out))
        out.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr("steppe.jobs.many_runs.run_points", note)
    return seen


def test_points_of_several_algorithms_take_what_they_know(steppe: Steppe, asked: list[tuple[list[Any], Path]]) -> None:
    said = steppe("sweep", "--grid", "algorithm=fedavg,fedsam", "--grid", "settings.rho=0.1,0.5", *QUICK, "--out", "x")
    ((points, _),) = asked
    assert [p.label for p in points] == ["algorithm=fedavg", "algorithm=fedsam,rho=0.1", "algorithm=fedsam,rho=0.5"]
    assert [p.config.settings for p in points] == [{}, {"rho": 0.1}, {"rho": 0.5}]
    assert said.code == 0, said.err
    assert [point["seeds"] for point in json.loads(Path("x/sweep.json").read_text())["points"]] == [[], [], []]


def test_labels_name_folders(steppe: Steppe, asked: list[tuple[list[Any], Path]]) -> None:
    assert steppe("sweep", "fedsam", *QUICK, "--grid", "partition=lda(0.1),sharding(2)", "-g", "add=[]").code == 0
    ((points, out),) = asked
    assert [p.name for p in points] == ["partition=lda(0.1),add=__", "partition=sharding(2),add=__"]
    jobs = points[0].jobs(2, out)
    assert [job.where for job in jobs] == [out / points[0].name / f"seed-{k}" for k in (0, 1)]
    assert [job.config.seed for job in jobs] == [0, 1]


@pytest.mark.parametrize(("more", "same"), [((), True), (("-s", "batch=7"), False)])
def test_the_folder_is_named_by_what_all_points_share(
    steppe: Steppe, asked: list[tuple[list[Any], Path]], more: tuple[str, ...], same: bool
) -> None:
    steppe("sweep", "fedsam", *QUICK, "--grid", "rho=0.1,0.2", "--grid", "lr=0.1", "--rounds", "3")
    steppe("sweep", "fedsam", *QUICK, *more, "--grid", "rho=0.5", "--grid", "lr=0.2,0.3", "--rounds", "4")
    assert (asked[0][1] == asked[1][1]) is same
