"""Aligned test sets: shares, order, and the official stream that goes on after the partition's."""

import numpy as np
import pytest

from steppe.core.errors import SteppeError
from steppe.data import align_test_sets
from steppe.data.partition import make

LABELS, TEST = np.arange(2000) % 5, np.arange(1000) % 5


def test_shares_follow_the_training_samples():
    split = make("lda(0.3)", LABELS, 8)
    sets = align_test_sets(split, LABELS, TEST, size=200)
    counts = split.counts(LABELS, 5)
    for own, row in zip(sets, counts, strict=True):
        expected = np.minimum(200, (200 * row.astype(np.float32) / np.float32(row.sum())).astype(int))
        assert np.abs(np.bincount(TEST[own], minlength=5) - expected).max() <= 1  # float32 truncation
        assert len(np.unique(own)) == len(own) <= 200
        assert (np.diff(TEST[own]) >= 0).all()


def test_a_class_that_runs_out_is_capped():
    split = make("sharding(1)", LABELS, 5)
    assert [len(own) for own in align_test_sets(split, LABELS, TEST)] == [200] * 5


def test_draws_go_on_after_the_partition():
    split = make("iid", LABELS, 2, seed=3)
    np.random.seed(3)
    rest = np.arange(2000)
    np.random.shuffle(rest)
    np.random.shuffle(rest[1000:])
    share = split.counts(LABELS, 5)[0, 0] / np.float32(1000)
    first = np.random.choice(np.flatnonzero(TEST == 0), min(200, int(1000 * share)), replace=False)
    assert align_test_sets(split, LABELS, TEST)[0][: len(first)].tolist() == first.tolist()


def test_a_seed_makes_it_independent():
    split = make("iid", LABELS, 2)
    a, b = (align_test_sets(split, LABELS, TEST, size=100, seed=s) for s in (1, 1))
    assert np.array_equal(a[0], b[0])
    assert not np.array_equal(a[0], align_test_sets(split, LABELS, TEST, size=100)[0])


def test_bad_input():
    split = make("iid", LABELS, 2)
    with pytest.raises(SteppeError, match="not class labels"):
        align_test_sets(split, LABELS.astype(float), TEST)
    with pytest.raises(SteppeError, match="at least 1"):
        align_test_sets(split, LABELS, TEST, size=0)
