import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet():
    """Tiny work on one thread; some variants of the catalogue warn."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
