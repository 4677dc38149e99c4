"""Points and the search, with runs that only pretend to train: what is run, what is kept, what is chosen."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.core.metric import Metric
from steppe.jobs import search
from steppe.jobs.places import Here
from steppe.jobs.points import Point, choose_measure, find_best, run_points
from steppe.jobs.queue import Queue
from steppe.report import sweep_table
from steppe.runs.folder import RunFolder

Started = list[dict[str, Any]]


def _point(validation: float = 0.1, rounds: int = 2, **settings: Any) -> Point:
    own = {"settings": {"rho": settings["rho"]}} if "rho" in settings else {}
    lr = {"lr": settings["lr"]} if "lr" in settings else {}
    given = {"algorithm": "fedsam", "rounds": rounds, "validation": validation, **own, **lr}
    label = ",".join(f"{k}={v}" for k, v in settings.items())
    return Point(label, resolve(given), settings)


def test_points_are_run_with_every_seed(tmp_path: Path, performed: Started) -> None:
    points = [_point(lr=0.1, rho=0.1), _point(lr=2, rho=0.1)]
    run_points(points, 2, tmp_path, Queue([Here]))
    assert [sorted(p.results) for p in points] == [[0, 1], []]
    assert points[0].results[1]["validation"] == pytest.approx(0.901)
    assert points[1].failed == {0: "it diverged.", 1: "it diverged."}
    assert find_best(points) is points[0]
    assert RunFolder(tmp_path / "lr=0.1,rho=0.1" / "seed-1").finished
    assert [[r["round"] for r in history] for history in points[0].histories] == [[1, 2], [1, 2]]
    more = [_point(lr=0.1, rho=0.1), _point(lr=0.2, rho=0.1)]
    run_points(more, 3, tmp_path, Queue([Here]))
    assert len(performed) == 4 + 1 + 3  # a third seed, and the new point
    assert [sorted(p.results) for p in more] == [[0, 1, 2]] * 2


def test_one_queue_at_a_time_per_folder(tmp_path: Path, performed: Started) -> None:
    with RunFolder(tmp_path).lock(), pytest.raises(SteppeError, match="Another process is writing"):
        run_points([_point(lr=0.1)], 1, tmp_path, Queue([Here]))
    assert performed == []


# --- what is chosen, and how it is shown


@pytest.fixture
def without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let points that pretend to have run have no folders to read the initial models from."""
    monkeypatch.setattr(Point, "abouts", [])


def _ended(
    values: dict[int, float], validation: dict[int, float] | None = None, failed: int = 0, **settings: Any
) -> Point:
    point = _point(**settings)
    for seed, last in values.items():
        more = {"validation": validation[seed]} if validation else {}
        point.results[seed] = {"rounds": 2, "last": last, "mean_of_last_ten": last, "loss": 0.5,
                               "seconds": 1.0, **more}  # fmt: skip
    point.failed = {10 + k: "no" for k in range(failed)}
    return point


def test_validation_chooses_where_there_is_validation(without_folders: None) -> None:
    a = _ended({0: 0.9, 1: 0.8}, {0: 0.5, 1: 0.6}, rho=0.1)
    b = _ended({0: 0.7, 1: 0.5}, {0: 0.6, 1: 0.7}, rho=0.2)
    assert choose_measure([a, b]) == "validation"
    assert find_best([a, b]) is b
    told = sweep_table.summarize_points([a, b])
    assert told["best"]["settings"] == {"rho": 0.2}
    assert told["points"][0]["last"] == pytest.approx((0.85, math.sqrt(0.005)))
    assert told["points"][0]["validation"] == pytest.approx((0.55, math.sqrt(0.005)))
    columns, rows = sweep_table.make_cells([a, b], ["rho"], 2)
    assert columns == ["rho", "validation", "test", "test, last 2", "test loss", "runs", ""]
    assert rows[0][:3] == ["0.1", "55.00 ± 7.07", "85.00 ± 7.07"]
    assert [row[-2:] for row in rows] == [["2/2", ""], ["2/2", "best"]]
    assert "chosen by validation accuracy" in sweep_table.explain_table([a, b], 2)


