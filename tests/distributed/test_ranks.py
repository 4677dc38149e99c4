"""Several ranks end where one process does, whoever trains whom."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import steppe
from steppe.cli import arguments
from steppe.core.errors import SteppeError
from steppe.distributed.ranks import Ranks, assign_clients
from tests.conformance.problem import entries, label
from tests.distributed.parity import RUNS, SCHEDULE, SOME, ended, run
from tests.scene import records, remains

ROOT = Path(__file__).parents[2]
# Along rounding noise by design, so that sums in another order take another direction; in fixed order they hold too.
NOISY = [label(e) for e in entries() if e[1].get("first_step") == "official"]
TOLERANCE = 1e-9  # in float64, relative to the largest number of a vector


def torchrun(ranks: int, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone"]  # on a free port, for several launches may be alive
    launcher += ["--log-dir", str(options["cwd"])] if options.get("cwd") not in (None, ROOT) else []
    command = [sys.executable, *launcher, "--nproc-per-node", str(ranks), *arguments]
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, **options)


def launch_parity(out: Path, *words: str) -> Path:
    process = torchrun(3, "-m", "tests.distributed.parity", str(out), *words, cwd=ROOT)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    return out


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_parity(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def launched_rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch_parity(tmp_path_factory.mktemp("rest"), "rest")


@cache
def loaded(path: Path) -> dict[str, Tensor]:
    return load_file(path)


@cache
def alone(name: str) -> dict[str, Tensor]:
    entry = next(e for e in entries() if label(e) == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return ended(entry, "sum")


def of(path: Path, name: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{name}: "): v for k, v in loaded(path).items() if k.startswith(f"{name}: ")}


@pytest.mark.parametrize("name", SOME)
def test_ranks_end_where_one_process_does(name: str, launched: Path) -> None:
    check_ranks(name, launched)


@pytest.mark.slow
@pytest.mark.parametrize("name", [label(e) for e in entries() if label(e) not in SOME])
def test_ranks_end_where_one_process_does_with_every_other_entry(name: str, launched_rest: Path) -> None:
    check_ranks(name, launched_rest)


def check_ranks(name: str, launched: Path) -> None:
    expected = alone(name)
    for ranks in (1, 2, 3):
        exact = of(launched / f"{ranks}-ordered.safetensors", name)
        assert exact.keys() == expected.keys()
        assert all(torch.equal(exact[k], v) for k, v in expected.items()), f"{ranks} ranks, in order"
        if name in NOISY:
            continue
        summed = of(launched / f"{ranks}-sum.safetensors", name)
        assert summed.keys() == expected.keys()
        for k, v in expected.items():
            atol = TOLERANCE * max(1.0, float(v.abs().max()))
            assert torch.allclose(summed[k], v, rtol=0, atol=atol), f"{ranks} ranks: {k}"


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_on_three_ranks_leaves_the_folder_of_one_process(name: str, launched: Path, tmp_path: Path) -> None:
    result = run(name, tmp_path)
    assert remains(launched / name, result) == remains(tmp_path / name, result)
    summaries = [json.loads((home / name / "result.json").read_text()) for home in (launched, tmp_path)]
    assert all(s.pop("seconds") for s in summaries)
    assert summaries[0] == summaries[1]
    if "bad" in name:
        assert any("refused" in record for record in result.history)
    if name == "clients that fail":
        assert 0 in [record["clients"] for record in result.history]
    if name == "early stopping":
        assert len(result.history) < 12
    if name == "own models":
        assert "personal" in summaries[0]


@pytest.mark.parametrize(("name", "vectors"), [("fedavg", 1), ("scaffold", 2), ("fedsmoo", 3), ("fedscar", 2)])
def test_each_vector_is_summed_once_a_round(name: str, vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSMOO: the update, the ascents and the moves. No part's second hook sums again."""
    sizes: list[int] = []
    monkeypatch.setattr(Ranks, "on", property(lambda self: True, lambda self, value: None), raising=False)
    monkeypatch.setattr(Ranks, "sum", lambda self, v: sizes.append(v.numel()) or v)
    monkeypatch.setattr(Ranks, "gather", lambda self, tree, owners: tree)
    monkeypatch.setattr(Ranks, "gather_objects", lambda self, own, owners: own)
    monkeypatch.setattr("steppe.distributed.ranks.dist.get_rank", lambda group: 0)
    monkeypatch.setattr("steppe.distributed.ranks.dist.get_world_size", lambda group: 1)
    found = ended((name, {}), "sum")
    assert sizes == [found["x"].numel()] * vectors * len(SCHEDULE)


def test_torchrun_is_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    arguments.check_torchrun(["run", "fedavg"])
    with pytest.raises(SteppeError, match="steppe compare runs in one process"):
        arguments.check_torchrun(["compare", "fedavg"])


def test_work_is_spread_longest_first() -> None:
    work = [3, 9, 1, 4, 4, 7, 2]
    owners = assign_clients(work, 3, [None] * len(work))
    loads = [sum(w for w, o in zip(work, owners, strict=True) if o == r) for r in range(3)]
    assert sorted(loads) == [10, 10, 10]
    assert assign_clients([5, 5, 5], 3, [2, 2, 0])[:1] == [2]  # at equal load, where its state is
    assert set(assign_clients([1], 3, [None])) == {0}


SETTINGS = {"model": "mlp", "clients": 8, "per_round": 3, "epochs": 1, "batch": 40, "max_steps": 2,
            "checkpoint_every": 2, "rounds": 80, "reduction": "ordered", "workers": 0, "store": "memory"}  # fmt: skip


def killed(rank: int, out: Path, *words: str) -> str:
    """Start two ranks, kill -9 one of them after some rounds; returns what was printed."""
    process = torchrun(2, "-m", "steppe", "run", *words, "--out", str(out), cwd=out.parent)
    try:
        rounds, before, mine = out / "rounds.jsonl", None, str(rank).encode()
        while process.poll() is None:
            lines = rounds.read_text().count("\n") if rounds.exists() else 0
            before = lines if before is None and lines else before
            if before is not None and lines >= before + 4:
                os.kill(next(p for p in children(process.pid) if environment(p).get(b"RANK") == mine), signal.SIGKILL)
                break
            time.sleep(0.01)
        return process.communicate(timeout=120)[1]
    finally:
        process.kill()


def children(process: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def environment(process: int) -> dict[bytes, bytes]:
    pairs = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return {k: v for k, _, v in (pair.partition(b"=") for pair in pairs)}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds ranks in /proc")
def test_a_killed_rank_is_named_and_the_run_goes_on_with_fewer(tmp_path: Path) -> None:
    """kill -9 of rank 1; resumed on two ranks, kill -9 of rank 0; resumed in one process: the bits of a whole run."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    words = [word for k, v in SETTINGS.items() for word in ("--set", f"{k}={v}")]
    told = killed(1, out, "scaffold", *words)
    assert re.search(r"error: Rank 1 \(process \d+ on .+\) ended unexpectedly", told), told
    assert told.count("ended unexpectedly") == 1
    told = killed(0, out, "--resume")
    assert re.search(r"error: Rank 0 \(process \d+ on .+\) ended unexpectedly", told), told
    assert 4 <= len(records(out)) < 80
    resumed = steppe.run("scaffold", out=out, resume=True, **SETTINGS)
    again = steppe.run("scaffold", out=whole, **SETTINGS)
    assert remains(out, resumed) == remains(whole, again)
