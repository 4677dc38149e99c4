"""The table in docs/reliability.md is that of the campaigns' figures, and the tests that it names exist."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def _tool(name: str, monkeypatch: Any) -> Any:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module(name)


def test_the_page_agrees_with_the_figures(monkeypatch: Any) -> None:
    campaigns = _tool("campaigns", monkeypatch)
    results = json.loads((ROOT / "tools" / "results" / "reliability.json").read_text())
    assert set(results) == set(campaigns.CAMPAIGNS)
    assert campaigns.BEGIN + campaigns.render(results) + campaigns.END in PAGE
    for name, told in results.items():
        assert (told["survived"] == told["tried"]) == (not told["findings"]), name


def test_every_finding_has_a_test_that_was_seen_to_fail(monkeypatch: Any) -> None:
    findings = _tool("findings", monkeypatch)
    results = json.loads((ROOT / "tools" / "results" / "findings.json").read_text())
    assert findings.BEGIN + findings.render(results) + findings.END in PAGE
    assert {finding.section for finding in findings.UNDO} == {1, 2, 3, 4}
    assert set(results) == {finding.key for finding in findings.UNDO}
    for finding in findings.UNDO:
        assert results[finding.key]["outcome"] == "fails", finding.key
        for file, before, _ in finding.undo:
            assert (ROOT / "src" / "steppe" / file).read_text().count(before) == 1, (finding.key, before)
        for name in finding.tests:
            path, _, function = name.partition("::")
            assert re.search(rf"^def {function}", (ROOT / path).read_text(), re.M), name
