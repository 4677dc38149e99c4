"""The command line as a user meets it: words in, an exit code and two streams of text out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from steppe.cli.app import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


Steppe = Callable[..., Said]


@pytest.fixture
def steppe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Steppe:
    """Run a command in an empty folder. Anything but an exit is a traceback, and fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPPE_DATA", raising=False)

    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["steppe", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
