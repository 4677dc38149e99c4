"""A folder with what pages assume that their reader has, and the command line in it."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import steppe  # noqa: F401
from tests.docs import newcomer
from tests.docs.code_blocks import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a clone's examples, an idea in a file, a configuration and a partition."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(newcomer.__file__, tmp_path / "look_back.py")
    for name, text in newcomer.FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("STEPPE_DATA", raising=False)
    return tmp_path
