"""Refuse paths that are not ordinary files: reading a pipe or a device may never end."""

from __future__ import annotations

from pathlib import Path


def check_ordinary(path: Path) -> Path:
    """Return the path; raise an OSError for a pipe or a device. A missing file and a folder are left to the reader."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError("it is a pipe or a device, not an ordinary file")
    return path
