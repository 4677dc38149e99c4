"""The job that every contender does: Fashion-MNIST shapes, 100 clients of 600 samples, 10 of them a round."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from steppe.data import Data, from_arrays, load

CLIENTS, PER_ROUND, SAMPLES, BATCH, EPOCHS = 100, 10, 600, 50, 1
LR, MOMENTUM, RHO = 0.05, 0.9, 0.05
MEAN, STD = 0.2860, 0.3530
ALGORITHMS = ("fedavg", "fedsam")
STEPS = PER_ROUND * EPOCHS * SAMPLES // BATCH  # local steps of all clients together in one round


def data() -> tuple[Data, str]:
    """Fashion-MNIST where its files are, otherwise random images of its shape; and a line that says which."""
    folder = Path(os.environ.get("STEPPE_DATA", "data")) / "fashion-mnist"
    if folder.is_dir():
        return load("fashion-mnist"), "the real Fashion-MNIST"
    rng = np.random.default_rng(0)
    labels, test_labels = rng.integers(10, size=60_000), rng.integers(10, size=10_000)
    # A bright row tells the class, so that a loop that does not learn is noticed here too.
    images, tests = (rng.integers(200, size=(n, 28, 28), dtype=np.uint8) for n in (60_000, 10_000))
    images[np.arange(60_000), 2 * labels + 4] = 255
    tests[np.arange(10_000), 2 * test_labels + 4] = 255
    made = from_arrays(images, labels, tests, test_labels, name="random", classes=10, mean=(MEAN,), std=(STD,))
    return (
        made,
        "random images of Fashion-MNIST's shape (STEPPE_DATA has no fashion-mnist): times hold, accuracies do not",
    )


def cifar() -> tuple[Data, str]:
    """CIFAR-10 where its files are, otherwise random images of its shape; and a line that says which."""
    folder = os.environ.get("STEPPE_DATA")
    if folder and (Path(folder) / "cifar10").exists():
        return load("cifar10", folder), "real CIFAR-10"
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(60_000, 3, 32, 32), dtype=np.uint8), np.arange(60_000) % 10
    return from_arrays(images[:50_000], labels[:50_000], images[50_000:], labels[50_000:], classes=10), "random images"


def clients() -> np.ndarray:
    """Who holds which training samples: (clients, samples)."""
    return np.random.default_rng(1).permutation(CLIENTS * SAMPLES).reshape(CLIENTS, SAMPLES)


def active(round_: int) -> list[int]:
    """The clients of a round."""
    return np.random.default_rng(round_).choice(CLIENTS, PER_ROUND, replace=False).tolist()
