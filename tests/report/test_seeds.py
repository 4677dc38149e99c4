"""The paired test against scipy's, and where there is nothing to test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from steppe.report.seeds import compare_pairs, compute_student_p, incomplete_beta


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
