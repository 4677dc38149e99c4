"""A key is the same whether its parts are integers or tensors, on every path through `key`."""

from itertools import product

import numpy as np
import pytest
import torch

from steppe.core.keyed import key

PARTS = (-(2**63), 2**63 - 1, 31, -7)


def splitmix(*parts: int) -> int:
    """The definition, in unsigned arithmetic."""
    state = 0
    for part in parts:
        z = (state * 31 + part + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        state = z ^ z >> 31
    return state - 2**64 if state >= 2**63 else state


@pytest.mark.parametrize("kinds", [*product([int, torch.tensor, np.int64], repeat=len(PARTS))])
def test_integers_and_tensors_give_the_same_key(kinds):
    found = key(*(kind(part) for kind, part in zip(kinds, PARTS, strict=True)))
    assert found.dtype == torch.int64
    assert found.shape == ()
    assert int(found) == splitmix(*PARTS)


def test_tensors_broadcast():
    found = key(5, torch.arange(3)[:, None], 8, torch.arange(2, dtype=torch.int32), 1)
    assert found.tolist() == [[splitmix(5, i, 8, j, 1) for j in range(2)] for i in range(3)]


def test_no_part_is_zero():
    assert int(key()) == 0
