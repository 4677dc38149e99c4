"""The queue and the search, with children that only pretend to train: what runs, what is kept, what is chosen."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.engine.devices import count_cores
from steppe.jobs import processes, search
from steppe.jobs import sweep as sweeping
from steppe.jobs.sweep import Grid, Point, best, chosen_by, sweep
from steppe.report import sweep_table as shown

# Notes that it was here, then ends as its learning rate says; its accuracy is best at rho = 0.1.
PRETEND = """
import json, math, os, sys, time
where = sys.argv[1]
config = json.load(open(where + "/config.json"))
open(where + "/starts", "a").write(f"{os.getpid()} {os.environ.get('STEPPE_CORES')}\\n")
lr, rho, seed = config["lr"], config["settings"].get("rho", 0.1), config["seed"]
if lr == 2:
    print("round 1/2"); print("error: it diverged."); sys.exit(3)
if lr == 3:
    os.kill(os.getpid(), 9)
if lr == 4:
    raise ValueError("a mistake of ours")
if lr == 5:
    time.sleep(60)
score = 0.9 - 0.1 * math.log10(rho / 0.1) ** 2 + 0.001 * seed
with open(where + "/rounds.jsonl", "w") as file:
    for t in range(1, config["rounds"] + 1):
        line = {"round": t, "accuracy": 1 - score}
        file.write(json.dumps(line | ({"validation_accuracy": score} if config["validation"] else {})) + "\\n")
