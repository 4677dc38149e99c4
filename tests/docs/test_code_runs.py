"""The code blocks of every page run: Python in order, page by page, and the commands that need neither a GPU, a network
nor other people's data. Runs are made small.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import steppe as library
from tests.cli.conftest import Steppe
from tests.docs import newcomer
from tests.docs.code_blocks import ROOT, find_pages, name_page, read_blocks, read_commands

pytestmark = pytest.mark.slow
PYTHON = [p for p in find_pages() if any(b.language == "python" and not b.not_run for b in read_blocks(p))]
TINY: dict[str, Any] = {"max_steps": 1, "workers": 0}
FEW = {"clients": 4, "per_round": 2}
SMALL = ["-s", "data=digits", "-s", "model=mlp", "-s", "max_steps=1", "-s", "workers=0", "--rounds", "1"]
LESS = {
    "run": SMALL,
    "compare": [*SMALL, "--seeds", "1", "--jobs", "1", "-m", "none"],
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
    (x, y), (test_x, test_y) = newcomer.make_samples(600, 0), newcomer.make_samples(60, 1)
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    vars(page).update(steppe=library, MyModule=newcomer.MyModule, LookBack=newcomer.LookBack)
    vars(page).update(x=x, y=y, test_x=test_x, test_y=test_y)
    for block in read_blocks(path):
        if block.language == "python" and not block.not_run:
            exec(compile(block.parse(), block.page, "exec"), vars(page))


def shorten(function: Callable[..., Any], many: bool) -> Callable[..., Any]:
    """Give a function of the library few rounds, seeds and steps, and the smallest model unless another is given."""

    def short(*args: Any, **given: Any) -> Any:
        own = len(args) > 1 or not {"model", "data", "partition", "groups"}.isdisjoint(given)
        few = {} if own or given.get("clients") is None else FEW
        given = {**given, **few, **TINY, "rounds": min(given.get("rounds", 2), 2)}
        given |= {"jobs": 1, "seeds": 1} if many else {"progress": False}
        return function(*args, **given, **({} if own else {"model": "mlp"}))

    return short


def take_less(options: list[str]) -> list[str]:
    """Keep the first value of each grid, one trial of a search, and two of several algorithms.

    >>> " ".join(take_less("compare fedavg fedsam scaffold --seeds 3".split()))
    'compare fedavg fedsam --seeds 3'
    >>> " ".join(take_less("sweep fedsam --grid rho=0.1,0.5 --search 20".split()))
    'sweep fedsam --grid rho=0.1 --search 1'
    """
    short = list(options)
    for i, word in enumerate(options[:-1]):
        if word == "--grid":
            short[i + 1] = options[i + 1].partition(",")[0]
        if word == "--search":
            short[i + 1] = "1"
    ends = next((i for i, word in enumerate(short) if word.startswith("-")), len(short))
    return [*short[: min(ends, 3)], *short[ends:]] if short[0] == "compare" else short


@pytest.fixture
def clone(folder: Path, steppe: Steppe, request: pytest.FixtureRequest) -> Steppe:
    """The command line where `make demo` has run."""
    demo = re.search(r"^demo:.*\n\t\S+ (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert demo is not None
    if "runs/demo" in request.getfixturevalue("path").read_text("utf-8"):
        assert steppe(*take_less(shlex.split(demo[1])), *LESS["compare"]).code == 0
    (folder / "look_back.py").rename(folder / "newcomer.py")  # `steppe new` writes it
    return steppe


def find_cheap(path: Path) -> list[tuple[int, list[str]]]:
    """Return the lines and options of a page's commands that are executed."""
    found = [(line, words[1:]) for block in read_blocks(path) if not block.not_run
             for line, words in read_commands(block) if words[0] == "steppe"]  # fmt: skip
    return [(line, options) for line, options in found if options[0] in LESS and "…" not in options]


@pytest.mark.parametrize("path", [path for path in find_pages() if find_cheap(path)], ids=name_page)
def test_cheap_commands_run(path: Path, clone: Steppe) -> None:
    for line, options in find_cheap(path):
        said = clone(*take_less(options), *LESS[options[0]])
        assert said.code == 0, f"{name_page(path)}:{line}: steppe {' '.join(options)}\n{said.err}"
