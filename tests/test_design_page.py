"""The hops in docs/explanation/design.md exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOP = re.compile(r"([a-z_]+(?:/[a-z_]+)*\.py):([a-z_]+(?:, [a-z_]+)*)")
HOPS = sorted({(file, name) for file, names in HOP.findall((ROOT / "docs/explanation/design.md").read_text())
               for name in names.split(", ")})  # fmt: skip


@pytest.mark.parametrize(("file", "name"), HOPS)
def test_a_hop_is_a_function_of_its_file(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "src" / "steppe" / file).read_text())
    assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_hops() -> None:
    assert len(HOPS) > 40
