"""Image classification data sets of the Hugging Face hub, through the extra `hub`."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.core.errors import SteppeError, make_missing_error
from steppe.data.image_folder import stack


def _find_column(features: dict[str, Any], kind: str, usual: tuple[str, ...], name: str) -> str:
    """Return the column of this feature type, or else the first of the usual names."""
    typed = [key for key, feature in features.items() if type(feature).__name__ == kind]
    named = [key for key in usual if key in features]
    if not typed and not named:
        raise SteppeError(f"hub:{name} has the columns {', '.join(features)}, but none is of type {kind}.")
    return (typed or named)[0]


def _read_images(rows: Any, column: str) -> np.ndarray:
    return stack(list(range(len(rows))), lambda i: rows[i][column])


def read(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Read train images and labels, test images and labels, class names; without a test split, use validation."""
    try:
        import datasets
    except ImportError as error:
        raise make_missing_error("Reading a data set of the hub needs datasets", "hub") from error
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:  # network errors, wrong names and damaged files have many types
        raise SteppeError(f"hub:{name} could not be loaded ({error}); check the name and network.") from error
    test = next((part for part in ("test", "validation", "valid", "val") if part in splits), None)
    if "train" not in splits or test is None:
        raise SteppeError(f"hub:{name} has the splits {', '.join(splits)}; train and test are needed.")
    features = splits["train"].features
    images = _find_column(features, "Image", ("image", "img"), name)
    labels = _find_column(features, "ClassLabel", ("label", "labels", "fine_label"), name)
    arrays = []
    for part in ("train", test):
        rows = splits[part]
        arrays += [_read_images(rows, images), np.asarray(rows[labels], np.int64)]
    names = tuple(getattr(features[labels], "names", None) or ())
    return arrays[0], arrays[1], arrays[2], arrays[3], names
