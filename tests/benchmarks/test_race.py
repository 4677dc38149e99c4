"""A contender that fails or hangs is a line with its reason; the others finish, and nothing of it is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks import race

ANSWERS = """
import json, sys
for number in range({rounds}):
    told = {{"seconds": 1.0 + number, "cpu_seconds": 0.5, "accuracy": 0.75 if number + 1 == {rounds} else None,
             "peak_mb": {{"main": 10.0, "child": 0.0}}, "threads": 1}}
    print(json.dumps(told), flush=True)
    if number + 1 < {rounds}:
        sys.stdin.readline()
"""
FAILS = "import sys; print('loading', file=sys.stderr); raise ValueError('no such module')"
TALKS = "print('welcome')"
HANGS = """
import os, subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open({file!r}, "w").write(f"{{os.getpid()}} {{below.pid}}")
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Ended; perhaps nobody has asked yet how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_who_gives_up_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "pids")
    programs = {"plain": ANSWERS, "pfl": FAILS, "flower": HANGS, "batched": TALKS}

    def command(name: str, algorithm: str, rounds: int) -> list[str]:
        return [sys.executable, "-c", programs[name].format(rounds=rounds, file=file)]

    monkeypatch.setattr(race, "command", command)
    left_out: dict[str, str] = {}
    found = race.compete("fedavg", ["plain", "flower", "pfl", "batched"], 2, 5.0, left_out)
    assert list(found) == ["plain"]
    assert (found["plain"]["times"], found["plain"]["best"], found["plain"]["accuracy"]) == ([2.0, 3.0], 2.0, 0.75)
    assert left_out["flower"] == "fedavg: took more than 5 s for start and first round"
    assert left_out["pfl"] == "fedavg: ended early, exit status 1: ValueError: no such module"
    assert left_out["batched"] == "fedavg: said 'welcome' instead of an answer"
    pids = [int(pid) for pid in Path(file).read_text().split()]
    until = time.monotonic() + 30
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2
    assert all(map(gone, pids))
    assert os.getpid() not in pids


def test_starts_are_compared_by_their_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    bests = {"plain": iter([4.0, 3.0]), "workers": iter([1.0, 2.0])}

    def compete(algorithm: str, names: list[str], *rest: object) -> dict[str, dict[str, float]]:
        return {name: {"best": next(bests[name])} for name in names}

    monkeypatch.setattr(race, "compete", compete)
    results = {"plain": {"best": 2.0}, "workers": {"best": 1.5}, "tuned": {"best": 1.0}}
    race.start_again("fedavg", results, 2, 3, 5.0)
    assert results["plain"] == {"best": 2.0, "starts": [2.0, 4.0, 3.0]}
    assert results["workers"] == {"best": 1.5, "starts": [1.5, 1.0, 2.0], "ratio_starts": 0.5}
    assert results["tuned"] == {"best": 1.0}
