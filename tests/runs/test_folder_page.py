"""The description of a run's files is that of the files of real runs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from safetensors import safe_open
from tools.docs.folder_page import FILES, TABLES, Key, read_table

import steppe

KINDS: dict[str, type | UnionType] = {
    "int": int, "float": int | float, "text": str, "bool": bool, "ints": list, "floats": list, "texts": list,
}  # fmt: skip
METRICS = "accuracy|top5"
ROUND = "checkpoints/round-<number>/"
# Keys that only other runs have: of nodes, of secrets, of your own objects, of what went wrong.
ELSEWHERE = {
    "rounds.jsonl": r"samples|nodes\..*|refused\..*|epsilon|delta",
    "result.json": r"notes|refused|nodes\..*|epsilon|delta",
    "about.json": r"sources\..*|model\.(predict|base\..*)|partition\.by",
    "partition.json": "held_out", ROUND + "manifest.json": "", ROUND + "server.safetensors": "buffer/<name>",
    "versions.json": "", "analysis.json": "", ROUND + "clients.safetensors": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with as many features as one run can have."""
    out = tmp_path_factory.mktemp("runs") / "a"
    steppe.run("scaffold", "mlp", rounds=2, clients=6, per_round=5, epochs=1, out=out, metrics="accuracy,top5",
               loss="cross_entropy:ignore_index=-5", validation=0.2, early_stopping=2, measure=["gradient_norm"],
               dropout=0.3, speed="lognormal(0.5)", deadline="1.2x", personal=[0], workers=0,
               progress=False)  # fmt: skip
    steppe.analyze(out, ["gradient_norm", "divergence"], samples=20)
    return out


def read(path: Path) -> list[Any]:
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            return [dict.fromkeys(file.keys())]
    text = path.read_text()
    return [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]


def walk(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; a list of numbers or texts is one value."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from walk(value, f"{path}.{name}" if path else name)
    elif isinstance(content, list) and any(isinstance(one, dict | list) for one in content):
        for one in content:
            yield from walk(one, f"{path}.[]")
    else:
        yield path, content


def describes(key: Key, path: str, value: Any) -> bool:
    names = {"metric": METRICS, "state": r"\w+\.\w+", "file": r"[\w.]+"}
    other = ".+" if key.kind == "any" else "[^/.]+"
    pattern = re.sub(r"<(\w+)>", lambda found: f"({names.get(found[1], other)})", re.escape(key.path))
    fits = value is None or value == {} or key.kind not in KINDS or isinstance(value, KINDS[key.kind])
    return fits and re.fullmatch(pattern, path) is not None


@pytest.mark.parametrize("file", ELSEWHERE)
def test_every_key_is_described_and_every_description_has_a_key(folder: Path, file: str) -> None:
    contents = read(next(folder.glob(file.replace("<number>", "*"))))
    found = [one for content in contents for one in walk(content)]
    table = read_table(TABLES[file])
    assert [path for path, value in found if not any(describes(key, path, value) for key in table)] == []
    unused = {key.path for key in table if not any(describes(key, path, value) for path, value in found)}
    assert {path for path in unused if not re.fullmatch(ELSEWHERE[file], path)} == set()


def test_every_file_is_described(folder: Path) -> None:
    known = [re.sub("<.*?>", "*", name) for names in FILES for name in names.split(", ")]
    for path in folder.iterdir():
        assert any(path.match(name.split("/")[0]) for name in known), path.name
    assert {file.removeprefix(ROUND) for file in TABLES if file.startswith(ROUND)} == {
        path.name for path in next((folder / "checkpoints").iterdir()).iterdir()
    }


def test_the_table_of_rounds_has_the_numbers_of_the_records(folder: Path) -> None:
    with (folder / "rounds.csv").open() as file:
        columns = csv.DictReader(file).fieldnames or []
    assert all(any(describes(key, name, None) for key in read_table(TABLES["rounds.jsonl"]))
               for name in columns)  # fmt: skip
