"""The queue: what runs where and in which order, what is handed back, and how it ends."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.engine.devices import count_cores
from steppe.jobs import child_process, queue, queue_progress
from steppe.jobs.child_process import Worker
from steppe.jobs.job import Job
from steppe.jobs.places import Here, find_places
from steppe.jobs.queue import Ended, Queue
from steppe.jobs.queue_progress import QueueProgress

Started = list[dict[str, Any]]


def _job(label: str, where: Path | None = None, rounds: int = 2, stage: tuple[int, ...] = (), **keys: Any) -> Job:
    return Job(resolve({"algorithm": "fedavg", "rounds": rounds, **keys}), label, where, stage)


def _run(jobs: list[Job], *more: Any, **options: Any) -> dict[str, Ended]:
    with Queue(*(more or ([Here],)), **options) as q:
        q.add(jobs)
        return {ended.job.label: ended for ended in q}


# --- what is handed back


def test_failed_jobs_are_reported_and_the_rest_is_kept(performed: Started, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "steppe.queue"):
        found = _run([_job("a"), _job("b", lr=2), _job("c", lr=3), _job("d", lr=4), _job("e", seed=1)])
    assert {label: ended.error for label, ended in found.items()} == {
        "a": None, "b": "it diverged.", "c": "its process was ended by signal 9", "d": "ValueError: odd",
        "e": None}  # fmt: skip
    assert found["e"].facts["summary"]["last"] == pytest.approx(0.099)
    assert next(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING) == (
        "[3/5] b: failed: it diverged."  # the second seed of `a` shares its compiled code, so it comes first
    )
    assert "Traceback …" in caplog.messages


def test_what_is_finished_is_not_run_again(tmp_path: Path, performed: Started) -> None:
    _run([_job("a", tmp_path / "a"), _job("b", tmp_path / "b", lr=2)])
    assert len(performed) == 2
    found = _run([_job("a", tmp_path / "a"), _job("b", tmp_path / "b", lr=2), _job("c", tmp_path / "c", lr=0.2)])
    assert [config["lr"] for config in performed[2:]] == [2, 0.2]  # the failed one again, and the new one
    assert found["a"].error is None
    _run([_job("a", tmp_path / "a", rounds=5)])  # longer
    assert performed[-1]["rounds"] == 5


def test_a_folder_with_another_run_is_refused_before_anything_starts(tmp_path: Path, performed: Started) -> None:
    _run([_job("a", tmp_path / "a")])
    with pytest.raises(
        SteppeError, match=r"other settings: batch was 20 and is 7. Choose another folder \(--out, or out= in Python\)"
    ):
        _run([_job("b", tmp_path / "b"), _job("a", tmp_path / "a", batch=7)])
    assert len(performed) == 1


def test_jobs_may_be_added_while_others_end(performed: Started) -> None:
    with Queue([Here], expected=3) as q:
        q.add([_job("0")])
        labels = []
        for ended in q:
            labels.append(ended.job.label)
            assert q.idle
            if len(labels) < 3:
                q.add([_job(str(len(labels)))])
    assert labels == ["0", "1", "2"]


# --- order


def test_stages_then_groups_then_long_jobs_come_first() -> None:
    q = Queue([Here, Here])
    q.waiting = [_job("late", stage=(1,), rounds=90), _job("short"), _job("long", rounds=9),
                 _job("half", rounds=5, lr=0.2), _job("other half", rounds=8, lr=0.2, seed=3)]  # fmt: skip
    order, last = [], ""
    while job := q._choose(last):
        q.waiting.remove(job)
        order.append(job.label)
        last = job.group
    assert order == ["other half", "half", "long", "short", "late"]  # the group with the most work is the first
    assert _job("a").group == _job("b", rounds=7, partition="lda(0.1)", seed=9).group != _job("c", lr=0.2).group


def test_places_take_up_different_groups() -> None:
    q = Queue([Here, Here])
    q.slots[0].job = _job("running")
    q.waiting = [_job("same", rounds=9), _job("other", lr=0.2)]
    chosen = q._choose("")
    assert chosen is not None
    assert chosen.label == "other"


# --- time


def test_a_spent_budget_runs_nothing(performed: Started) -> None:
    with Queue([Here], budget=0) as q:
        q.add([_job("a")])
        assert list(q) == []
    assert [job.label for job in q.waiting] == ["a"]
    assert performed == []


def test_nothing_is_started_that_would_not_end_in_time(performed: Started) -> None:
    with Queue([Here], budget=1000) as q:
        q.spent, q.work = 10_000.0, 2.0  # two rounds took far longer than all the time there is
        q.add([_job("a")])
        assert list(q) == []
        q.spent = 100.0
        assert [ended.job.label for ended in q] == ["a"]


def test_time_that_ends_inside_a_run_of_this_process_stops_it(
    performed: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "time_left", property(lambda q: 0.0 if q.slots[0].round >= 3 else 60.0))
    with Queue([Here], budget=60) as q:
        q.add([_job("a", rounds=9), _job("b", lr=0.2)])
        assert list(q) == []
    assert {job.label for job in q.waiting} == {"a", "b"}
    assert len(performed) == 1


def test_time_left_is_that_of_the_rounds_so_far() -> None:
    q = Queue([Here, Here], expected=4)
    assert q.estimate_rest() == 0.0
    q.spent, q.work, q.done, q.added = 20.0, 10.0, 1, 3
    q.slots[0].job, q.slots[0].round = _job("a", rounds=10), 4
    q.waiting = [_job("b", rounds=10)]
    assert q.estimate_rest() == pytest.approx((6 + 10 + 10) * 2.0 / 2)  # one more job of ten rounds is to come


# --- processes

WORKER = """
import json, os, sys, time
for line in sys.stdin:
    config = json.loads(line)["config"]
    if config["lr"] == 7:
        sys.exit(7)
    if config["lr"] == 9:
        os.kill(os.getpid(), 9)
    if config["lr"] == 5:
        time.sleep(600)
    print(json.dumps({"round": 1, "state": ""}), flush=True)
    odd = {"error": "ValueError: odd", "trace": "Traceback"}
    done = {"done": {"pid": os.getpid(), "cores": os.environ.get("STEPPE_CORES")}, "text": ""}
    print(json.dumps(odd if config["lr"] == 4 else done), flush=True)
