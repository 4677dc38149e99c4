"""The benchmark of fast paths, in a size that a CPU does in no time: what it measures, writes and leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_switches, tables
from steppe.executors.switches import SWITCHES, Switches, switched


def test_every_switch_that_is_off_is_measured_on_every_job_that_it_can_change() -> None:
    off = {name for name, on in vars(Switches()).items() if not on}
    for model in ("cnn", "resnet18-gn"):
        turned = {
            s for _, _, each in gpu_switches.plan([n for n in gpu_switches.JOBS if n.startswith(model)]) for s in each
        }
        assert off - turned == ({"client_norm"} if model == "cnn" else set())  # the CNN has no group norm


def test_the_first_figures_of_all_jobs_come_first() -> None:
    order = [(job, kind) for job, kind, _ in gpu_switches.plan(list(gpu_switches.JOBS))]
    assert set(order[: 2 * len(gpu_switches.JOBS)]) == set(order)
    assert [turned for _, _, turned in gpu_switches.plan(["resnet18-gn fedsmoo tf32"], ["compiled_forward"])] == [
        ("client_norm", "compiled_forward")]  # fmt: skip


def test_figures_are_written_one_by_one_and_become_tables(tmp_path: Path) -> None:
    path, seen = tmp_path / "switches.json", []

    def keep(report: dict[str, Any]) -> None:
        gpu_switches.save(path, report)
        seen.append(len(json.loads(path.read_text())["rows"]))

    gpu_switches.measure(["cnn fedavg tf32"], "cpu", 1e9, tiny=True, keep=keep)
    assert seen == [1, 2, 3, 3]
    report = json.loads(path.read_text())
    pooling, captured, _ = report["rows"]
    assert pooling["largest_difference"] == 0  # a CPU has none of these paths
    assert pooling["largest_movement"] > 0
    assert not captured["captured"]
    assert captured["loss_difference"] == 0
    assert set(report["versions"]) >= {"hardware", "torch", "commit"}
    begin, text = tables.tables(report)
    assert begin == tables.BEGIN["gpu-switches.json"]
    assert "| cnn fedavg tf32 | fuse_pooling off |" in text
    assert "Not measured" not in text


def test_a_variant_is_trained_with_its_switches_and_they_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    play = gpu_switches.play_round
    monkeypatch.setattr(gpu_switches, "play_round", lambda *args: (seen.append(SWITCHES.fuse_pooling), play(*args))[1])
    rows = gpu_switches.measure(["cnn fedavg tf32"], "cpu", 1e9, tiny=True, only=["fuse_pooling"])["rows"]
    assert seen == [True, False] * 3  # first rounds, rounds that allocate, one timed round each
    assert [row["switches"] for row in rows] == [["fuse_pooling"]]
    assert vars(SWITCHES) == vars(Switches())
    with pytest.raises(TypeError), switched(no_such_path=True):
        pass


def test_no_figure_is_begun_after_the_limit_and_a_failure_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = gpu_switches.measure(["cnn fedavg tf32"], "cpu", 0.0, tiny=True)["rows"]
    assert {row["skipped"] for row in rows} == {"the time limit of 0 s"}

    def fail(*_: Any) -> dict[str, Any]:
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(gpu_switches, "compare_steps", fail)
    report = gpu_switches.measure(["cnn fedavg tf32"], "cpu", 1e9, tiny=True)
    assert ["failed" in row for row in report["rows"]] == [True, False, False]
    assert "a round: OutOfMemoryError: no room" in gpu_switches.markdown(report)


@pytest.mark.slow
def test_processes_fill_the_caches() -> None:
    found: dict[str, Any] = {}
    todo = list(gpu_switches.plan(["cnn fedavg tf32"], ["fuse_pooling"]))
    gpu_switches.fill_caches(todo, 600, "cpu", True, found, lambda: None)
    assert found["processes"] == 2
    assert all(seconds > 0 for seconds in found["first_rounds"].values())
