"""SVHN in its cropped-digits format: MATLAB files with X (32, 32, 3, n) and y, where 10 means zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steppe.core.errors import SteppeError, make_missing_error, quote
from steppe.data.files import as_labels, find


def read(folder: Path, negative: bool = False) -> tuple[np.ndarray, ...]:
    """Read train images, train labels, test images and test labels.

    `negative=True` returns (256 − v) mod 256 for each pixel, for reproduction: FedSoL's released code turns SVHN into
    its photographic negative, because it converts floats of 0..255 as if they were 0..1.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise make_missing_error("Reading SVHN's .mat files needs scipy", "mat") from error
    arrays: list[np.ndarray] = []
    for part in ("train", "test"):
        path = find(folder, [f"{part}_32x32.mat"])
        try:
            content = loadmat(path, variable_names=["X", "y"])
            images, labels = content["X"], as_labels(content["y"].reshape(-1), str(path))
        except SteppeError:
            raise
        except Exception as error:  # scipy raises many types for a damaged file
            raise SteppeError(f"{path} is truncated or not SVHN ({quote(str(error))}); download it again.") from error
        if len(labels) and not 0 <= labels.min() <= labels.max() <= 10:
            raise SteppeError(f"{path} has labels from {labels.min()} to {labels.max()}, but SVHN's are 1 to 10.")
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
            raise SteppeError(f"{path} holds images of shape {images.shape} for {len(labels)} labels.")
        images = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
        arrays += [np.negative(images) if negative else images, labels % 10]
    return tuple(arrays)
