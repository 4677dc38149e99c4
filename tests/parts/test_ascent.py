"""The length of an ascent, which SAM and its relatives share."""

import pytest
import torch

from steppe.core.part import ascend, unit


@pytest.mark.parametrize("numbers", [1000, 2_000_000])
def test_an_ascent_has_its_radius_in_float32(numbers):
    """As long as a model's gradient: a norm that adds in a row is off by 4e-5 there."""
    v = torch.randn(numbers, generator=torch.Generator().manual_seed(0)) * 1e-3
    assert float(torch.linalg.vector_norm(unit(v).double())) == pytest.approx(1, abs=1e-6)
    moved = ascend(torch.zeros(numbers), v, 0.1)
    assert float(torch.linalg.vector_norm(moved.double())) == pytest.approx(0.1, abs=1e-7)
