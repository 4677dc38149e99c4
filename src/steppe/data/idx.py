"""IDX, the format of MNIST and Fashion-MNIST: two zero bytes, a type, the number of axes, the sizes, the values."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from steppe.core.errors import SteppeError
from steppe.data.files import find, read_bytes

_UNSIGNED_BYTE = 8


def read_array(path: Path) -> np.ndarray:
    """Read one IDX file of unsigned bytes, plain or .gz."""
    data = read_bytes(path)
    if len(data) < 4 or data[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise SteppeError(f"{path} is not an IDX file of bytes (wrong first bytes); download it again.")
    dimensions = data[3]
    if dimensions not in (1, 3):
        raise SteppeError(f"{path} has {dimensions} axes, but labels have one and images three; download it again.")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise SteppeError(f"{path} is truncated inside its header; download it again.")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise SteppeError(
            f"{path} holds {len(data) - start} bytes, but its header says {math.prod(shape)}; "
            "it is truncated or damaged, so download it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def read(folder: Path) -> tuple[np.ndarray, ...]:
    """Read train images, train labels, test images and test labels, by their official file names."""
    arrays = []
    for part in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            # Some mirrors write a dot where the official name has its second hyphen.
            stems = [f"{part}-{kind}", f"{part}-{kind.replace('-idx', '.idx')}"]
            names = [stem + end for stem in stems for end in ("", ".gz")]
            path = find(folder, names, inside=("raw", "MNIST/raw", "FashionMNIST/raw"))
            arrays.append(read_array(path))
            if arrays[-1].ndim != int(kind[-7]):
                raise SteppeError(f"{path} has {arrays[-1].ndim} axes; are images and labels swapped?")
    return tuple(arrays)
