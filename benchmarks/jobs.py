"""The jobs of the contenders.

On a CPU: the shapes of Fashion-MNIST, 100 clients of 600 samples, 10 clients per round. On a GPU: the shapes of
CIFAR-10, 10 clients of 500 samples.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steppe.data import Data, from_arrays, load

CLIENTS, PER_ROUND, SAMPLES, BATCH, EPOCHS = 100, 10, 600, 50, 1
LR, MOMENTUM, RHO = 0.05, 0.9, 0.05
MEAN, STD = 0.2860, 0.3530
ALGORITHMS = ("fedavg", "fedsam")
STEPS = PER_ROUND * EPOCHS * SAMPLES // BATCH  # local steps of all clients together in one round


@dataclass(frozen=True)
class Job:
    """The settings of a federation; model, data and local training are the plain loop's."""

    clients: int
    per_round: int
    samples: int
    batch: int
    epochs: int
    lr: float
    momentum: float
    decay: float
    evaluated: bool  # whether a round ends with the evaluation

    def active(self, round_: int) -> list[int]:
        """Return the clients of a round."""
        return np.random.default_rng(round_).choice(self.clients, self.per_round, replace=False).tolist()


CPU = Job(CLIENTS, PER_ROUND, SAMPLES, BATCH, EPOCHS, LR, MOMENTUM, 0.0, evaluated=False)
GPU = Job(clients=10, per_round=10, samples=500, batch=50, epochs=5, lr=0.01, momentum=0.9, decay=1e-5, evaluated=True)


def data() -> tuple[Data, str]:
    """Return Fashion-MNIST if its files exist, otherwise random images of its shape; and a line that says which."""
    folder = Path(os.environ.get("STEPPE_DATA", "data")) / "fashion-mnist"
    if folder.is_dir():
        return load("fashion-mnist"), "the real Fashion-MNIST"
    rng = np.random.default_rng(0)
    labels, test_labels = rng.integers(10, size=60_000), rng.integers(10, size=10_000)
    # A bright row marks the class, so that a loop that does not learn is noticed with random images too.
    images, tests = (rng.integers(200, size=(n, 28, 28), dtype=np.uint8) for n in (60_000, 10_000))
    images[np.arange(60_000), 2 * labels + 4] = 255
    tests[np.arange(10_000), 2 * test_labels + 4] = 255
    made = from_arrays(images, labels, tests, test_labels, name="random", classes=10, mean=(MEAN,), std=(STD,))
    return (
        made,
        "random images of Fashion-MNIST's shape (STEPPE_DATA has no fashion-mnist): only times are valid",
    )


def cifar() -> tuple[Data, str]:
    """Return CIFAR-10 if its files exist, otherwise random images of its shape; and a line that says which."""
    folder = os.environ.get("STEPPE_DATA")
    if folder and (Path(folder) / "cifar10").exists():
        return load("cifar10", folder), "real CIFAR-10"
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(60_000, 3, 32, 32), dtype=np.uint8), np.arange(60_000) % 10
    return from_arrays(images[:50_000], labels[:50_000], images[50_000:], labels[50_000:], classes=10), "random images"


def clients() -> np.ndarray:
    """Return the training samples of each client: (clients, samples)."""
    return np.random.default_rng(1).permutation(CLIENTS * SAMPLES).reshape(CLIENTS, SAMPLES)
