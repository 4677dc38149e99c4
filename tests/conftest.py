"""One thread per process, and which tests share one of the processes that `make test` starts."""

import os
import re
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from tests.chromium import open_browser

torch.set_num_threads(1)  # bit-identity across processes, and no fight over the cores

# Mostly waits, or long: while one process has such a file, the others work on the rest.
LONGEST = ("tests/flower/test_processes.py", "tests/report/test_report.py", "tests/distributed/test_ranks.py")
BY_ENTRY = "tests/conformance/test_catalogue.py"  # the tests of an entry share its sequential reference
TOGETHER = ("tests/report/", "tests/test_site.py")  # they share one comparison, or a browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.location[0] not in LONGEST)


def name_group(test: str) -> str:
    """Return the name of the tests that one process runs, because they share fixtures: as a rule, those of a file."""
    file = test.partition("::")[0]
    if file == BY_ENTRY:
        return re.sub(r".*\[((3|None|memory|disk)-)?", "", test)
    return "together" if file.startswith(TOGETHER) else file


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Groups by name: xdist 3.8 writes the marker `xdist_group` where pytest 9.2 no longer reads it."""

    def _split_scope(self, nodeid: str) -> str:
        return name_group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium for the tests of a file."""
    yield from open_browser(tmp_path_factory.mktemp("chromium"))