summary = {"model_of_round": config["rounds"], "last": 1 - score, "mean_of_last_ten": 0.5, "loss": 1.0, "seconds": 0.1}
json.dump(summary, open(where + "/result.json", "w"))
"""


@pytest.fixture(autouse=True)
def _pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "POLL", 0.02)
    monkeypatch.setattr(processes, "command", lambda job: [sys.executable, "-c", PRETEND, str(job.where)])


def _point(validation: float = 0.1, rounds: int = 2, **settings: Any) -> Point:
    own = {"settings": {"rho": settings["rho"]}} if "rho" in settings else {}
    lr = {"lr": settings["lr"]} if "lr" in settings else {}
    given = {"algorithm": "fedsam", "rounds": rounds, "validation": validation, **own, **lr}
    return Point(settings, resolve(given))


def _run(points: list[Point], out: Path, seeds: int = 1, places: int = 2) -> tuple[list[str], list[tuple[int, int]]]:
    said: list[str] = []
    ticks: list[tuple[int, int]] = []
    sweep(Grid(points, seeds, out), seeds, out, [{}] * places, said.append, lambda *t: ticks.append(t), lambda _: None)
    return said, ticks


def _starts(out: Path) -> int:
    return sum(len(p.read_text().splitlines()) for p in out.rglob("starts"))


def test_failed_runs_are_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    points = [_point(lr=0.1, rho=0.1), *(_point(lr=lr, rho=0.1) for lr in (2, 3, 4))]
    said, ticks = _run(points, tmp_path, seeds=2)
    assert [sorted(p.results) for p in points] == [[0, 1], [], [], []]
    assert points[0].results[1]["validation"] == pytest.approx(0.901)
    assert points[1].failed == {0: "it diverged.", 1: "it diverged."}
    assert points[2].failed[0] == "it was ended by signal 9, perhaps for lack of memory"
    assert points[3].failed[0] == "ValueError: a mistake of ours"
    assert sorted(said)[:2] == [f"lr=2,rho=0.1, seed {k}: failed: it diverged." for k in (0, 1)]
    assert len(said) == 6
    assert ticks[-1] == (16, 0)  # rounds of all that have ended
    assert best(points) is points[0]


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    _run([_point(lr=0.1), _point(lr=2)], tmp_path, seeds=2)
    assert _starts(tmp_path) == 4
    points = [_point(lr=0.1), _point(lr=2), _point(lr=0.2)]
    _, ticks = _run(points, tmp_path, seeds=3)
    assert _starts(tmp_path) == 4 + 1 + 3 + 3  # a third seed, the failed ones again, and the new point
    assert len(points[0].results) == 3
    assert ticks[-1] == (18, 4)
    longer = [_point(lr=0.1, rounds=5)]
    _run(longer, tmp_path)
    assert longer[0].results[0]["model_of_round"] == 2  # its child looks into the folder for its configuration,
    assert "--rounds 5" in " ".join(REAL(longer[0].jobs(1, tmp_path)[0]))  # and is told the new length
    assert _starts(tmp_path) == 12


REAL = processes.command


def test_a_folder_with_other_settings_is_refused_before_anything_starts(tmp_path: Path) -> None:
    _run([_point(lr=0.1)], tmp_path)
    other = _point(lr=0.1)
    other.config = other.config.model_copy(update={"batch": 7})
    with pytest.raises(SteppeError, match=r"other settings: batch was 20 and is 7. Choose another --out"):
        Grid([other], 1, tmp_path)


def test_an_interrupted_sweep_leaves_no_child(tmp_path: Path) -> None:
    def interrupt() -> None:
        for _ in range(600):
            if len(list(tmp_path.rglob("starts"))) == 2:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts with &
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _run([_point(lr=5, rho=0.1), _point(lr=5, rho=0.2), _point(lr=5, rho=0.3)], tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    started = [p.read_text().split()[0] for p in tmp_path.rglob("starts")]
    assert len(started) == 2  # of two places; the third never began
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    with processes.alone(tmp_path):
        pass


def test_one_sweep_a_folder_even_if_only_its_children_live(tmp_path: Path) -> None:
    with processes.alone(tmp_path) as lock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    with pytest.raises(SteppeError, match="still at work"), processes.alone(tmp_path):
        pass
    child.communicate(b"\n")
    with processes.alone(tmp_path):
        pass


def test_labels_name_folders(tmp_path: Path) -> None:
    point = Point({"data": "folder:/a b/c", "partition": "lda(0.1)"}, resolve({"seed": 4}))
    jobs = point.jobs(2, tmp_path)
    assert [job.where.relative_to(tmp_path).parts for job in jobs] == [
        ("data=folder__a_b_c,partition=lda(0.1)", "seed-4"),
        ("data=folder__a_b_c,partition=lda(0.1)", "seed-5"),
    ]
    assert [job.config.seed for job in jobs] == [4, 5]


# --- places


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPPE_CORES", "8")
    assert count_cores() == 8
    assert len(processes.places(None, "cpu")) == 8
    assert [p["OMP_NUM_THREADS"] for p in processes.places(3, "cpu")] == ["2"] * 3
    assert [p["STEPPE_CORES"] for p in processes.places(20, "cpu")] == ["1"] * 20
    point = _point(lr=0.1)
    sweep(Grid([point], 1, tmp_path), 1, tmp_path, processes.places(4, "cpu"), print, lambda *_: None, lambda _: None)
    (started,) = tmp_path.rglob("starts")
    assert started.read_text().split()[1] == "2"


def test_a_place_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert processes.places(None, "auto") == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [p["CUDA_VISIBLE_DEVICES"] for p in processes.places(3, "cuda")] == ["3", "5", "3"]
    assert processes.places(None, "cuda:1") == [{}]
    assert "CUDA_VISIBLE_DEVICES" not in processes.places(1, "cpu")[0]


# --- what is chosen, and how it is told


def _ended(
    values: dict[int, float], validation: dict[int, float] | None = None, failed: int = 0, **settings: Any
) -> Point:
    point = _point(**settings)
    for seed, last in values.items():
        more = {"validation": validation[seed]} if validation else {}
        point.results[seed] = {"last": last, "mean_of_last_ten": last, "loss": 0.5, "seconds": 1.0, **more}
    point.failed = {10 + k: "no" for k in range(failed)}
    return point


def test_validation_chooses_where_there_is_validation() -> None:
    a = _ended({0: 0.9, 1: 0.8}, {0: 0.5, 1: 0.6}, rho=0.1)
    b = _ended({0: 0.7, 1: 0.5}, {0: 0.6, 1: 0.7}, rho=0.2)
    assert chosen_by([a, b]) == "validation"
    assert best([a, b]) is b
    told = shown.summarize_points([a, b])
    assert told["best"]["settings"] == {"rho": 0.2}
    assert told["points"][0]["last"] == pytest.approx((0.85, math.sqrt(0.005)))
    assert told["points"][0]["validation"] == pytest.approx((0.55, math.sqrt(0.005)))
    columns, rows = shown.make_cells([a, b], ["rho"], 2)
    assert columns == ["rho", "validation", "test", "test, last ten", "test loss", "runs", ""]
    assert rows[0][:3] == ["0.1", "55.00 ± 7.07", "85.00 ± 7.07"]
    assert [row[-2:] for row in rows] == [["2/2", ""], ["2/2", "best"]]
    assert "chosen by validation accuracy" in shown.explain_table([a, b], 2)


def test_without_validation_it_says_that_the_test_set_chose() -> None:
    a, b = _ended({0: 0.9}, rho=0.1), _ended({0: 0.7}, rho=0.2)
    assert best([a, b]) is a
    assert "chosen by test accuracy" in shown.explain_table([a, b], 1)
    assert shown.summarize_points([a, b])["chosen_by"] == "last"


def test_a_point_with_failed_runs_is_not_the_best_if_another_is_whole() -> None:
    lucky, whole = _ended({0: 0.9}, failed=1, rho=0.1), _ended({0: 0.5, 1: 0.5}, rho=0.2)
    assert best([lucky, whole]) is whole
    assert best([lucky]) is lucky
    assert best([_ended({}, failed=2, rho=0.1)]) is None
    assert shown.summarize_points([_ended({}, failed=2, rho=0.1)])["best"] is None


# --- search


@pytest.mark.parametrize("text", ["rho", "rho=1", "rho=1..", "rho=1..0.1", "rho=a..b", "rho=0.1..1:ln", "=1..2",
                                  "rho=0..inf", "rho=nan..1", "rho=1..2..3"])  # fmt: skip
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(SteppeError, match=r"low\.\.high"):
        search.parse_range(text)


def test_ranges() -> None:
    assert search.parse_range("batch=10..50") == ("batch", search.Range(10, 50, False, True))
    assert search.parse_range("lr=-1.5..2")[1] == search.Range(-1.5, 2, False, False)
    with pytest.raises(SteppeError, match="begins above 0"):
        search.parse_range("rho=0..1:log")
    narrow = search.Range(0.123456, 0.123457, False, False)
    assert narrow.low <= narrow.tidy(0.1234567) <= narrow.high


def _search(out: Path, trials: int, span: search.Range, choices: dict[str, list[str]] | None = None) -> search.Search:
    pytest.importorskip("optuna", reason="the extra `optuna` is not installed")
    return search.Search({"rho": span}, choices or {}, trials, lambda v: _point(**v), 0, out)


def test_a_search_finds_the_best_by_validation_and_goes_on(tmp_path: Path) -> None:
    """The pretended test accuracy is the opposite of the validation accuracy: whoever looks at it goes astray."""
    span = search.Range(1e-4, 10.0, True, False)

    def run(trials: int) -> search.Search:
        found = _search(tmp_path, trials, span)
        sweep(found, 2, tmp_path, [{}], print, lambda *_: None, lambda _: None)
        return found

    first = run(6)
    assert len(first.points) == 6
    assert _starts(tmp_path) == 12
    again = run(16)
    assert list(again.points)[:6] == list(first.points)
    assert _starts(tmp_path) == 32  # the first six were not run again
    assert len(json.loads((tmp_path / search.FILE).read_text())) == 16
    values = [t.value for t in again.study.trials]
    assert values == pytest.approx(
        [sum(r["validation"] for r in p.results.values()) / 2 for p in again.points.values()]
    )
    winner = best(list(again.points.values()))
    assert winner is not None
    assert abs(math.log10(winner.settings["rho"] / 0.1)) < 0.7


def test_a_suggestion_that_was_there_is_not_run_twice(tmp_path: Path) -> None:
    found = _search(tmp_path, 8, search.Range(1, 2, False, True))
    sweep(found, 1, tmp_path, [{}] * 2, print, lambda *_: None, lambda _: None)
    assert set(found.points) <= {"rho=1", "rho=2"}
    assert _starts(tmp_path) == len(found.points)
    assert [t.state.name for t in found.study.trials] == ["COMPLETE"] * 8


def test_a_failed_trial_is_no_result(tmp_path: Path) -> None:
    found = _search(tmp_path, 3, search.Range(0.1, 1.0, False, False), {"lr": ["2"]})
    found.make = lambda v: _point(rho=v["rho"], lr=float(v["lr"]))
    sweep(found, 1, tmp_path, [{}], print, lambda *_: None, lambda _: None)
    assert [t.state.name for t in found.study.trials] == ["FAIL"] * 3
    assert best(list(found.points.values())) is None


def test_search_without_optuna_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SteppeError, match=r"pip install 'steppe\[optuna\]'"):
        search.Search({}, {}, 1, lambda _: _point(), 0, tmp_path)
