"""Every code block on every page is read.

Python is compiled, and its names, keywords and imports are looked up. `steppe` commands are read by the real command
line up to where the work begins. TOML and JSON are parsed. Other commands must name what there is. `test_code_runs.py`
executes them.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import steppe as library
from steppe.algorithms import CATALOGUE
from steppe.config import Config, resolve
from steppe.read_config import nest_settings
from steppe.registry import list_catalogue_settings
from tests.cli.conftest import Steppe
from tests.docs.code_blocks import ROOT, SHELL, Block, find_pages, find_steppe, name_page, read_blocks, read_commands

EVERY_PAGE = pytest.mark.parametrize("path", find_pages(), ids=name_page)
LANGUAGES = {"python", "toml", "json", "text", "bibtex", "latex", "yaml", *SHELL}
PROGRAMS = {
    "tensorboard",
    "mlflow",
    "wandb",
    "pytest",
    "pdflatex",
    "git",
    "cd",
    "ssh-keygen",
    "export",
    ".",
    "torchrun",
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
SETTINGS = {key for name in CATALOGUE for key in list_catalogue_settings(name)}
UNDERSTOOD = 77  # the exit code of a command whose work is about to begin


@EVERY_PAGE
def test_blocks_are_valid(path: Path) -> None:
    for block in read_blocks(path):
        check_block(block)


def check_block(block: Block) -> None:
    if block.language == "indented":
        python = re.search(r"^(import |from \w+ import|def |class |steppe\.\w+\()", block.code, re.MULTILINE)
        assert not python, f"{block.where}: Python belongs in a fenced block, ```python"
        return
    assert block.language in LANGUAGES, f"{block.where}: {block.language!r} is not one of {sorted(LANGUAGES)}"
    check = {"python": check_python, "toml": check_toml, "json": check_json}.get(block.language)
    if check:
        check(block)


def check_python(block: Block) -> None:
    for node in ast.walk(block.parse()):
        names = spell_name(node.func if isinstance(node, ast.Call) else node)
        if names[:1] == ["steppe"] and names[1:]:
            check_name(block, names[1:])
        if isinstance(node, ast.Call) and names[:1] == ["steppe"]:
            check_keywords(block, names[1:], [k.arg for k in node.keywords if k.arg])
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "steppe":
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{block.where}: {node.module} has no {name.name}"


def spell_name(node: ast.AST) -> list[str]:
    """Return ["steppe", "optim", "SAM"] for steppe.optim.SAM, [] for anything that is not a dotted name."""
    if isinstance(node, ast.Name):
        return [node.id]
    inner = spell_name(node.value) if isinstance(node, ast.Attribute) else []
    return [*inner, node.attr] if inner else []  # type: ignore[attr-defined]


def check_name(block: Block, names: list[str]) -> Any:
    assert names[0] in dir(library), f"{block.where}: steppe.{names[0]} is not public"
    thing: Any = library
    for name in names:
        assert hasattr(thing, name), f"{block.where}: there is no steppe.{'.'.join(names)}"
        thing = getattr(thing, name)
    return thing


def check_keywords(block: Block, names: list[str], keywords: list[str]) -> None:
    """Look up every keyword: one of the function's own, a key of a run, or a setting of an algorithm."""
    own = inspect.signature(check_name(block, names)).parameters
    known = set(own)
    if any(p.kind is p.VAR_KEYWORD for p in own.values()):
        known |= {*Config.model_fields, *SETTINGS, "groups", "by"}
    for keyword in keywords:
        assert keyword in known, f"{block.where}: steppe.{'.'.join(names)} takes no {keyword}"


def check_toml(block: Block) -> None:
    """Parse it; what consists of a run's keys is checked as `steppe run --config` does."""
    values = tomllib.loads(block.code)
    if set(values) <= {*Config.model_fields, "settings"} and not isinstance(values.get("data"), dict):
        resolve(nest_settings(values), block.where)


def check_json(block: Block) -> None:
    """Parse one object, or one value per line."""
    for text in [block.code] if block.code.startswith("{\n") else block.code.splitlines():
        json.loads(text)


