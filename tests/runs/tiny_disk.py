"""A real disk of two megabytes that fills up in the middle of a run; only root on Linux can have one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def tiny_disk(where: Path, kilobytes: int = 2048) -> Iterator[Path]:
    """Mount a file system in memory; an OSError if that is not allowed."""
    where.mkdir(exist_ok=True)
    if sys.platform != "linux" or os.getuid() != 0:
        raise OSError("only root on Linux can mount a disk")
    size = f"size={kilobytes}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(where)], capture_output=True).returncode:
        raise OSError("a disk cannot be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path, left: int) -> None:
    """Take all space but some kilobytes."""
    found = os.statvfs(disk)
    with (disk / "filler").open("ab") as file:
        size = found.f_bavail * found.f_frsize - left * 1024
        if size > 0:
            os.posix_fallocate(file.fileno(), file.tell(), size)


def run_until_full(disk: Path, at: int, left: int, options: dict[str, Any]) -> None:
    """Run in a child process; after round `at` the disk is full. The exit code is that of the command line."""
    from steppe.core.errors import SteppeError
    from tests.scene import launch

    tempfile.tempdir = str(disk)  # the workers' file is there, too
    try:
        launch(disk / "run", watch=lambda r: fill(disk, left) if r["round"] == at else None, **options)
    except SteppeError as error:
        os._exit(error.exit_code if "disk" in str(error) else 1)
    os._exit(0)
