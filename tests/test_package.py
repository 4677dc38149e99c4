"""The package as an index would serve it: what is in the wheel, what its page shows, what it claims."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from steppe.reproduce.rows import find_ours

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(out.glob("*.whl")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))))


def test_the_wheel_has_types_data_templates_and_our_rows(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"steppe/py.typed", "steppe/data/digits.npz", "steppe/report/page.css"} <= names
    for folder in ("report/javascript", "report/templates", "reproduce/templates", "flower/templates"):
        assert any(name.startswith(f"steppe/{folder}/") for name in names)
    rows = {path.name: path.read_bytes() for path in (ROOT / "results").glob("*.jsonl")}
    assert len(rows) >= 7
    for name, content in rows.items():
        assert wheel.read(f"steppe/reproduce/results/{name}") == content
    assert find_ours() == ROOT / "results"  # in a clone, those of the repository


def test_the_readme_has_only_links_that_work_elsewhere(metadata: Message) -> None:
    text = metadata.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}
    for link in links:
        assert link.startswith("https://") or link.removeprefix("#") in headings, link
    home = PROJECT["urls"]["Source"]
    ours = [link for link in links if link.startswith(home)]
    assert len(ours) > 5
    for link in ours:  # and each is a file of the repository
        path = link.removeprefix(home).removeprefix("/raw/main/").removeprefix("/blob/main/").partition("#")[0]
        assert (ROOT / path).exists(), link
    markdown = pytest.importorskip("readme_renderer.markdown")
    page = markdown.render(text)
    if page is None:
        pytest.skip("readme_renderer is installed without its extra md")
    assert page.count("<img") == text.count("![")
    assert "<table" in page


def test_urls_and_classifiers(metadata: Message) -> None:
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(urls)
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    claimed = {c.rpartition(" ")[2] for c in classifiers if c.startswith("Programming Language :: Python :: 3.")}
    record = json.loads((ROOT / "tools" / "results" / "pythons.json").read_text())
    tested = {version for version, r in record.items() if r["passed"] >= 500 and not r["failed"]}
    oldest = metadata["Requires-Python"].removeprefix(">=")  # runs the whole suite, in `make test-all`
    assert claimed == tested | {oldest}
    assert all(r["python"].startswith(f"{version}.") for version, r in record.items())


def test_locks_work_on_windows_too() -> None:
    """No module that only Unix has is imported at the top of a file."""
    unix = {"fcntl", "pwd", "grp", "resource", "termios"}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:  # a function may try it
            if isinstance(node, ast.Import):
                assert not unix & {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in unix, path
    assert any(line.startswith("filelock") for line in PROJECT["dependencies"])


@pytest.mark.slow
def test_the_wheel_knows_our_rows_from_any_folder(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    (tmp_path / "else").mkdir()
    listed = subprocess.run(
        [sys.executable, "-m", "steppe", "reproduce", "list", "--json"],
        cwd=tmp_path / "else", env=os.environ | {"PYTHONPATH": str(tmp_path / "site")}, check=True,
        capture_output=True, text=True)  # fmt: skip
    counts = {table["table"]: table["run"] for table in json.loads(listed.stdout)}
    assert counts["fedsol-table1"] == 48
    assert not list((tmp_path / "else").iterdir())


# Packages whose tests `make setup` leaves skipped, and why.
LEFT_OUT = {
    "timm": "needs torchvision",
    "sklearn": "only the origin of the embedded digits",
    "PIL": "of matplotlib",
}
NAMES = {
    "dp_accounting": "dp-accounting",
    "nbformat": "jupytext",
    "readme_renderer": "readme-renderer",
}  # where import and package differ


def test_only_the_readme_says_how_to_install() -> None:
    """Steppe is on no index, so `pip install steppe` would install something else; other pages name extras."""
    root = ROOT / "docs"
    pages = [*root.rglob("*.md"), *root.rglob("*.py"), *(ROOT / "examples").iterdir(), ROOT / "README.md"]
    texts = {page: page.read_text() for page in pages if "decisions" not in page.parts}
    assert [page for page, text in texts.items() if re.search(r"pip install.*steppe", text)] == []
    named = {name for text in texts.values() for name in re.findall(r"extra `(\w+)`", text)}
    assert {"flower", "optuna"} <= named <= set(PROJECT["optional-dependencies"])
    assert "pip install '.[flower,dp]'" in texts[ROOT / "README.md"]


def test_no_test_is_skipped_for_want_of_a_package() -> None:
    """What tests ask for with `importorskip` is installed before they run."""
    extras = re.search(r"-e '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text())
    assert extras
    installed = " ".join(r for e in extras[1].split(",") for r in PROJECT["optional-dependencies"][e])
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    asked = {name for text in texts for name in re.findall(r'importorskip\(\s*"(\w+)', text)}
    assert {"datasets", "transformers", "peft", "pandas", "optuna"} <= asked
    for name in asked - {*LEFT_OUT, "tools"}:  # tools is a folder of ours
        present = re.search(rf"(^| ){NAMES.get(name, name)}\b", installed)
        assert present, f"{name} is in no extra that make setup installs"
