"""The code blocks of every page run: Python in order, page by page, and the commands that need neither a GPU, a network
nor other people's data. Runs are made small.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import steppe as library
from tests.cli.conftest import Steppe
from tests.docs import newcomer
from tests.docs.code_blocks import find_pages, find_steppe, name_page, read_blocks, read_commands

pytestmark = pytest.mark.slow
PYTHON = [p for p in find_pages() if any(b.language == "python" and not b.not_run for b in read_blocks(p))]
TINY: dict[str, Any] = {"max_steps": 1, "workers": 0}
FEW = {"clients": 4, "per_round": 2}
SMALL = ["-s", "data=digits", "-s", "model=mlp", "-s", "max_steps=1", "-s", "workers=0", "--rounds", "1"]
LESS = {
    "run": SMALL,
    "compare": [*SMALL, "--seeds", "1", "-m", "none"],
    "sweep": [*SMALL, "--seeds", "1", "--jobs", "1"],
    "analyze": ["-m", "loss"],
    "cost": [],
    "trace": [],
    "list": [],
    "cite": [],
    "new": [],
    "partition": [],
    "report": [],
    "plot": [],
}  # not here: federate and reproduce, which have tests of their own


@pytest.mark.parametrize("path", PYTHON, ids=name_page)
def test_python_runs(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute a page's blocks in order, as a reader would type them."""
    for name in ("run", "compare", "sweep"):
        monkeypatch.setattr(library, name, shorten(getattr(library, name), many=name != "run"), raising=False)
    (x, y), (test_x, test_y) = newcomer.make_samples(60, 0), newcomer.make_samples(30, 1)
    known = {"steppe": library, "MyModule": newcomer.MyModule, "LookBack": newcomer.LookBack, "__name__": "page",
             "x": x, "y": y, "test_x": test_x, "test_y": test_y}  # fmt: skip
    for block in read_blocks(path):
        if block.language == "python" and not block.not_run:
            exec(compile(block.parse(), block.page, "exec"), known)


def shorten(function: Callable[..., Any], many: bool) -> Callable[..., Any]:
    """Give a function of the library few rounds, seeds and steps, and the smallest model unless another is given."""

    def short(*args: Any, **given: Any) -> Any:
        own = len(args) > 1 or not {"model", "data", "partition", "groups"}.isdisjoint(given)
        few = {} if own or given.get("clients") is None else FEW
        given = {**given, **few, **TINY, "rounds": min(given.get("rounds", 2), 2)}
        given |= {"jobs": 1, "seeds": min(given.get("seeds", 1), 2)} if many else {"progress": False}
        return function(*args, **given, **({} if own else {"model": "mlp"}))

    return short


@pytest.mark.parametrize("path", find_pages(), ids=name_page)
def test_cheap_commands_run(path: Path, folder: Path, steppe: Steppe) -> None:
    for block in read_blocks(path):
        if block.not_run:
            continue
        for line, words in read_commands(block):
            options = find_steppe(words)
            if words[0] != "steppe" or not options or options[0] not in LESS or "…" in options:
                continue
            said = steppe(*options, *LESS[options[0]])
            assert said.code == 0, f"{block.page}:{line}: {' '.join(words)}\n{said.err}"
