"""Write a file under a temporary name and rename it, so that it is either complete or absent."""

from __future__ import annotations

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
    finally:
        aside.unlink(missing_ok=True)


def save_figure(figure: Any, path: str | Path, **options: Any) -> None:
    """Save a matplotlib figure in the format of the path's ending, or as PNG."""
    place = Path(path)
    if not place.suffix:
        place = place.with_name(f"{place.name}.png")
    write_atomically(place, lambda aside: figure.savefig(aside, format=place.suffix[1:].lower(), **options))
