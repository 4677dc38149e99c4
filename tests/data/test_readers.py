"""Each official format, read from small files made here, whole and damaged."""

import gzip
import os
import pickle
import struct
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

from steppe.core.errors import SteppeError
from steppe.data import load
from steppe.data.cifar import unpickle

RNG = np.random.default_rng(0)


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """Ten training and ten test images, half of the files compressed."""
    arrays = {}
    (tmp_path / "mnist").mkdir()
    for part in ("train", "t10k"):
        images, labels = RNG.integers(0, 256, (10, 28, 28), np.uint8), np.arange(10, dtype=np.uint8)
        arrays[part] = images
        (tmp_path / f"mnist/{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (tmp_path / f"mnist/{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return tmp_path, arrays


def test_idx(mnist):
    folder, arrays = mnist
    data = load("mnist", folder)
    assert data.train_inputs.shape == (10, 1, 28, 28)
    assert np.array_equal(data.test_inputs[:, 0].numpy(), arrays["t10k"])
    assert data.train_targets.tolist() == list(range(10))
    assert data.mean == (0.1307,)


@pytest.mark.parametrize("damage", ["short", "magic", "header", "gzip", "labels", "missing", "empty"])
def test_damaged_idx(mnist, damage):
    folder, _ = mnist
    images, labels = folder / "mnist/train-images-idx3-ubyte", folder / "mnist/train-labels-idx1-ubyte"
    packed = images.with_name(images.name + ".gz")
    whole = gzip.decompress(packed.read_bytes())
    expected = images.name
    match damage:
        case "short":
            images.write_bytes(whole[:-5])
        case "magic":
            images.write_bytes(b"\1" + whole[1:])
        case "header":
            images.write_bytes(whole[:9])
        case "gzip":
            packed.write_bytes(packed.read_bytes()[:-20])
        case "labels":
            labels.write_bytes(idx_bytes(np.arange(1, 11, dtype=np.uint8)))
            expected = "labels from 1 to 10"
        case "missing":
            labels.unlink()
            expected = labels.name
        case "empty":
            for file in (folder / "mnist").iterdir():
                file.unlink()
            expected = "which is empty"
    with pytest.raises(SteppeError, match=expected):
        load("mnist", folder)


def cifar_arrays(n, classes):
    return RNG.integers(0, 256, (n, 3072), np.uint8), np.arange(n) % classes


def test_cifar10_binary(tmp_path):
    inside = tmp_path / "cifar10/cifar-10-batches-bin"
    inside.mkdir(parents=True)
    pixels, labels = cifar_arrays(10, 10)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        records = np.concatenate([labels[:, None].astype(np.uint8), pixels], 1)
        (inside / f"{name}.bin").write_bytes(records.tobytes())
    data = load("cifar10", tmp_path)
    assert data.train_inputs.shape == (50, 3, 32, 32)
    assert np.array_equal(data.test_inputs.numpy().reshape(10, -1), pixels)
    assert torch.bincount(data.train_targets).tolist() == [5] * 10
    (inside / "data_batch_3.bin").write_bytes(b"x" * 3000)
    with pytest.raises(SteppeError, match=r"data_batch_3.bin is not a whole number of 3073-byte images"):
        load("cifar10", tmp_path)


def test_cifar100_binary_takes_the_fine_label(tmp_path):
    (tmp_path / "cifar100").mkdir()
    pixels, labels = cifar_arrays(100, 100)
    for name in ("train", "test"):
        records = np.concatenate([np.zeros((100, 1), np.uint8), labels[:, None].astype(np.uint8), pixels], 1)
        (tmp_path / f"cifar100/{name}.bin").write_bytes(records.tobytes())
    data = load("cifar100", tmp_path)
    assert data.train_targets.tolist() == labels.tolist()
    assert data.classes == 100


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("keys", [str, str.encode])
def test_cifar_python(tmp_path, protocol, keys):
    inside = tmp_path / "cifar10/cifar-10-batches-py"
    inside.mkdir(parents=True)
    pixels, labels = cifar_arrays(10, 10)
    content = {keys("data"): pixels, keys("labels"): labels.tolist(), keys("batch_label"): "one of five"}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (inside / name).write_bytes(pickle.dumps(content, protocol=protocol))
    data = load("cifar10", tmp_path)
    assert np.array_equal(data.train_inputs[40:].numpy().reshape(10, -1), pixels)
    (inside / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol)[:-400])
    with pytest.raises(SteppeError, match="test_batch"):
        load("cifar10", tmp_path)


def test_cifar_pickle_written_by_python_2(tmp_path):
    """The official files: protocol 2 with byte strings, spelled out opcode by opcode."""
    pixels = bytes(range(256))
    python2 = (
        b"\x80\x02}(U\x04data"
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x80\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T\x00\x01\x00\x00" + pixels + b"tbU\x06labels](K\x01K\x02eu."
    )
    (tmp_path / "batch").write_bytes(python2)
    content = unpickle(tmp_path / "batch")
    assert content["labels"] == [1, 2]
    assert content["data"].tobytes() == pixels
    assert content["data"].shape == (2, 128)


class Malicious:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    "attack",
    [
        Malicious(os.system, "echo pwned"),
        Malicious(eval, "1"),
        Malicious(np.load, "x"),
        Malicious(getattr, np.ndarray, "tofile"),
        np.array([{}], dtype=object),
        np.random.RandomState(0),
    ],
    ids=lambda attack: type(attack).__name__,
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_the_unpickler_builds_nothing_but_arrays(tmp_path, attack, protocol):
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": attack}, protocol=protocol))
    with pytest.raises(SteppeError, match=r"batch is not a safe CIFAR batch"):
        unpickle(tmp_path / "batch")


def test_svhn(tmp_path):
    savemat = pytest.importorskip("scipy.io", reason="the extra `mat` is not installed").savemat
    (tmp_path / "svhn").mkdir()
    images = RNG.integers(0, 256, (32, 32, 3, 10), np.uint8)
    for part in ("train", "test"):
        content = {"X": images, "y": np.arange(1, 11)[:, None]}
        savemat(tmp_path / f"svhn/{part}_32x32.mat", content, do_compression=True)
    data = load("svhn", tmp_path)
    assert data.train_targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert data.train_inputs[3, 2, 5, 7] == images[5, 7, 2, 3]
    negative = load("svhn", tmp_path, negative=True)
    assert (((256 - data.train_inputs.long()) % 256) == negative.train_inputs).all()
    with pytest.raises(SteppeError, match="does not take positive"):
        load("svhn", tmp_path, positive=True)
    file = tmp_path / "svhn/train_32x32.mat"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(SteppeError, match=r"train_32x32.mat is truncated or not SVHN"):
        load("svhn", tmp_path)


def test_svhn_without_scipy(tmp_path, monkeypatch):
    (tmp_path / "svhn").mkdir()
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(SteppeError, match=r"pip install 'steppe\[mat\]'"):
        load("svhn", tmp_path)


def medmnist_file(path, colour, classes):
    shape = (28, 28, 3) if colour else (28, 28)
    arrays = {}
    for part, n in (("train", 30), ("val", 10), ("test", 20)):
        arrays[f"{part}_images"] = RNG.integers(0, 256, (n, *shape), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % classes)[:, None].astype(np.uint8)
    np.savez(path, **arrays)
    return arrays


def test_medmnist(tmp_path):
    (tmp_path / "pathmnist").mkdir()
    arrays = medmnist_file(tmp_path / "pathmnist/pathmnist.npz", True, 9)
    data = load("pathmnist", tmp_path)
    assert data.train_inputs.shape == (40, 3, 28, 28)  # train and val joined
    assert np.array_equal(data.train_inputs[30:].permute(0, 2, 3, 1).numpy(), arrays["val_images"])
    assert data.mean == data.std == (0.5, 0.5, 0.5)
    assert len(load("pathmnist", tmp_path, join=False).train_targets) == 30
    medmnist_file(tmp_path / "tissuemnist.npz", False, 8)  # the file beside the folders is found too
    assert load("tissuemnist", tmp_path).train_inputs.shape == (40, 1, 28, 28)
    own = load(str(tmp_path / "tissuemnist.npz"))
    assert (own.name, own.classes) == ("tissuemnist", 8)


def test_damaged_medmnist(tmp_path):
    file = tmp_path / "pneumoniamnist.npz"
    medmnist_file(file, False, 3)
    with pytest.raises(SteppeError, match="labels from 0 to 2, but with 2 classes"):
        load("pneumoniamnist", tmp_path)
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(SteppeError, match=r"pneumoniamnist.npz is damaged: it is truncated"):
        load("pneumoniamnist", tmp_path)
    np.savez(file, images=np.zeros(3))
    with pytest.raises(SteppeError, match="it lacks train_images"):
        load("pneumoniamnist", tmp_path)
    np.savez(file, train_images=np.array([{}], dtype=object))
    with pytest.raises(SteppeError, match="truncated or not an"):  # no pickle is opened
        load("pneumoniamnist", tmp_path)


def save_image(path, mode="RGB", size=(8, 8), colour=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if mode == "L" else (colour, 0, 7)).save(path)


@pytest.fixture
def folder(tmp_path):
    for part in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            for i in range(3):
                save_image(tmp_path / f"set/{part}/{name}/{i}.png", colour=10 * number + i)
    return tmp_path / "set"


def test_image_folder(folder):
    data = load(f"folder:{folder}")
    assert data.class_names == ("cat", "dog")
    assert data.train_inputs.shape == (6, 3, 8, 8)
    assert data.train_inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert data.train_targets.tolist() == [0, 0, 0, 1, 1, 1]


def test_grey_images_stay_grey(folder):
    for file in folder.rglob("*.png"):
        save_image(file, "L")
    assert load(f"folder:{folder}").train_inputs.shape == (6, 1, 8, 8)


def test_cinic10(folder):
    folder.rename(folder.parent / "cinic10")
    (folder.parent / "cinic10/valid/cat").mkdir(parents=True)
    assert load("cinic10", folder.parent).mean == (0.47889522, 0.47227842, 0.43047404)


def test_tiny_imagenet(tmp_path):
    root = tmp_path / "tiny-imagenet"
    for wnid in ("n01", "n02"):
        save_image(root / f"train/{wnid}/images/{wnid}_0.JPEG")
    for i in range(2):
        save_image(root / f"val/images/val_{i}.JPEG")
        save_image(root / f"test/images/test_{i}.JPEG")  # without labels, and so not used
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    data = load("tiny-imagenet", tmp_path)
    assert data.test_targets.tolist() == [1, 0]
    assert data.train_inputs.shape == (2, 3, 8, 8)


def test_bad_image_folders(folder, tmp_path):
    file = folder / "train/cat/0.png"
    whole = file.read_bytes()
    file.write_bytes(whole[:40])
    with pytest.raises(SteppeError, match=r"0.png is truncated or not an image"):
        load(f"folder:{folder}")
    save_image(file, size=(9, 8))
    with pytest.raises(SteppeError, match="resize all images"):
        load(f"folder:{folder}")
    file.write_bytes(whole)
    save_image(folder / "test/bird/0.png")
    with pytest.raises(SteppeError, match="the class 'bird'"):
        load(f"folder:{folder}")
    with pytest.raises(SteppeError, match=r"train/<class>/"):
        load(f"folder:{tmp_path / 'nowhere'}")


class ClassLabel:
    names = ("no", "yes")


class Rows(list):
    """Stands for datasets.Dataset; of a feature, only the name of its type counts."""

    features = {"picture": type("Image", (), {})(), "answer": ClassLabel()}  # noqa: RUF012

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def test_hub(monkeypatch):
    rows = Rows({"picture": Image.new("RGB", (4, 4)), "answer": i % 2} for i in range(6))
    stub = types.SimpleNamespace(load_dataset=lambda name: {"train": rows, "validation": rows})
    monkeypatch.setitem(sys.modules, "datasets", stub)
    data = load("hub:some/set")
    assert data.train_inputs.shape == (6, 3, 4, 4)
    assert (data.name, data.class_names) == ("hub:some/set", ("no", "yes"))
    stub.load_dataset = lambda name: {"train": rows}
    with pytest.raises(SteppeError, match="the splits train; train and test"):
        load("hub:some/set")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SteppeError, match=r"pip install 'steppe\[hub\]'"):
        load("hub:some/set")


