"""What README.md shows newcomers: Python in 15 lines, and figures that are those of files. Commands: tests/docs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from tools.evidence_table import renew_table

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_your_own_idea(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(from dataclasses.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) == 15
    assert "seeds=3, rounds=30" in code
    script = tmp_path / "idea.py"
    script.write_text(code.replace("seeds=3, rounds=30", "rounds=1, max_steps=1, model='mlp', workers=0"))
    runpy.run_path(str(script))
    table = capsys.readouterr().out
    assert [name for name in ("fedavg", "fedsam", "look_back", "fedsmoo+ema") if f"\n{name}" in f"\n{table}"] == [
        "fedavg", "fedsam", "look_back", "fedsmoo+ema"]  # fmt: skip


def test_the_evidence_is_that_of_the_files() -> None:
    assert renew_table(README) == README, "python -m tools.evidence_table"


def test_it_is_one_screen() -> None:
    """The long lists are on the site."""
    assert len(README.splitlines()) < 100