@pytest.fixture
def understanding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command end where its work begins: its options, settings and names have been checked by then."""
    from steppe.cli.app import app
    from steppe.jobs.ray_places import parse_place

    def stop(*args: Any, **given: Any) -> None:
        sys.exit(UNDERSTOOD)

    def parse(on: str, *rest: Any) -> None:
        parse_place(on)
        stop()

    monkeypatch.setattr("steppe.jobs.ray_places.Cluster", parse)  # there is no cluster
    for place in ("engine.build.build_experiment", "jobs.many_runs.run_all"):
        monkeypatch.setattr(f"steppe.{place}", stop)
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    for command in [command for group in groups for command in group.registered_commands]:
        if command.callback.__name__ not in ("run", "compare", "sweep"):  # type: ignore[union-attr]
            monkeypatch.setattr(command, "callback", take_options_of(command.callback, stop))


def take_options_of(function: Any, stop: Any) -> Any:
    """Return a function that stops, with the signature from which a command's options are made."""

    def stopped(**given: Any) -> None:
        stop()

    stopped.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    stopped.__annotations__ = inspect.get_annotations(function, eval_str=True)
    stopped.__name__ = function.__name__
    return stopped


@EVERY_PAGE
def test_commands_are_understood(path: Path, folder: Path, steppe: Steppe, understanding: None) -> None:
    for block in read_blocks(path):
        check_commands(block, steppe)


def check_commands(block: Block, steppe: Steppe) -> None:
    for line, words in read_commands(block):
        where = f"{block.page}:{line}: {' '.join(words)}"
        options = find_steppe(words)
        if options is None:
            if not block.not_run:
                check_other_program(where, words)
        elif "…" in options:
            assert steppe(options[0], "--help").code == 0, where
        else:
            said = steppe(*options)
            begun_elsewhere = "--resume" in options and "holds no run" in said.err
            assert said.code in (0, UNDERSTOOD) or begun_elsewhere, f"{where}\n{said.err}"


def check_other_program(where: str, words: list[str]) -> None:
    """Check that the files, targets, modules and extras which a command names exist."""
    program, *rest = words
    if program == "make":
        assert {word for word in rest if "=" not in word} <= set(TARGETS), where
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), where
    elif program == "python":
        assert (ROOT / rest[0]).exists(), where
    elif program == "pip":
        named = {one for text in re.findall(r"\[(.*?)\]", " ".join(rest)) for one in text.split(",")}
        assert named <= set(EXTRAS), where
    else:
        assert program in PROGRAMS, f"{where}: unknown program; write `<!-- not run: REASON -->` before the block"


WRONG = [
    ("python", "steppe.run('fedavg', raunds=3)", "takes no raunds"),
    ("python", "steppe.walk()", "steppe.walk is not public"),
    ("python", "from steppe.testing import confirms", "has no confirms"),
    ("python", "if True", "expected ':'"),
    ("toml", "clients = 0", "clients"),
    ("json", "{1: 2}", "property name"),
    ("indented", "import steppe", "fenced"),
    ("ruby", "puts 1", "ruby"),
    ("bash", "steppe run fedavg --set raunds=3", "raunds"),
    ("bash", "steppe compare fedavg fedsma", "fedsma"),
    ("bash", "steppe sweep fedsam --grid row=1,2", "row"),
    ("bash", "steppe report --formt tex", "formt"),
    ("indented", "steppe federate upp", "upp"),
    ("bash", "torchrun --nproc-per-node 2 -m steppe run fedavg --roundz 3", "roundz"),
    ("bash", "make tea", "make tea"),
    ("bash", "pip install 'steppe[tea]'", "tea"),
    ("bash", "python -m tools.tea", "tea"),
]


@pytest.mark.parametrize(("language", "code", "problem"), WRONG)
def test_what_is_wrong_is_noticed(
    language: str, code: str, problem: str, folder: Path, steppe: Steppe, understanding: None
) -> None:
    block = Block("page.md", 1, language, code + "\n", "")
    check = check_commands if language == "bash" or code.startswith("steppe ") else check_block_alone
    with pytest.raises((AssertionError, SyntaxError, ValueError, library.SteppeError), match=problem):
        check(block, steppe)


def check_block_alone(block: Block, steppe: Steppe) -> None:
    check_block(block)