def test_without_validation_it_says_that_the_test_set_chose(without_folders: None) -> None:
    a, b = _ended({0: 0.9}, rho=0.1), _ended({0: 0.7}, rho=0.2)
    assert find_best([a, b]) is a
    assert "chosen by test accuracy" in sweep_table.explain_table([a, b], 1)
    assert sweep_table.summarize_points([a, b])["chosen_by"] == "last"


def test_lower_is_better_where_the_metric_says_so(without_folders: None) -> None:
    error = Metric("mse", lower=True)
    a, b = (replace(_ended({0: v}, rho=r), metric=error) for v, r in ((0.9, 0.1), (0.7, 0.2)))
    assert find_best([a, b]) is b
    assert sweep_table.make_cells([a, b], ["rho"], 1)[1][0][1] == "0.9"
    assert "mse (lower is better), one seed; the best is chosen by test mse" in sweep_table.explain_table([a, b], 1)


def test_a_point_with_failed_runs_is_not_the_best_if_another_is_whole() -> None:
    lucky, whole = _ended({0: 0.9}, failed=1, rho=0.1), _ended({0: 0.5, 1: 0.5}, rho=0.2)
    assert find_best([lucky, whole]) is whole
    assert find_best([lucky]) is lucky
    assert find_best([_ended({}, failed=2, rho=0.1)]) is None
    assert sweep_table.summarize_points([_ended({}, failed=2, rho=0.1)])["best"] is None


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


def test_a_search_finds_the_best_by_validation_and_goes_on(tmp_path: Path, performed: Started) -> None:
    """The pretended test accuracy is the opposite of the validation accuracy: whoever looks at it goes astray."""
    span = search.Range(1e-4, 10.0, True, False)

    def run(trials: int) -> search.Search:
        found = _search(tmp_path, trials, span)
        run_points(found, 2, tmp_path, Queue([Here]), found.tell)
        return found

    first = run(6)
    assert len(first.points) == 6
    assert len(performed) == 12
    again = run(16)
    assert list(again.points)[:6] == list(first.points)
    assert len(performed) == 32  # the first six were not run again
    assert len(json.loads((tmp_path / search.FILE).read_text())) == 16
    values = [t.value for t in again.study.trials]
    assert values == pytest.approx(
        [sum(r["validation"] for r in p.results.values()) / 2 for p in again.points.values()]
    )
    winner = find_best(list(again.points.values()))
    assert winner is not None
    assert abs(math.log10(winner.settings["rho"] / 0.1)) < 0.7


def test_a_suggestion_that_was_there_is_not_run_twice(tmp_path: Path, performed: Started) -> None:
    found = _search(tmp_path, 8, search.Range(1, 2, False, True))
    run_points(found, 1, tmp_path, Queue([Here, Here]), found.tell)
    assert set(found.points) <= {"rho=1", "rho=2"}
    assert len(performed) == len(found.points)
    assert [t.state.name for t in found.study.trials] == ["COMPLETE"] * 8


def test_a_failed_trial_is_no_result(tmp_path: Path, performed: Started) -> None:
    found = _search(tmp_path, 3, search.Range(0.1, 1.0, False, False), {"lr": ["2"]})
    found.make = lambda v: _point(rho=v["rho"], lr=float(v["lr"]))
    run_points(found, 1, tmp_path, Queue([Here]), found.tell)
    assert [t.state.name for t in found.study.trials] == ["FAIL"] * 3
    assert find_best(list(found.points.values())) is None


def test_a_search_for_the_lowest_is_told_the_opposite(tmp_path: Path) -> None:
    found = _search(tmp_path, 1, search.Range(0.1, 1.0, False, False))
    point = next(iter(found))
    point.metric, point.results = Metric("mse", lower=True), {0: {"validation": 0.25}}
    found.tell(point)
    assert found.study.trials[0].value == -0.25


def test_search_without_optuna_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SteppeError, match=r"pip install 'steppe\[optuna\]'"):
        search.Search({}, {}, 1, lambda _: _point(), 0, tmp_path)
