"""Imports point one way, the way the data walks."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "steppe"
# Each may import itself and what stands before it in its list, nothing else of ours.
ALLOWED = {
    "errors": [],
    "core": [],
    "parts": ["core"],
    "algorithms": ["core", "parts"],
    "registry": ["algorithms", "core", "errors", "parts"],
    "citations": ["errors"],
    "accountant": ["errors"],
    "models": ["errors"],
    "config": ["errors"],
    "data": ["core", "errors"],
    "evaluate": ["core", "errors", "data", "parts", "algorithms", "registry"],
    "flatness": ["core", "errors", "data", "evaluate", "parts"],
    # A run may measure flatness every n rounds, and an analysis plays one more round.
    "@": [
        "core",
        "errors",
        "parts",
        "algorithms",
        "registry",
        "models",
        "config",
        "data",
        "evaluate",
        "flatness",
        "accountant",
        "steppe",
    ],
    "flower": ["core", "errors", "config", "data", "simulate", "steppe"],
    "report": [
        "core",
        "errors",
        "parts",
        "algorithms",
        "registry",
        "models",
        "config",
        "data",
        "evaluate",
        "flatness",
        "simulate",
    ],
    # The published tables: whole runs, and pages about them.
    "reproduce": ["core", "errors", "models", "config", "data", "simulate", "report"],
    "api": ["core", "errors", "models", "config", "data", "simulate", "algorithms", "registry"],
}
OUTSIDE = {"core": {"torch"}, "parts": {"torch"}, "errors": set()}  # and the standard library


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "steppe":
                yield from (f"steppe.{alias.name}" for alias in node.names)
            else:
                yield node.module


def room(module):
    return module.split(".")[1] if "." in module else "steppe"


FILES = [p for p in SOURCE.rglob("*.py") if (p.relative_to(SOURCE).parts[0].removesuffix(".py")) in ALLOWED]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_backwards(path):
    mine = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for module in imports(path):
        if module.split(".")[0] == "steppe":
            assert room(module) in [mine, *ALLOWED[mine]], f"{path.name} of {mine} imports {module}"
        elif mine in OUTSIDE:
            import sys

            top = module.split(".")[0]
            assert top in OUTSIDE[mine] | set(sys.stdlib_module_names), f"{path.name} of {mine} imports {module}"


def test_every_room_has_its_rule():
    rooms = {
        p.name.removesuffix(".py")
        for p in SOURCE.iterdir()
        if p.suffix == ".py" or (p.is_dir() and any(p.glob("*.py")))
    }
    commands = {"cli", "cli_federate", "cli_lab", "cli_reproduce", "cli_sweep"}
    assert rooms - set(ALLOWED) <= {"__init__", "__main__", "words", "__pycache__", *commands}


def test_no_drawer_for_odds_and_ends():
    assert not [p for p in SOURCE.rglob("*.py") if p.stem in {"utils", "base", "helpers", "common", "misc"}]


def test_parts_are_short():
    """One idea a file: what does not fit on a page is two ideas."""
    long = {p.name: n for p in (SOURCE / "parts").glob("*.py") if (n := len(p.read_text().splitlines())) > 150}
    assert not long
