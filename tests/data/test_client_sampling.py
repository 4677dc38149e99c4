"""The official schedules of the two recipes, and a seeded one."""

import numpy as np
import pytest

from steppe.core.errors import SteppeError
from steppe.data.sampling import bernoulli, fixed, sparse


def test_fixed_official_stream():
    assert fixed(100, 10, 0).tolist() == [26, 86, 2, 55, 75, 93, 16, 73, 54, 95]
    assert fixed(100, 10, 1).tolist() == [80, 84, 33, 81, 93, 17, 36, 82, 69, 65]
    assert fixed(100, 10, 2, seed=5).tolist() == [83, 30, 56, 24, 16, 23, 2, 27, 28, 13]


def test_fixed_with_a_seed():
    a, b, c = (fixed(100, 10, 3, seed=s, official=False) for s in (0, 0, 1))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert len(set(a.tolist())) == 10
    seen = np.bincount(np.concatenate([fixed(20, 5, t, 0, official=False) for t in range(400)]))
    assert seen.min() > 60  # expected 100 each


def test_bernoulli_official_stream():
    assert bernoulli(100, 0.1, 0).tolist() == [4, 15, 33, 61, 69, 80, 92]
    assert bernoulli(100, 0.1, 1).tolist() == [0, 3, 5, 10, 75, 95, 97]
    assert bernoulli(200, 0.05, 0).tolist() == [4, 15, 61, 80, 92, 121, 139, 194]
    assert bernoulli(200, 0.05, 1).tolist() == [0, 3, 75, 97, 102, 116, 175, 189]
    counts = [len(bernoulli(100, 0.1, t)) for t in range(800)]
    assert (min(counts), max(counts)) == (2, 22)
    assert abs(np.mean(counts) - 10.02) < 0.01


def test_bernoulli_is_never_empty():
    assert all(len(bernoulli(2, 0.01, t)) for t in range(20))


@pytest.mark.parametrize("count", [0, 11])
def test_impossible_counts(count):
    with pytest.raises(SteppeError, match="choose between 1 and 10"):
        fixed(10, count, 0)


@pytest.mark.parametrize("ratio", [0, -1, 1.5])
def test_impossible_ratios(ratio):
    with pytest.raises(SteppeError, match="0 < ratio"):
        bernoulli(10, ratio, 0)


def test_hopeless_ratio_ends():
    with pytest.raises(SteppeError, match="samples no client"):
        bernoulli(1, 1e-12, 0)


def test_sparse_sampling_is_uniform_without_repeats_and_keyed():
    rounds = [sparse(40, 10, t, seed=5) for t in range(2000)]
    assert all(len(set(ids.tolist())) == 10 and ids.max() < 40 for ids in rounds)
    each, first = (
        np.bincount(np.concatenate(rounds), minlength=40),
        np.bincount([ids[0] for ids in rounds], minlength=40),
    )
    assert abs(each - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)
    assert abs(first - 50).max() < 5 * np.sqrt(50)
    assert sparse(40, 10, 7, seed=5).tolist() == rounds[7].tolist() != sparse(40, 10, 7, seed=6).tolist()
    assert sorted(sparse(9, 9, 0).tolist()) == list(range(9))
    assert len(set(sparse(10**9, 1000, 0).tolist())) == 1000
