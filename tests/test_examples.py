"""Every script of examples/ runs, in a folder of its own, and the page about them has each one."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest
from tools.examples_page import PAGE, find_examples, read_outputs

PROCESSES = {"flower_own_data.py"}  # a SuperLink and three SuperNodes start and stop: ten seconds of work take a minute
SLOW = PROCESSES | {"lora.py", "own_idea.py", "shakespeare.py"}  # these take longer than all the others


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=pytest.mark.slow if p.name in SLOW else ()) for p in find_examples()],
    ids=lambda p: p.stem)  # fmt: skip
def test_it_runs_and_says_something(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in needed_packages(path):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [path.name])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def needed_packages(path: Path) -> set[str]:
    found = ast.walk(ast.parse(path.read_text("utf-8")))
    names = [a.name for n in found if isinstance(n, ast.Import) for a in n.names]
    names += [
        n.module for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom) and n.module
    ]
    return {name.partition(".")[0] for name in names} | ({"flwr"} if path.name in PROCESSES else set())


def test_the_page_has_every_example_with_its_first_line_and_output() -> None:
    sections = read_outputs(PAGE.read_text("utf-8"))
    assert sorted(sections) == [path.name for path in find_examples()], "python -m tools.examples_page NAME.py"
    for path in find_examples():
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
        assert first, f"{path.name} has no docstring"
        assert sections[path.name].startswith(f"## {first.rstrip('.')}\n")
        output = sections[path.name].partition("```text\n")[2].partition("```")[0]
        assert output.strip(), path.name
    assert "docs/how-to/examples.md" in (PAGE.parents[2] / "README.md").read_text()
