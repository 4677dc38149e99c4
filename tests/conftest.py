"""One thread per process, and which tests share one of the processes that `make test` starts."""

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

import pytest
import torch

from tests.chromium import open_browser

torch.set_num_threads(1)  # bit-identity across processes, and no fight over the cores

LONGEST = ("tests/flower/test_processes.py",)  # mostly waits: while it does, the other processes work on the rest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests in one process, which makes their fixtures once, unless they name a group of their own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=lambda item: item.location[0] not in LONGEST)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium for the tests of a file."""
    yield from open_browser(tmp_path_factory.mktemp("chromium"))
