"""Arrays in an .npz file. What a file claims is compared with what it can hold before anything is allocated."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from steppe.core.atomic_write import write_atomically
from steppe.core.errors import SteppeError, quote
from steppe.core.ordinary_files import check_ordinary

DEFLATE = 1100  # a byte of a zip file becomes at most this many bytes
HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0,
}  # fmt: skip
DAMAGE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, tokenize.TokenError, RecursionError,
          NotImplementedError, RuntimeError, OverflowError, MemoryError)  # fmt: skip


def read_npz(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays with these names, as far as they are there; all arrays if no names are given."""
    try:
        with zipfile.ZipFile(check_ordinary(path)) as file:
            inside = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
            return {name: _read(file, info) for name, info in inside.items() if wanted is None or name in wanted}
    except FileNotFoundError:
        raise SteppeError(f"{path} does not exist.") from None
    except DAMAGE as error:
        raise SteppeError(f"{path} is damaged: it is truncated or not an .npz file ({quote(str(error))}). Download it "
                          "again, or write it again with the program that wrote it.") from error  # fmt: skip


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays as an .npz file, without pickle."""

    def write(aside: Path) -> None:
        with aside.open("wb") as file:  # given a name, numpy would add an ending
            np.savez(file, allow_pickle=False, **arrays)

    write_atomically(path, write)


def _read(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Read one array after a look at its header."""
    with file.open(info) as stream:
        version = npy.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{info.filename} has a header of version {version}")
        shape, _, kind = HEADERS[version](stream)
        size, there = math.prod(shape) * kind.itemsize, info.file_size - stream.tell()
    if kind.hasobject:
        raise ValueError(f"{info.filename} holds objects, not numbers")
    if size != there or min(shape, default=0) < 0 or info.file_size > DEFLATE * (info.compress_size + 1):
        raise ValueError(f"{info.filename} claims {size:,} bytes and has {min(there, DEFLATE * info.compress_size):,}")
    with file.open(info) as stream:
        array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array
