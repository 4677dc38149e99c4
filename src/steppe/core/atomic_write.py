"""Write a file under a temporary name and rename it, so that it is either complete or absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steppe.core.errors import SteppeError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file next to `path`, and rename it once it is complete."""
    if path.is_dir():
        raise SteppeError(f"{path} is a folder: give a file name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.new")
    try:
        write(aside)
        aside.replace(path)
    except OSError as error:
        if str(error.filename) == str(aside):
            error.filename = str(path)  # the name that the user knows
        raise
    finally:
        aside.unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """Wait until the system has written a file or the entries of a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save_figure(figure: Any, path: str | Path, **options: Any) -> None:
    """Save a matplotlib figure in the format of the path's ending, or as PNG."""
    place = Path(path)
    if not place.suffix:
        place = place.with_name(f"{place.name}.png")
    write_atomically(place, lambda aside: figure.savefig(aside, format=place.suffix[1:].lower(), **options))
