"""Files that are complete or not there: written under another name, then renamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file next to `path`, and give it that name once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.new")
    try:
        write(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
