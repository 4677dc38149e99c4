"""Data sets by name: readers of the official files, with the constants that papers normalise by."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.data import cifar, hub, idx, image_folder, medmnist, shakespeare, svhn
from steppe.data.dataset import Data, from_arrays
from steppe.data.files import find


def _read_digits(folder: Path) -> Data:
    # Pixels are stored as published, 0..16; they are scaled to 0..255.
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        images, labels, test = file["images"], file["labels"].astype(np.int64), file["test"]
    images = ((images.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8)
    train = np.setdiff1d(np.arange(len(labels)), test)
    return from_arrays(images[train], labels[train], images[test], labels[test], name="digits", classes=10)


def _read_shakespeare(name: str, folder: Path | None = None) -> Data:
    path = shakespeare.SLICE
    if folder is not None:
        path = folder.with_suffix(".jsonl.xz")
        path = path if path.is_file() else find(folder, ["shakespeare.jsonl.xz"])
    train, test, names = shakespeare.read(path)
    x, y, test_x, test_y = (torch.from_numpy(np.ascontiguousarray(a)) for a in (*train[:2], *test[:2]))
    return Data(name, x, y, test_x, test_y, None, groups=train.clients, test_groups=test.clients, client_names=names,
                tokens=shakespeare.TOKENS)  # fmt: skip


def _read_image_files(folder: Path, name: str, **constants: Any) -> Data:
    *arrays, names = image_folder.read(folder)
    return from_arrays(*arrays, name=name, class_names=names, **constants)


def _read_medmnist(folder: Path, name: str, classes: int, **options: Any) -> Data:
    path = folder.with_suffix(".npz")
    path = path if path.is_file() else find(folder, [f"{name}.npz"])
    arrays = medmnist.read(path, **options)
    half = (0.5,) * (3 if arrays[0].ndim == 4 else 1)
    return from_arrays(*arrays, name=name, classes=classes, mean=half, std=half)


def _read_svhn(folder: Path, negative: bool = False) -> Data:
    mean, std = (0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614)
    return from_arrays(*svhn.read(folder, negative), name="svhn", classes=10, mean=mean, std=std)


def _make_idx_reader(name: str, mean: float, std: float) -> Callable[[Path], Data]:
    return lambda f: from_arrays(*idx.read(f), name=name, classes=10, mean=(mean,), std=(std,))


def _make_cifar_reader(classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Path], Data]:
    name = f"cifar{classes}"
    return lambda f: from_arrays(*cifar.read(f, classes), name=name, classes=classes, mean=mean, std=std)


_CIFAR10 = (0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)
_CIFAR100 = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
_CINIC10 = {
    "mean": (0.47889522, 0.47227842, 0.43047404),
    "std": (0.24205776, 0.23828046, 0.25874835),
}
_TINY_IMAGENET = {"mean": (0.4802, 0.4481, 0.3975), "std": (0.2770, 0.2691, 0.2821)}

# name -> (reader of folder/<name>, the files expected there)
DATASETS: dict[str, tuple[Callable[..., Data], str]] = {
    "digits": (_read_digits, "8×8 handwritten digits, inside the package"),
    "shakespeare": (
        lambda f: _read_shakespeare("shakespeare"),
        "predict the next character of speeches; 30 roles, one client per role, inside the package",
    ),
    "shakespeare-full": (
        lambda f: _read_shakespeare("shakespeare-full", f),
        "shakespeare.jsonl.xz: one speech per line, with play, role and text",
    ),
    "mnist": (_make_idx_reader("mnist", 0.1307, 0.3081), "train-images-idx3-ubyte and its three companions, or .gz"),
    "fashion-mnist": (_make_idx_reader("fashion-mnist", 0.2860, 0.3530), "the same four file names as mnist"),
    "cifar10": (_make_cifar_reader(10, *_CIFAR10), "data_batch_1.bin … test_batch.bin, or the Python version"),
    "cifar100": (_make_cifar_reader(100, *_CIFAR100), "train.bin and test.bin, or the Python version"),
    "svhn": (_read_svhn, "train_32x32.mat and test_32x32.mat"),
    "cinic10": (lambda f: _read_image_files(f, "cinic10", **_CINIC10), "train/<class>/*.png, test/<class>/*.png"),
    "tiny-imagenet": (
        lambda f: _read_image_files(f, "tiny-imagenet", **_TINY_IMAGENET),
        "train/<class>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt",
    ),
    "pathmnist": (lambda f, **o: _read_medmnist(f, "pathmnist", 9, **o), "pathmnist.npz"),
    "tissuemnist": (lambda f, **o: _read_medmnist(f, "tissuemnist", 8, **o), "tissuemnist.npz"),
    "pneumoniamnist": (lambda f, **o: _read_medmnist(f, "pneumoniamnist", 2, **o), "pneumoniamnist.npz"),
}
EMBEDDED = {"digits", "shakespeare"}  # inside the package


def load(name: str, folder: str | Path | None = None, **options: Any) -> Data:
    """Load a data set by name from folder/<name>; the default folder is $STEPPE_DATA, or ./data.

    In addition to the names in DATASETS: `hub:<name>`, `folder:<path of train/ and test/>`, and the path of an .npz
    file in MedMNIST's format. Options are passed to the reader: `load("svhn", negative=True)`.
    """
    if name.startswith("hub:"):
        *arrays, names = hub.read(name.removeprefix("hub:"))
        return from_arrays(*arrays, name=name, class_names=names or None)
    if name.startswith("folder:"):
        return _read_image_files(Path(name.removeprefix("folder:")), name)
    if name.endswith(".npz"):
        if not Path(name).is_file():
            raise SteppeError(f"The file {name} does not exist; give the path of a MedMNIST .npz file.")
        return from_arrays(*medmnist.read(Path(name), **options), name=Path(name).stem)
    if name.endswith((".csv", ".tsv", ".parquet")):
        raise SteppeError(f"{name} is a table, whose target must be named: in Python, read it with pandas and call "
                          "steppe.from_dataset(train, test, target=…), or write its arrays to an .npz "
                          "file.")  # fmt: skip
    if name not in DATASETS:
        forms = [*DATASETS, "hub:<name>", "folder:<path>", "<file>.npz"]
        raise SteppeError(f"The data set {quote(name)} is unknown{suggest_name(name, forms)}")
    reader, place = DATASETS[name][0], _find_place(name, folder)
    try:
        return reader(place, **options)
    except TypeError as error:
        if options:
            raise SteppeError(f"The data set {name} does not take {', '.join(options)} ({error}).") from error
        raise


def check_files(name: str, folder: str | Path | None = None) -> None:
    """Refuse a data set of this table whose files are missing or damaged; of images in folders, none is opened."""
    if not (_find_place(name, folder) / "train").is_dir():
        load(name, folder)


def _find_place(name: str, folder: str | Path | None) -> Path:
    """Return where the files of a data set of this table are."""
    files = DATASETS[name][1]
    place = Path(folder if folder is not None else os.environ.get("STEPPE_DATA", "data")) / name
    files_there = place.is_dir() or any(place.with_suffix(end).is_file() for end in (".npz", ".jsonl.xz"))
    if name not in EMBEDDED and not files_there:
        raise SteppeError(
            f"The data set {name} is expected in {place}, which does not exist. Put these official files "
            f"there: {files}; or point STEPPE_DATA at the folder that holds {name}/."
        )
    return place
