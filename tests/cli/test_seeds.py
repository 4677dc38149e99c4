"""What several seeds vary, and what the tables say about it; several metrics in tables and reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import steppe
from steppe.config import resolve
from steppe.report import read_runs, report_tables
from steppe.report.findings import describe_setting, write_summary
from steppe.runs.folder import RunFolder
from tests.cli.conftest import Steppe

QUICK = ["--set", "model=mlp", "--set", "clients=6", "--set", "per_round=3", "--set", "max_steps=2",
         "--set", "workers=0", "--rounds", "2"]  # fmt: skip
EVERYTHING = "seeds vary the initial model, the batches, the partition and the clients' schedule"


def facts(where: Path, algorithm: str, seed: int) -> tuple[str, list[list[int]], float]:
    """Which partition a run had, whom it called, and what became of it."""
    run = RunFolder(where / algorithm / f"seed-{seed}")
    assert run.partition is not None
    return run.partition.hash, [r["participants"] for r in run.history], run.read("result.json")["last"]


def test_seeds_vary_all_that_is_random_and_are_paired(steppe: Steppe, tmp_path: Path) -> None:
    said = steppe("compare", "fedavg", "fedsam", "--seeds", "2", "-m", "none", "--out", "c", *QUICK,
                  "--set", "metrics=accuracy,cross_entropy")  # fmt: skip
    assert said.code == 0, said.err
    assert EVERYTHING in " ".join(said.out.split())
    assert "cross_entropy" in said.out
    found = {(a, s): facts(tmp_path / "c", a, s) for a in ("fedavg", "fedsam") for s in range(2)}
    assert found["fedavg", 0][0] != found["fedavg", 1][0]  # partitions
    assert found["fedavg", 0][1] != found["fedavg", 1][1]  # schedules
    for s in range(2):
        assert found["fedavg", s][:2] == found["fedsam", s][:2]
    told = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert told["variation"] == EVERYTHING
    assert set(told["lines"][0]["metrics"]) == {"accuracy", "cross_entropy"}
    # A single run is what it was, and seed 0 of a comparison is that run; any seed is repeated with vary=all.
    assert steppe("run", "fedavg", "--out", "r", *QUICK).code == 0
    alone = RunFolder(tmp_path / "r")
    assert alone.partition is not None
    assert (alone.partition.hash, alone.read("result.json")["last"]) == (found["fedavg", 0][0], found["fedavg", 0][2])
    assert steppe("run", "fedavg", "--out", "r2", *QUICK, "--set", "vary=all", "--set", "seed=1").code == 0
    assert RunFolder(tmp_path / "r2").read("result.json")["last"] == found["fedavg", 1][2]
    report = read_runs.read([tmp_path / "c"])
    assert EVERYTHING in describe_setting(report)
    assert EVERYTHING in write_summary(report)
    table = report_tables.make_results(report)
    assert "final cross_entropy" in table.columns
    assert "±" in table.rows[0][table.columns.index("final cross_entropy")]


def test_less_may_be_varied_and_the_table_says_so(steppe: Steppe, tmp_path: Path) -> None:
    said = steppe("sweep", "fedavg", "--grid", "lr=0.05", "--seeds", "2", "--out", "s", "--jobs", "1", *QUICK,
                  "--set", "vary=model", "--set", "metrics=accuracy,top5")  # fmt: skip
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    assert "seeds vary the initial model and the batches; all share the partition and the clients' schedule" in text
    assert "test top5" in text
    runs = RunFolder.find([tmp_path / "s"])
    assert len(runs) == 2
    assert len({r.partition.hash for r in runs if r.partition}) == 1
    told = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert told["best"]["last_top5"][0] > 0
    assert steppe("compare", "fedavg", "--set", "vary=some", *QUICK).code == 2


def test_a_seed_of_its_own_is_kept() -> None:
    plain, all_ = resolve({"seed": 3}), resolve({"seed": 3, "vary": "all"})
    assert (plain.partition_stream, plain.sampling_stream) == (None, None)
    assert None not in (all_.partition_stream, all_.sampling_stream)
    assert all_.partition_stream != all_.sampling_stream
    fixed = resolve({"seed": 3, "vary": "all", "partition_seed": 7, "sampling_seed": 8})
    assert (fixed.partition_stream, fixed.sampling_stream) == (7, 8)
    assert resolve({"vary": "all"}).partition_stream is None
    others = {resolve({"seed": s, "vary": "all"}).sampling_stream for s in range(1, 200)}
    assert len(others) == 199


@pytest.mark.slow
def test_the_spread_over_all_is_larger_than_over_models() -> None:
    """One partition hides what partitions do; here the clients hold very few classes each."""
    hard = {"model": "mlp", "partition": "lda(0.1)", "clients": 10, "per_round": 2, "rounds": 4, "epochs": 1,
            "workers": 0, "progress": False}  # fmt: skip

    def spread(vary: str) -> float:
        scores = [steppe.run("fedavg", seed=s, vary=vary, **hard).score for s in range(1, 7)]
        mean = sum(scores) / 6
        return (sum((v - mean) ** 2 for v in scores) / 5) ** 0.5

    assert spread("all") > 1.5 * spread("model")


@pytest.mark.parametrize(("words", "sentence"), [
    (["metrics=acuracy"], "did you mean 'accuracy'"),
    (["loss=hinge"], "no loss 'hinge'"),
    (["loss=own:mine.f"], "pass it again from Python"),
    (["metrics=[3]"], "metrics.0 is 3, but must be text"),
])  # fmt: skip
def test_bad_names_are_refused_before_anything_is_written(
    steppe: Steppe, tmp_path: Path, words: list[str], sentence: str
) -> None:
    said = steppe("run", "fedavg", *[w for text in words for w in ("--set", text)])
    assert said.code == 2
    assert sentence in said.err
    assert not (tmp_path / "runs").exists()
