"""Data: its checks, the embedded digits, the validation cut, arrays and torch data sets."""

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from steppe.core.errors import SteppeError
from steppe.data import Data, from_arrays, from_dataset, load
from steppe.data.dataset import choose_stratified

IMAGES, LABELS = torch.zeros(6, 1, 4, 4, dtype=torch.uint8), torch.arange(6) % 3


def test_digits():
    data = load("digits")
    assert data.train_inputs.shape == (1437, 1, 8, 8)
    assert data.test_inputs.shape == (360, 1, 8, 8)
    assert torch.bincount(data.train_targets).tolist() == [142, 145, 142, 146, 145, 146, 145, 143, 139, 144]
    assert torch.bincount(data.test_targets).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert (int(data.train_inputs.min()), int(data.train_inputs.max())) == (0, 255)
    pixels = data.train_inputs.double() / 255
    assert data.mean == pytest.approx((float(pixels.mean()),))
    assert data.std == pytest.approx((float(pixels.std(unbiased=False)),))


def test_digits_are_those_of_scikit_learn():
    source = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed").load_digits()
    test = choose_stratified(torch.as_tensor(source.target), 360, seed=0).numpy()
    data = load("digits")
    assert data.test_targets.tolist() == source.target[test].tolist()
    assert np.array_equal(np.round(data.test_inputs[:, 0].numpy() / 255 * 16), source.images[test])
    train = np.setdiff1d(np.arange(1797), test)
    assert np.array_equal(np.round(data.train_inputs[:, 0].numpy() / 255 * 16), source.images[train])


def test_validation_is_disjoint_and_stratified():
    n = 1000
    x = torch.arange(n, dtype=torch.float32)[:, None]
    y = torch.repeat_interleave(torch.arange(4), torch.tensor([500, 300, 150, 50]))
    data = from_arrays(x, y, x[:1], y[:1])
    cut = data.with_validation(0.1, seed=1)
    assert torch.bincount(cut.validation_targets).tolist() == [50, 30, 15, 5]
    both = torch.cat([cut.train_inputs, cut.validation_inputs]).flatten().sort().values
    assert torch.equal(both, x.flatten())
    assert torch.equal(y[cut.validation_inputs.flatten().long()], cut.validation_targets)
    again, other = data.with_validation(0.1, seed=1), data.with_validation(0.1, seed=2)
    assert torch.equal(cut.validation_inputs, again.validation_inputs)
    assert not torch.equal(cut.validation_inputs, other.validation_inputs)
    assert data.validation_inputs is None


def test_validation_of_a_regression():
    x = torch.randn(50, 2)
    cut = from_arrays(x, x[:, 0], x, x[:, 0]).with_validation(0.2, seed=0)
    assert (len(cut.train_targets), len(cut.validation_targets)) == (40, 10)


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 0.01])
def test_impossible_validation(fraction):
    with pytest.raises(SteppeError, match="leaves one side empty"):
        from_arrays(IMAGES, LABELS, IMAGES, LABELS).with_validation(fraction, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_inputs": IMAGES[:0], "train_targets": LABELS[:0]}, "no training sample"),
        ({"train_targets": LABELS[:4]}, "6 train inputs but 4 targets"),
        ({"test_targets": LABELS + 1}, "test labels from 1 to 3, but with 3 classes they must be 0 to 2"),
        ({"train_targets": LABELS - 1}, "train labels from -1 to 1"),
        ({"train_targets": LABELS.float()}, "must be one int64 per sample"),
        ({"test_inputs": IMAGES[..., :2]}, "test inputs of shape"),
        ({"mean": (0.5, 0.5), "std": (1.0, 1.0)}, "another number of channels"),
        ({"mean": (0.5,), "std": (0.0,)}, "std > 0"),
        ({"train_inputs": IMAGES[:, 0], "test_inputs": IMAGES[:, 0]}, r"need the shape \(n, c, h, w\)"),
    ],
)
def test_bad_data_is_refused(change, message):
    good = {"train_inputs": IMAGES, "train_targets": LABELS, "test_inputs": IMAGES, "test_targets": LABELS}
    with pytest.raises(SteppeError, match=message):
        Data(name="toy", classes=3, **(good | change))


def test_from_arrays_finds_the_layout_and_the_statistics():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 5, 6, 3), np.uint8)
    data = from_arrays(x, np.arange(20) % 4, x, np.arange(20) % 4)
    assert data.train_inputs.shape == (20, 3, 5, 6)
    assert data.classes == 4
    assert data.mean == pytest.approx((x / 255).mean((0, 1, 2)))
    assert data.std == pytest.approx((x / 255).std((0, 1, 2)))
    grey = from_arrays(x[..., 0], np.zeros(20, int), x[..., 0], np.zeros(20, int), mean=(), std=())
    assert grey.train_inputs.shape == (20, 1, 5, 6)
    assert grey.mean == ()


def test_from_arrays_regression():
    x = np.random.default_rng(0).normal(size=(20, 3))
    data = from_arrays(x, x[:, :2], x, x[:, :2])
    assert data.classes is None
    assert data.train_targets.shape == (20, 2)
    assert data.train_inputs.dtype == torch.float32


def test_from_dataset():
    data = from_dataset(TensorDataset(IMAGES, LABELS), TensorDataset(IMAGES, LABELS), name="mine")
    assert (data.name, data.classes, data.train_inputs.shape) == ("mine", 3, (6, 1, 4, 4))
    with pytest.raises(SteppeError, match="is empty"):
        from_dataset([], [])
    with pytest.raises(SteppeError, match="different shapes"):
        from_dataset([(torch.zeros(2), 0), (torch.zeros(3), 0)], [(torch.zeros(2), 0)])

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(SteppeError, match="IterableDataset"):
        from_dataset(Stream(), Stream())
