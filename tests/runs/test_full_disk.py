"""A disk that is full at any moment of a run: a sentence, and a resume to the bit."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from steppe import RunFailed
from steppe.runs import checkpoint
from tests.scene import launch, remains

PLACES = {"pwrite": os, "fsync": os, "save_file": checkpoint, "write_text": Path}


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("call", PLACES)
def test_a_full_disk_is_a_sentence_and_the_run_resumes(
    call: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "pwrite" and store == "memory":
        pytest.skip("states in memory are not written to a file of their own")
    whole = launch(tmp_path / "whole", store=store)
    with monkeypatch.context() as patch:
        calls = 0
        plain = getattr(PLACES[call], call)

        def full(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 8:  # the start needs a few; afterwards every write fails
                raise OSError(errno.ENOSPC, "No space left on device")
            return plain(*args, **kwargs)

        patch.setattr(PLACES[call], call, full)
        with pytest.raises(RunFailed, match=r"The disk is full .* then resume"):
            launch(tmp_path / "cut", store=store)
    cut = launch(tmp_path / "cut", resume=True, store=store)
    assert remains(tmp_path / "whole", whole) == remains(tmp_path / "cut", cut)
