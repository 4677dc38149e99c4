"""Every damaged file of a data set is data or a SteppeError that says so, and a claim of a header costs no memory."""

from __future__ import annotations

import gzip
import os
import pickle
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from steppe.core.errors import SteppeError
from steppe.data import Partition, load
from steppe.data.npz import read_npz
from steppe.flower.federation_file import Sample
from steppe.flower.node_data import read_data
from tests.fuzz.damage import ANY_BYTES, Damage
from tests.fuzz.inputs import fuzz, is_sentence, within

RNG = np.random.default_rng(0)
PARTS = ("train", "test")


def _mnist(folder: Path) -> None:
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", RNG.integers(0, 256, (10, 4, 4), np.uint8)),
                            ("labels-idx1", np.arange(10, dtype=np.uint8))):  # fmt: skip
            raw = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(raw)) if part == "train" else (
                folder / f"{part}-{kind}-ubyte"
            ).write_bytes(raw)


def _cifar(folder: Path) -> None:
    content = {"data": RNG.integers(0, 256, (4, 3072), np.uint8), "fine_labels": [0, 1, 2, 3], "batch_label": "few"}
    for part in PARTS:
        (folder / part).write_bytes(pickle.dumps(content, protocol=2 if part == "train" else 4))


def _cifar_binary(folder: Path) -> None:
    for part in PARTS:
        (folder / f"{part}.bin").write_bytes(RNG.integers(0, 100, (4, 3074), np.uint8).tobytes())


def _svhn(folder: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    for part in PARTS:
        content = {"X": RNG.integers(0, 256, (32, 32, 3, 3), np.uint8), "y": np.arange(1, 4)[:, None]}
        savemat(folder / f"{part}_32x32.mat", content, do_compression=part == "train")


def _medmnist(folder: Path, compressed: bool = False) -> None:
    arrays = {f"{part}_images": RNG.integers(0, 256, (6, 5, 5), np.uint8) for part in PARTS}
    (np.savez_compressed if compressed else np.savez)(
        folder / "pneumoniamnist.npz", **arrays, **{f"{part}_labels": np.arange(6)[:, None] % 2 for part in PARTS}
    )


def _images(folder: Path) -> None:
    for part in PARTS:
        for name, ending in (("cat", "png"), ("dog", "jpg")):
            (folder / part / name).mkdir(parents=True)
            Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / part / name / f"a.{ending}")


def _annotated(folder: Path) -> None:
    (folder / "train/cat/images").mkdir(parents=True)
    (folder / "val/images").mkdir(parents=True)
    for path in (folder / "train/cat/images/a.png", folder / "val/images/b.png"):
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    (folder / "val/val_annotations.txt").write_text("b.png\tcat\t0\t0\t62\t62\n")


SETS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "idx": ("mnist", _mnist),
    "cifar, python": ("cifar100", _cifar),
    "cifar, binary": ("cifar100", _cifar_binary),
    "mat": ("svhn", _svhn),
    "npz": ("pneumoniamnist", _medmnist),
    "npz, compressed": ("pneumoniamnist", partial(_medmnist, compressed=True)),
    "images": ("cinic10", _images),
    "annotated images": ("tiny-imagenet", _annotated),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every data set, undamaged."""
    home = tmp_path_factory.mktemp("whole")
    for kind, (name, write) in SETS.items():
        (home / kind / name).mkdir(parents=True)
        write(home / kind / name)
        assert len(load(name, home / kind).train_targets)
    return home


@contextmanager
def no_larger_than(megabytes: int) -> Iterator[None]:
    """Fail if the process's peak grows by more; on Linux it is counted in kilobytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes * 1024


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a decoder may warn about what it then reads
@pytest.mark.parametrize("kind", SETS)
@fuzz(0.5)
@given(which=st.integers(0, 20), damage=ANY_BYTES)
def test_any_damaged_data_set(kind: str, which: int, damage: Damage, whole: Path, tmp_path_factory: Any) -> None:
    name, _ = SETS[kind]
    files = sorted(p.relative_to(whole) for p in (whole / kind).rglob("*") if p.is_file())
    hurt = files[which % len(files)]
    home = tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(whole / kind, home / kind)
    (home / hurt).write_bytes(damage((whole / hurt).read_bytes()))
    try:
        with within(20), no_larger_than(300):
            load(name, home / kind)
    except SteppeError as error:
        is_sentence(error)