"""


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Processes that only pretend to train; what was started."""
    started: list[subprocess.Popen[str]] = []
    real = Worker.__init__

    def start(self: Worker, *words: Any, **more: Any) -> None:
        real(self, *words, **more)
        started.append(self.process)

    monkeypatch.setattr(child_process, "COMMAND", [sys.executable, "-c", WORKER])
    monkeypatch.setattr(Worker, "__init__", start)
    monkeypatch.setattr(queue, "PATIENCE", 0.2)
    return started


def test_a_process_that_dies_takes_one_job_with_it(workers: list[subprocess.Popen[str]]) -> None:
    jobs = [_job(str(lr), lr=lr) for lr in (0.1, 7, 0.2, 9, 0.3, 4, 0.4)]
    found = _run(jobs, find_places(2, "cpu"))
    assert {label: ended.error for label, ended in found.items() if ended.error} == {
        "7": "its process ended with code 7",
        "9": "its process was ended by signal 9, perhaps because it ran out of memory",
        "4": "ValueError: odd",
    }
    good = [ended.facts for ended in found.values() if not ended.error]
    assert len(good) == 4
    assert {facts["cores"] for facts in good} == {str(max(1, count_cores() // 2))}
    assert len(workers) <= 2 + 3  # a process serves several jobs; one that failed is replaced
    assert all(child.poll() is not None for child in workers)


def test_when_time_is_up_running_processes_are_stopped(
    workers: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "time_left", property(lambda q: 0.0 if q.done else 60.0))  # it ends with the first job
    with Queue(find_places(2, "cpu"), budget=60) as q:
        q.add([_job("quick"), _job("slow", lr=5)])
        assert [ended.job.label for ended in q] == ["quick"]
        assert [job.label for job in q.waiting] == ["slow"]
    assert all(child.poll() is not None for child in workers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_behind(workers: list[subprocess.Popen[str]], number: int) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts with &
    term = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _run([_job(str(k), lr=5, seed=k) for k in range(3)], find_places(2, "cpu"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(workers) == 2  # the third job never began
    assert all(child.poll() is not None for child in workers)
    assert signal.getsignal(signal.SIGTERM) == term


def test_a_request_to_a_dead_process_is_answered_by_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()
    monkeypatch.setattr(child_process, "COMMAND", [sys.executable, "-c", "print('half a li', end='')"])
    child = Worker(events.put, {})
    child.process.wait()
    child.send({})
    assert events.get(timeout=30) == {"gone": "its process ended with code 0"}
    child.close()
    child.join(0)


@pytest.mark.slow
def test_a_real_worker_stops_its_run_when_its_parent_is_killed(tmp_path: Path) -> None:
    """It ends by itself, its records and messages are in the folder, and the run continues to the same numbers."""
    config = {"model": "mlp", "clients": 4, "per_round": 2, "max_steps": 2, "rounds": 3000, "checkpoint_every": 1,
              "workers": 0}  # fmt: skip
    request = json.dumps({"config": resolve(config).model_dump(mode="json"), "where": str(tmp_path / "run")})
    parent = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'steppe.jobs.worker'], stdin=subprocess.PIPE, text=True)\n"
        "print(child.pid, flush=True)\n"
        "print(sys.argv[1], file=child.stdin, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent, request], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    rounds, deadline = tmp_path / "run" / "rounds.jsonl", time.monotonic() + 120
    while not rounds.exists() or rounds.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    reached = rounds.read_text().count("\n")
    assert 3 <= reached < 3000
    assert "memory:" in (tmp_path / "run" / "log.txt").read_text()
    whole = _run([Job(resolve({**config, "rounds": reached + 2}), "a", tmp_path / "run")])["a"]
    assert whole.error is None
    again = _run([Job(resolve({**config, "rounds": reached + 2}), "b", tmp_path / "other")])["b"]
    assert again.error is None
    found = [[{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in path.open()]
             for path in (rounds, tmp_path / "other" / "rounds.jsonl")]  # fmt: skip
    assert found[0] == found[1]


# --- places


def _environments(jobs: int | None, device: str) -> list[dict[str, str]]:
    return [place.keywords["environment"] for place in find_places(jobs, device) if isinstance(place, partial)]


def test_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPE_CORES", "8")
    assert count_cores() == 8
    assert len(_environments(None, "cpu")) == 8
    assert [e["OMP_NUM_THREADS"] for e in _environments(3, "cpu")] == ["2"] * 3
    assert [e["STEPPE_CORES"] for e in _environments(20, "cpu")] == ["1"] * 20
    assert find_places(1, "cpu") == [Here]


def test_one_place_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [e["CUDA_VISIBLE_DEVICES"] for e in _environments(None, "auto")] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in _environments(3, "cuda")] == ["3", "5", "3"]
    assert ["CUDA_VISIBLE_DEVICES" in e for e in _environments(None, "cuda:1")] == [False]
    assert "CUDA_VISIBLE_DEVICES" not in _environments(2, "cpu")[0]


# --- progress


def test_running_jobs_are_shown_now_and_then(
    performed: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with QueueProgress() as shown:
        _run([_job("a")], [Here], shown)
        assert "running" not in capsys.readouterr().err  # not yet
        monkeypatch.setattr(queue_progress, "TICK", -1.0)
        _run([_job("b", rounds=3)], [Here], shown)
        logging.getLogger("steppe").info("a note of a run")
        logging.getLogger("steppe").warning("a warning of a run")
    err = capsys.readouterr().err
    assert "running: b, round 2 of 3, accuracy 10.00 %; about 0 s left" in err
    assert "[1/1] b: accuracy 10.00 %" in err
    assert "a note" not in err
    assert "warning: a warning of a run" in err


def test_a_terminal_shows_a_bar_per_running_job(performed: Started) -> None:
    from rich.console import Console

    shown, text = QueueProgress(), io.StringIO()
    shown._start_bar(Console(file=text, force_terminal=True, width=120))
    with Queue([Here], shown) as q:
        q.add([_job("first", rounds=4), _job("second", lr=2)])
        for _ in q:
            shown.bar.refresh()
            assert [task.description for task in shown.bar.tasks] == ["all"]  # a job that has ended has none
        assert (shown.bar.tasks[0].completed, shown.bar.tasks[0].total) == (2, 2)
    shown.bar.stop()
    assert "all" in text.getvalue()
