"""A folder of images: train/<class>/*.png and test/<class>/*.png (CINIC-10), or Tiny-ImageNet's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steppe.core.errors import SteppeError, quote

_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


def stack(sources: list[Any], open_image: Callable[[Any], Any]) -> np.ndarray:
    """Stack images of one size into a uint8 array (n, h, w[, 3]); it is grey only if every image is grey."""
    grey = all(open_image(source).mode in ("1", "L") for source in sources)
    result: np.ndarray | None = None
    for i, source in enumerate(sources):
        image = np.asarray(open_image(source).convert("L" if grey else "RGB"))
        if result is None:
            result = np.empty((len(sources), *image.shape), np.uint8)
        elif image.shape != result.shape[1:]:
            raise SteppeError(
                f"Image {source} has size {image.shape[:2]}, but the first one has {result.shape[1:3]}; "
                "resize all images to one size."
            )
        result[i] = image
    assert result is not None
    return result


def _load(files: list[Path]) -> np.ndarray:
    from PIL import Image

    def open_image(path: Path) -> Image.Image:
        try:
            with Image.open(path) as image:
                image.load()
                return image
        except Exception as error:  # decoders raise many types for a damaged file
            raise SteppeError(f"{path} is truncated or not an image ({quote(str(error))}); replace it.") from error

    return stack(files, open_image)


def _list_images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _ENDINGS)


def _list_by_class(folder: Path) -> list[tuple[Path, str]]:
    """Return every image in folder/<class>, or folder/<class>/images, with its class."""
    pairs = []
    for place in sorted(place for place in folder.iterdir() if place.is_dir()):
        inner = place / "images"
        pairs += [(file, place.name) for file in _list_images(inner if inner.is_dir() else place)]
    return pairs


def _list_annotated(folder: Path) -> list[tuple[Path, str]]:
    """Return Tiny-ImageNet's validation images with their classes; each line has a file, a class and a box."""
    path = folder / "val_annotations.txt"
    words = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if odd := next((line for line in words if len(line) < 2 or len(line[0]) > 255 or {*"/\0"} & {*line[0]}), None):
        raise SteppeError(f"{path} has the line {quote(' '.join(odd))}, but each must begin with a file and a class.")
    return [(folder / "images" / line[0], line[1]) for line in words]


def load_by_class(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Load every image in folder/<class>, and the class of each."""
    pairs = _list_by_class(folder)
    if not pairs:
        raise SteppeError(f"No image was found in {folder}/<class>/; known endings: {sorted(_ENDINGS)}.")
    return _load([file for file, _ in pairs]), [name for _, name in pairs]


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Read train images and labels, test images and labels, class names; classes are numbered in sorted order."""
    test = next((folder / name for name in ("test", "val", "valid") if _has_classes(folder / name)), None)
    if not (folder / "train").is_dir() or test is None:
        raise SteppeError(
            f"Images are expected in {folder}/train/<class>/ and {folder}/test/<class>/ "
            "(or, for Tiny-ImageNet, train/<class>/images/ and val/val_annotations.txt)."
        )
    train_pairs = _list_by_class(folder / "train")
    test_pairs = _list_annotated(test) if (test / "val_annotations.txt").is_file() else _list_by_class(test)
    names = tuple(sorted({name for _, name in train_pairs}))
    if not train_pairs or not test_pairs:
        raise SteppeError(f"No image was found in {folder}/train or in {test}; known endings: {sorted(_ENDINGS)}.")
    if unknown := {name for _, name in test_pairs} - set(names):
        raise SteppeError(f"{test} has the class {min(unknown)!r}, which {folder}/train does not have.")
    number = {name: i for i, name in enumerate(names)}
    arrays = []
    for pairs in (train_pairs, test_pairs):
        arrays += [_load([file for file, _ in pairs]), np.array([number[name] for _, name in pairs])]
    return arrays[0], arrays[1], arrays[2], arrays[3], names


def _has_classes(folder: Path) -> bool:
    """Return whether the folder has labelled images; Tiny-ImageNet's own test folder does not."""
    if (folder / "val_annotations.txt").is_file():
        return True
    return folder.is_dir() and any(place.is_dir() and place.name != "images" for place in folder.iterdir())
