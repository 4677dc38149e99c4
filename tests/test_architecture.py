"""Imports go in one direction, that of the data; no two files share a name."""

import ast
import sys
from collections import Counter
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "steppe"
# Packages in the order in which data flow through them: each may import itself and those before it.
ROOMS = ["core", "settings", "references", "parts", "algorithms", "registry", "citations", "presets", "config",
         "read_config", "models", "data", "experiment", "runs", "distributed", "executors", "evaluate",
         "flatness", "measures", "engine", "analysis", "jobs", "report", "flower", "reproduce", "optim",
         "embed", "api", "lab", "testing", "cli"]  # fmt: skip
# Packages that may import fewer than all those before them.
ONLY = {
    "core": [],
    "parts": ["core"],
    "algorithms": ["core", "parts"],
    "models": ["core"],
    "data": ["core", "settings"],
    "executors": ["core", "data"],
    "distributed": ["core", "runs"],
    "evaluate": ["core", "data", "parts", "experiment", "runs", "executors"],
    "flatness": ["core", "data", "evaluate", "parts"],
    "report": [
        "core",
        "references",
        "parts",
        "algorithms",
        "registry",
        "settings",
        "presets",
        "config",
        "models",
        "data",
        "runs",
        "flatness",
        "measures",
        "jobs",
    ],
}
OUTSIDE = {"core": {"torch"}, "parts": {"torch"}}  # and the standard library


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} has a relative import, which is not checked"
            if node.module == "steppe":
                yield from (f"steppe.{alias.name}" for alias in node.names)
            else:
                yield node.module


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [p for p in SOURCE.rglob("*.py") if room_of(p) in ROOMS]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_backwards(path):
    mine = room_of(path)
    allowed = {mine, "__version__", *ONLY.get(mine, ROOMS[: ROOMS.index(mine)])}
    for module in imports(path):
        top, *rest = module.split(".")
        if top == "steppe":
            assert not rest or rest[0] in allowed, f"{path.name} of {mine} imports {module}"
        elif mine in OUTSIDE:
            assert top in OUTSIDE[mine] | set(sys.stdlib_module_names), f"{path.name} of {mine} imports {module}"


def test_every_package_has_its_place():
    rooms = {p.name.removesuffix(".py") for p in SOURCE.iterdir() if p.suffix == ".py" or any(p.glob("*.py"))}
    assert rooms - {"__init__", "__main__"} == set(ROOMS)


def test_no_two_files_share_a_name():
    names = Counter(p.stem for p in SOURCE.rglob("*.py") if p.stem != "__init__")
    # A command has the name of what it calls.
    commands = {p.stem for p in (SOURCE / "cli").glob("*.py")}
    assert {name for name, count in names.items() if count > 1 + (name in commands)} == set()


def test_names_say_what_is_in_a_file():
    empty = {"utils", "base", "helpers", "common", "misc"}
    riddles = {"words", "story", "evidence", "charter", "turnout", "witness", "numbers", "told",
               "twin", "parcel", "shown", "keeper", "drawn"}  # fmt: skip
    assert not [p for p in SOURCE.rglob("*.py") if p.stem in empty | riddles]


def test_parts_are_short():
    """One idea per file."""
    long = {p.name: n for p in (SOURCE / "parts").glob("*.py") if (n := len(p.read_text().splitlines())) > 150}
    assert not long


def imports_at_once(path):
    """Yield what importing a module imports: nothing in functions or for type checkers."""
    waiting = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif not isinstance(node, ast.FunctionDef) and "TYPE_CHECKING" not in ast.unparse(getattr(node, "test", node)):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def test_every_module_can_be_imported_first():
    """No circle of imports: which module comes first does not matter."""
    files = {p: ".".join(p.relative_to(SOURCE.parent).with_suffix("").parts) for p in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in files.values()}
    needs = {name.removesuffix(".__init__"): {m for full in imports_at_once(p) for m in (full, full.rpartition(".")[0])
                                              if m in modules and (m == full or full not in modules)}
             for p, name in files.items()}  # fmt: skip
    TopologicalSorter(needs).prepare()  # raises if there is a circle


@pytest.mark.parametrize("command", sorted(p.stem for p in (SOURCE / "cli").glob("*.py") if p.stem != "__init__"))
def test_every_command_can_be_imported_first(command, monkeypatch):
    """The program imports its commands by name, which the test above does not see."""
    for name in [name for name in sys.modules if name.startswith("steppe.cli")]:
        monkeypatch.delitem(sys.modules, name)
    import_module(f"steppe.cli.{command}")
    for name in [name for name in sys.modules if name.startswith("steppe.cli")]:
        monkeypatch.delitem(sys.modules, name)