def test_unknown_names_and_missing_folders(tmp_path):
    with pytest.raises(SteppeError, match="did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(SteppeError, match=r"expected in .*cifar10.*data_batch_1.bin"):
        load("cifar10", tmp_path)
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(SteppeError, match="which is empty"):
        load("cifar10", tmp_path)
    with pytest.raises(SteppeError, match="does not exist"):
        load("nowhere.npz")


real = pytest.mark.skipif("STEPPE_DATA" not in os.environ, reason="STEPPE_DATA names no folder with the official files")


@real
@pytest.mark.data
def test_real_cifar10():
    data = load("cifar10")
    assert torch.bincount(data.train_targets).tolist() == [5000] * 10
    pixels = data.train_inputs.double() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), unbiased=False)
    expected_mean = torch.tensor([0.49139968, 0.48215841, 0.44653091], dtype=torch.float64)
    expected_std = torch.tensor([0.24703223, 0.24348513, 0.26158784], dtype=torch.float64)
    torch.testing.assert_close(mean, expected_mean, atol=1e-7, rtol=0)
    torch.testing.assert_close(std, expected_std, atol=1e-7, rtol=0)


@real
@pytest.mark.data
def test_real_mnist():
    data = load("mnist")
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(data.train_targets).tolist() == counts
    pixels = data.train_inputs.double() / 255
    assert abs(float(pixels.mean()) - 0.13066) < 1e-5
    assert abs(float(pixels.std()) - 0.30811) < 1e-5
