"""CIFAR-10 and CIFAR-100, in the binary version and in the Python version.

The Python version is a pickle, and a pickle can run any program. The unpickler here can build only numeric arrays,
strings and containers.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from steppe.core.errors import SteppeError, quote
from steppe.data.files import as_labels, find, read_bytes

_PIXELS = 3 * 32 * 32


def _make_dtype(code: str, *flags: bool) -> np.dtype:
    dtype = np.dtype(code, *flags)
    if dtype.kind not in "buif":
        raise pickle.UnpicklingError(f"an array of {dtype} is not allowed")
    return dtype


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding} is not allowed")
    return text.encode("latin1")


_numpys: Any = np.empty(0).__reduce__()[0]  # numpy's own, wherever this version of numpy keeps it


def _reconstruct(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """Make the empty array that is filled later; numpy itself writes no other shape."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError(f"an array of {kind} begins with shape {shape}")
    made: np.ndarray = _numpys(kind, shape, code)
    return made


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _make_dtype,
    ("_codecs", "encode"): _encode_latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def _check_claims(raw: bytes) -> None:
    """Walk through the program without running it: no piece and no place may lie beyond the end of the file."""
    for operation, argument, _ in pickletools.genops(raw):
        if operation.name.endswith("PUT") and (argument or 0) > len(raw):
            raise ValueError("it asks for more places than it has bytes")


def unpickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a Python-version batch; refuse anything but arrays and strings."""
    raw = read_bytes(path)
    try:
        _check_claims(raw)
        content = _ArrayUnpickler(io.BytesIO(raw), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise SteppeError(f"{path} is not a safe CIFAR batch ({error}); use the official file.") from error
    except Exception as error:  # the opcodes of a damaged file may lead anywhere
        raise SteppeError(f"{path} is truncated or damaged ({quote(str(error))}); download it again.") from error
    if not isinstance(content, dict):
        raise SteppeError(f"{path} is not a CIFAR batch (no dictionary inside); use the official file.")
    # In files written by Python 2 the keys are text under latin1; in files rewritten by Python 3 they may be bytes.
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _read_python_batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    content = unpickle(path)
    if missing := {"data", label_key} - content.keys():
        raise SteppeError(f"{path} lacks {', '.join(sorted(missing))}; use the official Python version.")
    pixels, labels = content["data"], as_labels(content[label_key], str(path))
    if not isinstance(pixels, np.ndarray):
        raise SteppeError(f"{path} holds no array of pixels; use the official file.")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
        raise SteppeError(f"{path} holds pixels of shape {pixels.shape} for {len(labels)} labels.")
    return pixels, labels


def _read_binary_batch(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(read_bytes(path), np.uint8)
    record = label_bytes + _PIXELS
    if len(data) == 0 or len(data) % record:
        raise SteppeError(f"{path} is not a whole number of {record}-byte images; download it again.")
    data = data.reshape(-1, record)
    return data[:, label_bytes:], data[:, label_bytes - 1].astype(np.int64)  # the fine label is the last


def read(folder: Path, classes: int) -> tuple[np.ndarray, ...]:
    """Read train images, train labels, test images and test labels of CIFAR-10 or CIFAR-100 (fine labels)."""
    inside = tuple(f"cifar-{classes}-{end}" for end in ("batches-bin", "binary", "batches-py", "python"))
    train = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    test = ["test_batch"] if classes == 10 else ["test"]
    arrays: list[np.ndarray] = []
    for names in (train, test):
        batches = []
        for name in names:
            path = find(folder, [f"{name}.bin", name], inside)
            if path.suffix == ".bin":
                batches.append(_read_binary_batch(path, 1 if classes == 10 else 2))
            else:
                batches.append(_read_python_batch(path, "labels" if classes == 10 else "fine_labels"))
        pixels, labels = (np.concatenate(column) for column in zip(*batches, strict=True))
        arrays += [pixels.reshape(-1, 3, 32, 32), labels]
    return tuple(arrays)