def test_an_npz_that_claims_64_gib_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    """By its array's header; by the zip's own directory; and by both together, which no file this small can hold."""
    path = tmp_path / "pneumoniamnist.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (68719476736, 1, 1), }"
    claim = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117) + b"\n"
    sample = Sample(shape=[1, 28, 28], classes=2, mean=[0.5], std=[0.5])

    def refuse() -> None:
        with (
            no_larger_than(100),
            pytest.raises(SteppeError, match=r"claims 68,719,476,736 bytes and has [0-9]{1,7}\)?"),
        ):
            load(str(path))

    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", compression) as file:
            file.writestr("train_images.npy", claim + bytes(100))
        refuse()
        raw = bytearray(path.read_bytes())
        place = raw.rindex(b"PK\x01\x02") + 24  # the size in the directory; no more than 4 GiB fit there
        raw[place : place + 4] = struct.pack("<I", 0xFFFFFFF0)
        path.write_bytes(raw)
        refuse()
        np.savez(tmp_path / "node.npz", y=np.zeros(3))
        with zipfile.ZipFile(tmp_path / "node.npz", "a") as file:
            file.writestr("x.npy", claim)
        with no_larger_than(100), pytest.raises(SteppeError, match="claims 68,719,476,736 bytes"):
            read_data(str(tmp_path / "node.npz"), sample, "client 0")


ODD_LABELS: dict[str, Any] = {
    "texts": ["a", "b"], "lists": [[0, 1], [2]], "nothing": [None, None], "halves": [0.5, 1.5],
    "not numbers": [float("nan")] * 2, "large": [2**70, 0], "one number": 3, "a dictionary": {0: 1},
    "a table": np.zeros((2, 2), np.int64), "too few": [0],
    "negative": [-1, 0], "beyond the classes": [0, 10],
}  # fmt: skip


@pytest.mark.parametrize("labels", ODD_LABELS.values(), ids=ODD_LABELS)
def test_a_cifar_pickle_with_odd_labels(labels: Any, tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    content = {"data": np.zeros((2, 3072), np.uint8), "labels": labels}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (tmp_path / "cifar10" / name).write_bytes(pickle.dumps(content))
    with pytest.raises(SteppeError, match=r"labels|pixels"):
        load("cifar10", tmp_path)


CLAIMS: dict[str, bytes] = {
    "a place in the memo": b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".",
    "a string": b"\x80\x04\x8e" + struct.pack("<Q", 2**36) + b".",
    "an array": b"\x80\x02cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x8a\x05\0\0\0\0\x10\x85U\x01b\x87R.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 2**36) + b"}.",
}


@pytest.mark.parametrize("raw", CLAIMS.values(), ids=CLAIMS)
def test_a_cifar_pickle_that_claims_64_gib(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train").write_bytes(raw)
    with no_larger_than(100), pytest.raises(SteppeError, match="train is") as error:
        load("cifar100", tmp_path)
    assert not isinstance(error.value.__cause__, MemoryError)  # refused before it was asked for


def test_labels_and_images_that_are_no_numbers(tmp_path: Path) -> None:
    for array in (np.array(["a"] * 3), np.zeros(3, complex), np.zeros((), int), np.array([2**62, 0, 0])):
        np.savez(tmp_path / "odd.npz", train_images=np.zeros((3, 2, 2), np.uint8), train_labels=array,
                 test_images=np.zeros((3, 2, 2), np.uint8), test_labels=np.zeros(3, int))  # fmt: skip
        with pytest.raises(SteppeError, match="label"):
            load(str(tmp_path / "odd.npz"))


def test_a_pipe_is_not_waited_for(tmp_path):
    """Neither as arrays nor as a partition."""
    for name, read in (("a.npz", read_npz), ("a.json", Partition.load)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(SteppeError, match="not an ordinary file"):
            read(tmp_path / name)
