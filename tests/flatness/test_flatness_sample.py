"""The samples that measures are taken on."""

import numpy as np
import pytest
import torch

import steppe
from steppe.core.errors import SteppeError
from steppe.data import load
from steppe.data.augment import Augmentation
from steppe.data.dataset import from_arrays
from steppe.data.federation import Federation
from steppe.data.partition import make as partition
from steppe.evaluate.score import score
from steppe.flatness import (
    Loss,
    Sample,
    balanced,
    flatness_discrepancy,
    of_client,
    of_training_data,
    spectrum,
)


@pytest.fixture(scope="module")
def federation():
    data = load("digits")
    split = partition("iid", data.train_targets, 5, 0, classes=10)
    return Federation(data, split, 50, 1, Augmentation(flip=True), seed=0)


def test_the_global_sample(federation):
    sample = of_training_data(federation, 500, seed=3)
    assert sample.name == "digits/train, 500 class-balanced, seed 3"
    assert torch.bincount(sample.targets).tolist() == [50] * 10
    assert len(set(sample.targets[:40].tolist())) > 5  # mixed, not sorted
    again, other = of_training_data(federation, 500, seed=3), of_training_data(federation, 500, seed=4)
    assert torch.equal(again.inputs, sample.inputs)
    assert not torch.equal(other.inputs, sample.inputs)
    whole = of_training_data(federation)
    assert whole.name == "digits/train, all 1437"
    assert len(whole) == 1437
    mean, std = federation.data.mean[0], federation.data.std[0]
    torch.testing.assert_close(sample.plain(sample.inputs), (sample.inputs.float() / 255 - mean) / std)


def test_no_sample_is_taken_twice_and_short_classes_give_all():
    labels = torch.tensor([0] * 100 + [1] * 3 + [2] * 50)
    index = balanced(labels, 60, 0, 3)
    assert len(set(index.tolist())) == 60
    assert torch.bincount(labels[index]).tolist() == [29, 3, 28]
    assert sorted(balanced(labels, 1000, 0, 3).tolist()) == list(range(153))
    assert torch.bincount(labels[balanced(labels, 2, 0, 4)], minlength=3).tolist() == [1, 1, 0]


def test_a_clients_sample(federation):
    sample = of_client(federation, 2)
    mine = federation.partition.clients[2]
    assert sample.name == f"digits/train, client 2, all {len(mine)}"
    labels = federation.data.train_targets[torch.as_tensor(mine)]
    assert torch.equal(torch.bincount(sample.targets), torch.bincount(labels))
    part = of_client(federation, 2, 20, seed=1)
    assert part.name == f"digits/train, client 2, 20 of {len(mine)}, seed 1"
    assert len(part) == 20
    with pytest.raises(SteppeError, match="0 to 4"):
        of_client(federation, 5)


def test_regression_has_no_classes():
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    data = from_arrays(x, x[:, :1], x, x[:, :1], name="line")
    split = partition("iid", data.train_targets, 2, 0, classes=None)
    sample = of_training_data(Federation(data, split, 5, 1, Augmentation(), seed=0), 10)
    assert sample.name == "line/train, 10 random, seed 0"
    assert len(sample) == 10


def test_a_real_run_can_be_measured():
    result = steppe.run("fedavg", "mlp", "digits", clients=4, rounds=2, per_round=2, epochs=1, lr=0.1, device="cpu")
    task, federation = result.experiment.task, result.experiment.federation
    loss = Loss(task, of_training_data(federation), result.buffers)
    data = federation.data
    known = score(task, result.x, result.buffers, data.train_inputs, data.train_targets, federation.plain)
    assert loss.value(result.x) == pytest.approx(known.loss, rel=1e-5)
    small = Loss(task, of_training_data(federation, 100), result.buffers)
    assert spectrum(small.hessian(result.x), top=1, iterations=40).lambda1 > 0
    clients = [Loss(task, of_client(federation, i), result.buffers) for i in range(4)]
    same = flatness_discrepancy(clients, task.x0, result.x, torch.stack([result.x] * 4), everyone=loss)
    assert same.code.value == 0  # local models that are the global one
    assert same.poster.value == pytest.approx(0, abs=1e-5)  # all clients together hold the training data
    assert same.moved.value == pytest.approx(loss.value(task.x0) - loss.value(result.x), rel=1e-3)


def test_words():
    with pytest.raises(SteppeError, match="empty"):
        Sample("nothing", torch.zeros(0, 3), torch.zeros(0))
    with pytest.raises(SteppeError, match="2 inputs, 3 targets"):
        Sample("uneven", torch.zeros(2, 3), torch.zeros(3))
