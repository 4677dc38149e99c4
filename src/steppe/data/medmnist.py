"""MedMNIST's .npz: images and labels for train, val and test, 28×28, grey or colour."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from steppe.core.errors import SteppeError


def read(path: Path, join: bool = True) -> tuple[np.ndarray, ...]:
    """Read train images, train labels, test images and test labels; `join` adds val to train, as in FedSoL."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise SteppeError(f"{path} is truncated or not an .npz file ({error}); download it again.") from error
    wanted = [f"{part}_{kind}" for part in ("train", "val", "test") for kind in ("images", "labels")]
    if missing := [name for name in wanted if name not in arrays and not name.startswith("val")]:
        raise SteppeError(f"{path} is not in MedMNIST's format: it lacks {', '.join(missing)}.")
    for name in ("train_labels", "val_labels", "test_labels"):
        if name in arrays and arrays[name].size != len(arrays[name]):
            raise SteppeError(f"{path} has several labels per image, but only single-label sets are supported.")
    parts = ["train", "val"] if join and "val_images" in arrays else ["train"]
    images = np.concatenate([arrays[f"{part}_images"] for part in parts])
    labels = np.concatenate([arrays[f"{part}_labels"].reshape(-1) for part in parts])
    return images, labels.astype(np.int64), arrays["test_images"], arrays["test_labels"].reshape(-1)
