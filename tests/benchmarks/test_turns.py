"""Other frameworks take part in the GPU benchmark's race, and do what the plain loop does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_job
import torch
import torch.nn.functional as F

from benchmarks import contenders, gpu, gpu_full, race, turns

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "tiny_job.py")]


def installed(name: str) -> list[pytest.MarkDecorator]:
    absent = contenders.missing(name)
    skip = pytest.mark.skipif(bool(absent), reason=f"not installed: {absent}")
    return [skip, pytest.mark.slow] if name == "flower" else [skip]  # Ray takes its time to start


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process can import, its children can, too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # pfl would behave otherwise


def test_a_round_of_the_plain_loop_is_fedavg() -> None:
    """Against a round that is written down once more: SGD with momentum and decay by its formula."""
    loop = tiny_job.make()
    model, job = tiny_job.make().model, tiny_job.JOB
    x0 = {name: p.detach().clone() for name, p in model.named_parameters()}
    x = (loop.images.float() / 255 - loop.mean) / loop.std
    ends = []
    for client in np.arange(job.clients * job.samples).reshape(job.clients, job.samples):
        w, m = dict(x0), {name: torch.zeros_like(p) for name, p in x0.items()}
        for _ in range(job.epochs):
            w = {name: p.requires_grad_() for name, p in w.items()}
            loss = F.cross_entropy(torch.func.functional_call(model, w, (x[client],)), loop.labels[client])
            grads = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
            m = {name: job.momentum * m[name] + grads[name] + job.decay * w[name].detach() for name in w}
            w = {name: (w[name].detach() - job.lr * m[name]) for name in w}
        ends.append(w)
    loop.round()
    for name, p in loop.model.named_parameters():
        mean = sum(w[name] for w in ends) / job.clients
        torch.testing.assert_close(p.detach(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [pytest.param(name, marks=installed(name)) for name in contenders.NEEDS])
@pytest.mark.usefixtures("importable")
def test_another_framework_ends_with_the_plain_loops_model(name: str) -> None:
    done = subprocess.run([*PROGRAM, name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = next(line for line in done.stdout.splitlines() if line.startswith(f"{name} "))
    difference, way = map(float, said.split()[1:])
    assert difference < 1e-6
    assert way > 1e-2


@pytest.mark.parametrize("name", [pytest.param("pfl", marks=installed("pfl"))])
@pytest.mark.usefixtures("importable")
def test_it_takes_turns_with_ours_and_has_an_accuracy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TIMED", 2)
    monkeypatch.setattr(race, "command", lambda name, job, rounds: [*PROGRAM, name, str(rounds)])
    plain, settled = tiny_job.make(), []
    rows = turns.compete({"plain": turns.clocked(plain.round)}, [name], {"plain": lambda: settled.append(1)}, 120)
    assert [(row["job"], len(row["times"]), row["rounds"]) for row in rows] == [("plain", 2, 4), ("pfl-research", 2, 4)]
    assert rows[0]["accuracy"] == rows[1]["accuracy"] == plain.evaluate()
    assert plain.evaluate() > tiny_job.make().evaluate()
    assert settled == [1]


def test_who_is_missing_fails_or_hangs_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {"pfl": "raise ValueError('no card')", "flower": "import time; time.sleep(600)"}
    monkeypatch.setattr(race, "command", lambda name, job, rounds: [sys.executable, "-c", programs[name]])
    monkeypatch.setattr(turns, "missing", lambda name: "")
    ours = {"hand-written loop, plain": turns.clocked(lambda: 0.5)}
    rows = turns.compete(ours, ["flower", "pfl"], {}, 2)
    assert len(rows[0]["times"]) == turns.TIMED
    assert rows[0]["accuracy"] == 0.5
    assert rows[1]["failed"] == "took more than 2 s for start and first round"
    assert rows[2]["failed"] == "ended early, exit status 1: ValueError: no card"
    monkeypatch.setattr(turns, "missing", lambda name: "flwr, ray")
    rows += turns.compete(ours, ["flower"], {}, 2)[1:]
    assert rows[3] == {"job": "Flower simulation", "skipped": "not installed: flwr, ray"}
    gpu.show(rows, {})
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[2:]] == ["hand-written", "Flower", "pfl-research", "Flower"]
    assert said[3].endswith("failed: took more than 2 s for start and first round")
    assert said[5].endswith("skipped: not installed: flwr, ray")


def test_a_full_run_finds_compile_caches_that_are_empty_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that says what it was told, in place of one that trains."""
    program = (
        "import json, os; from benchmarks import gpu_full; found = gpu_full.state_of_caches(); "
        "paths = [os.environ[key] for key in gpu_full.CACHES]; open(os.path.join(paths[0], 'code'), 'w').close(); "
        "print(json.dumps({'seconds': 1.0, 'caches': found, 'paths': paths, 'then': gpu_full.state_of_caches()}))"
    )
    real = race.Child

    def child(name: str, command: list[str], *rest) -> race.Child:  # type: ignore[no-untyped-def]
        assert command[1:] == ["-m", "benchmarks.gpu_full", "fedavg:precision=bf16", "300"]
        return real(name, [sys.executable, "-c", program], *rest)

    monkeypatch.setattr(gpu_full, "Child", child)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/warm")
    row = gpu_full.apart("fedavg:precision=bf16", 120)
    assert (row["caches"], row["then"]) == ("empty before", "as found")
    assert row["job"] == "full run, 300 rounds, fedavg:precision=bf16, lda(0.1)"
    assert len(set(row["paths"])) == 2
    assert not any(Path(path).exists() or path == "/warm" for path in row["paths"])
    program = "raise RuntimeError('no compiler')"
    row = gpu_full.apart("fedavg:precision=bf16", 120)
    assert row["failed"] == "ended early, exit status 1: RuntimeError: no compiler"
