"""The hops in docs/explanation/design.md exist, and the commands take them; packages are in the order of imports."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steppe.cli.app import app
from tests.test_architecture import ROOMS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/explanation/design.md").read_text()
HOP = re.compile(r"([a-z_]+(?:/[a-z_]+)*\.py):([a-z_]+(?:, [a-z_]+(?![a-z_/.]))*)")
SMALL = ["model=mlp", "workers=0", "clients=4", "per_round=2", "max_steps=1"]
FEW = ["--rounds", "1", *(word for text in SMALL for word in ("--set", text))]


def find_hops(text: str) -> list[tuple[str, str]]:
    """Return the files and functions of a text, in their order."""
    return [(file, name) for file, names in HOP.findall(text) for name in names.split(", ")]


@pytest.mark.parametrize(("file", "name"), sorted(set(find_hops(PAGE))))
def test_a_hop_is_a_function_of_its_file(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "src" / "steppe" / file).read_text())
    assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_hops() -> None:
    assert len(set(find_hops(PAGE))) > 40


def test_packages_are_in_the_order_of_imports() -> None:
    table = PAGE.split("| package | content |")[1].split("## ")[0]
    rows = (line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert [name for row in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", row)] == ROOMS


def follow(*words: str) -> set[tuple[str, str]]:
    """Run a command, and return the functions that it called."""
    called, source = set(), f"{ROOT / 'src' / 'steppe'}/"

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(source):
            called.add((frame.f_code.co_filename.removeprefix(source), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        result = CliRunner().invoke(app, words, catch_exceptions=False)
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.output
    return called


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[str, str]]]:
    """By the headings of the page: what the commands call."""
    where = tmp_path_factory.mktemp("hops")
    commands = {
        "run fedsmoo": [*FEW, "--out", f"{where}/r"],
        "compare fedavg fedsam": [*FEW, "--samples", "50", "--out", f"{where}/c"],
    }
    found = {name: follow(*name.split(), *more) for name, more in commands.items()}
    return found | {"report runs/demo": follow("report", f"{where}/c", "--out", f"{where}/page.html")}


@pytest.mark.parametrize("command", ["run fedsmoo", "compare fedavg fedsam", "report runs/demo"])
def test_a_command_takes_its_hops(command: str, taken: dict[str, set[tuple[str, str]]]) -> None:
    block = PAGE.split(f"`steppe {command}`\n\n")[1].split("\n\n")[0]
    hops = find_hops(block)
    assert len(hops) > 6
    assert [hop for hop in hops if hop not in taken[command]] == []
