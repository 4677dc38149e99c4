"""MedMNIST's .npz: images and labels for train, val and test, 28×28, grey or colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steppe.core.errors import SteppeError
from steppe.data.files import as_labels
from steppe.data.npz import read_npz


def read(path: Path, join: bool = True) -> tuple[np.ndarray, ...]:
    """Read train images, train labels, test images and test labels; `join` adds val to train, as in FedSoL."""
    wanted = [f"{part}_{kind}" for part in ("train", "val", "test") for kind in ("images", "labels")]
    arrays = read_npz(path, wanted)
    if missing := [name for name in wanted if name not in arrays and not name.startswith("val")]:
        raise SteppeError(f"{path} is not in MedMNIST's format: it lacks {', '.join(missing)}.")
    for part in ("train", "val", "test"):
        images, labels = arrays.get(f"{part}_images"), arrays.get(f"{part}_labels")
        if (images is None) != (labels is None):
            raise SteppeError(f"{path} has images or labels of {part}, but not both.")
        if images is None or labels is None:
            continue
        if images.ndim < 2 or images.shape[1:] != arrays["train_images"].shape[1:] or images.dtype.kind not in "uif":
            raise SteppeError(f"{path} has {part}_images of shape {images.shape} and type {images.dtype}, which "
                              "are not images of one size.")  # fmt: skip
        if labels.ndim == 0 or labels.size != len(labels):
            raise SteppeError(f"{path} has several labels per image, but only single-label sets are supported.")
        arrays[f"{part}_labels"] = as_labels(labels.reshape(-1), f"{path}, {part}_labels")
    parts = ["train", "val"] if join and "val_images" in arrays else ["train"]
    images, labels = (np.concatenate([arrays[f"{part}_{kind}"] for part in parts]) for kind in ("images", "labels"))
    return images, labels, arrays["test_images"], arrays["test_labels"]
