"""A disk that is full at any moment of a run: a sentence, and a resume to the bit."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from steppe import RunFailed
from steppe.runs import checkpoint
from steppe.runs.tensor_files import save_file
from tests.runs.test_resume import KILLS
from tests.runs.tiny_disk import fill, run_until_full, tiny_disk
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "at", "left", "workers"), [("memory", 2, 4, 0), ("disk", 3, 0, 0), ("disk", 5, 0, 0), ("disk", 3, 0, 2)]
)
def test_a_real_disk_that_is_full(store: str, at: int, left: int, workers: int, tmp_path: Path) -> None:
    """Safetensors has an error of its own, which the test above cannot show; at 5, only the end is not yet written.

    The workers' memory-mapped files are on that disk, too, and no process is killed by a signal.
    """
    whole = launch(tmp_path / "whole", store=store)
    try:
        with tiny_disk(tmp_path / "disk") as disk:
            child = KILLS.Process(target=run_until_full, args=(disk, at, left, {"store": store, "workers": workers}))
            child.start()
            child.join(100)
            assert child.exitcode == RunFailed.exit_code
            (disk / "filler").unlink()
            cut = launch(disk / "run", resume=True, store=store, workers=workers)
            assert remains(tmp_path / "whole", whole) == remains(disk / "run", cut)
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_real_disk_without_room_for_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder for temporary files is on a full disk, the run is not."""
    whole = launch(tmp_path / "whole")
    try:
        with tiny_disk(tmp_path / "disk") as disk, monkeypatch.context() as patch:
            fill(disk, 0)
            patch.setattr(tempfile, "tempdir", str(disk))
            with pytest.raises(RunFailed, match=re.escape(f"The disk is full ({disk})")):
                launch(tmp_path / "cut", workers=2)
            assert [p.name for p in disk.iterdir()] == ["filler"]
            (disk / "filler").unlink()
            cut = launch(tmp_path / "cut", resume=True, workers=2)
            assert not list(disk.iterdir())
    except OSError as error:
        pytest.skip(str(error))
    assert remains(tmp_path / "whole", whole) == remains(tmp_path / "cut", cut)


def test_no_room_for_the_workers_file_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RunFailed, match=re.escape(f"The disk is full ({tmp_path})")):
        launch(tmp_path / "run", workers=2)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_safetensors_says_of_other_things_stays(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        save_file({"x": torch.zeros(2)}, tmp_path / "nowhere" / "x")
