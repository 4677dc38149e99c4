"""The paired test against scipy's, and where there is nothing to test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import steppe
from steppe.report.findings import describe_setting
from steppe.report.read_runs import read
from steppe.report.seeds import compare_pairs, compute_student_p, incomplete_beta
from tests.scene import blobs, seeded


class Named(steppe.Part):
    """A part of one's own that has the name of one of ours, and none of its settings."""

    name = "dp"

    def finish(self, delta: Any, s: Any) -> Any:
        return delta


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 40])
def test_p_and_error_are_scipys(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    for shift in (0.0, 0.3, 3.0):
        a, b = draw.normal(shift, 1, seeds), draw.normal(0, 0.5, seeds)
        ours = compare_pairs(dict(enumerate(a)), dict(enumerate(b)))
        wanted = stats.ttest_rel(a, b)
        assert ours is not None
        assert ours.p == pytest.approx(wanted.pvalue, rel=1e-9)
        assert ours.difference == pytest.approx((a - b).mean())
        assert ours.error == pytest.approx(stats.sem(a - b))


def test_the_tails_are_scipys() -> None:
    for freedom in (1, 2, 7, 100):
        for t in (0.0, 1e-8, 0.5, 1.0, 4.0, 50.0, 1e4):
            assert compute_student_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-8)
            assert compute_student_p(-t, freedom) == compute_student_p(t, freedom)
    for a, b, x in [(0.5, 0.5, 0.3), (2, 3, 0.9), (50, 0.5, 0.999), (0.5, 50, 1e-6), (1, 1, 0.0), (1, 1, 1.0)]:
        assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-10)


def test_only_common_seeds_are_paired() -> None:
    ours = compare_pairs({0: 0.5, 1: 0.7, 2: 0.9, 5: 9.0}, {2: 0.8, 1: 0.5, 0: 0.4, 7: -9.0})
    wanted = stats.ttest_rel([0.5, 0.7, 0.9], [0.4, 0.5, 0.8])
    assert ours is not None
    assert (ours.seeds, ours.p) == (3, pytest.approx(wanted.pvalue))
    assert compare_pairs({0: 1.0}, {1: 1.0}) is None


def test_without_a_spread_nothing_is_claimed() -> None:
    one = compare_pairs({0: 0.9}, {0: 0.8})
    assert one is not None
    assert (one.difference, one.error, one.p) == (pytest.approx(0.1), None, None)
    same = compare_pairs({0: 0.1 + 0.2, 1: 0.5}, {0: 0.2, 1: 0.4})  # differences of 0.1 up to rounding
    assert same is not None
    assert same.p is None
    assert same.difference == pytest.approx(0.1)


@pytest.mark.parametrize(("options", "varied", "shared"), [
    ({"validation": 0.2}, "the batches, the validation samples and the partition", "the clients' schedule"),
    ({"validation": 0.2, "groups": [i % 4 for i in range(90)]}, "the batches and the validation samples",
     "the partition and the clients' schedule"),
    ({"dropout": 0.3}, "the batches and the clients' failures", "the partition and the clients' schedule"),
    ({"speed": "lognormal(0.5)"}, "the batches and the clients' speeds", "the partition and the clients' schedule"),
    ({"add": "dp"}, "the batches, the clients' schedule and the noise", "the partition"),
    ({"add": Named()}, "the batches", "the partition and the clients' schedule"),
    ({"add": "dp:seed=1", "vary": "all"}, "the batches and the partition", "the clients' schedule and the noise"),
])  # fmt: skip
def test_what_seeds_vary_is_what_the_records_show(
    options: dict[str, Any], varied: str, shared: str, tmp_path: Path
) -> None:
    few = {"clients": 4, "per_round": 2, "rounds": 2, "max_steps": 1, "workers": 0, "vary": "model", "progress": False}
    found = steppe.compare(["fedavg"], seeded(), blobs(), seeds=3, out=tmp_path / "c", **{**few, **options})
    said = f"seeds vary {varied}; all share the initial model{' and' if ' and ' not in shared else ','} {shared}"
    assert said in found.table()
    assert said in describe_setting(read([tmp_path / "c"]))
    (runs,) = found.runs.values()
    assert len({r.about["data"]["hash"] for r in runs}) == (3 if "validation samples" in varied else 1)
    if "groups" not in options:  # indices of groups refer to what validation leaves
        assert len({r.about["partition"]["hash"] for r in runs}) == (3 if "partition" in varied else 1)
    if "add" not in options:
        asked = [[sorted([*r["participants"], *r.get("dropped", [])]) for r in run.history if "participants" in r]
                 for run in runs]  # fmt: skip
        assert asked[0] == asked[1] == asked[2] or "dropout" in options
