"""The table in docs/reliability.md is that of the campaigns' figures, and the tests that it names exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def _campaigns() -> Any:
    spec = importlib.util.spec_from_file_location("campaigns", ROOT / "tools" / "campaigns.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_agrees_with_the_figures(monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    campaigns = _campaigns()
    results = json.loads((ROOT / "tools" / "results" / "reliability.json").read_text())
    assert set(results) == set(campaigns.CAMPAIGNS)
    assert campaigns.BEGIN + campaigns.render(results) + campaigns.END in PAGE
    for name, told in results.items():
        assert (told["survived"] == told["tried"]) == (not told["findings"]), name


def test_every_test_that_the_page_names_exists() -> None:
    rows = [line for line in PAGE.partition("## From finding to test")[2].splitlines() if "`" in line]
    assert len(rows) >= 15
    for row in rows:
        file = ""
        for name in re.findall(r"`([^`]*test_\w+(?:\.py::\w+)?)`", row.rpartition(" | ")[2]):
            path, _, function = name.rpartition("::")
            file = path or file
            assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.M), name
