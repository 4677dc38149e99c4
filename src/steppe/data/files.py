"""Find and read the files of a data set, with errors that name the file."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from steppe.core.errors import SteppeError, quote
from steppe.core.ordinary_files import check_ordinary


def find(folder: Path, names: list[str], inside: tuple[str, ...] = ()) -> Path:
    """Return the first of the names that exists in the folder or in one of its official subfolders."""
    for place in (folder, *(folder / sub for sub in inside)):
        for name in names:
            if (place / name).is_file():
                return place / name
    state = "is empty" if folder.is_dir() and not any(folder.iterdir()) else "does not contain it"
    raise SteppeError(
        f"The file {' or '.join(names)} is expected in {folder}, which "
        + (f"{state}; put the official file there." if folder.is_dir() else "does not exist; create it.")
    )


def read_bytes(path: Path) -> bytes:
    """Read a plain or gzip-compressed file."""
    try:
        data = check_ordinary(path).read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise SteppeError(f"{path} cannot be read ({error}); download it again.") from error


def as_labels(values: Any, what: str) -> np.ndarray:
    """Return class labels as int64; refuse anything but one whole number per sample."""
    try:
        labels = np.asarray(values)
        with np.errstate(invalid="ignore"):
            whole = labels.astype(np.int64) if labels.dtype.kind in "uif" and labels.ndim == 1 else None
    except (ValueError, TypeError, OverflowError) as error:
        raise SteppeError(f"{what}: these are not labels ({quote(str(error))}); use the official file.") from error
    if whole is None or not np.array_equal(whole, labels):
        raise SteppeError(f"{what}: labels must be one whole number per sample; use the official file.")
    return whole
