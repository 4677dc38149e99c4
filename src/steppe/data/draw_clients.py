"""Clients whose samples are drawn only when needed, so that a federation of any size takes no memory and no time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from steppe.core import keyed
from steppe.core.errors import SteppeError

SAMPLES, CLASSES = 0xD2A3, 0xD2A4  # keep these uses of a key apart from every other


class DrawnClients(Sequence[np.ndarray]):
    """Give every client `each` different training samples, of all classes or of `kinds` classes of its own.

    A client's samples are a function of (seed, client). Clients share samples, because there may be more clients than
    samples.
    """

    def __init__(self, labels: np.ndarray, clients: int, seed: int, each: int, kinds: int | None) -> None:
        self.labels, self.clients, self.seed, self.each, self.kinds = labels, clients, seed, each, kinds
        self.pools = [] if kinds is None else [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> list[np.ndarray]: ...
    def __getitem__(self, client: int | slice) -> np.ndarray | list[np.ndarray]:
        """Draw the samples of a client."""
        if isinstance(client, slice):
            return [self[i] for i in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        client %= len(self)
        key = keyed.key(self.seed, client, SAMPLES)
        if self.kinds is None:
            return keyed.choose(key, len(self.labels), self.each).numpy()
        kinds = keyed.choose(keyed.key(self.seed, client, CLASSES), len(self.pools), self.kinds).tolist()
        pool = np.concatenate([self.pools[c] for c in kinds])
        return np.take(pool, keyed.choose(key, len(pool), self.each).numpy())

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    @property
    def content(self) -> bytes:
        """Return the numbers that determine all samples."""
        labels = b"" if self.kinds is None else self.labels.astype("<i8").tobytes()
        numbers = (len(self.labels), self.clients, self.seed, self.each, self.kinds or 0)
        return hashlib.sha256(labels).digest() + np.array(numbers, "<i8").tobytes()


def drawn(rng: Any, labels: np.ndarray, clients: int, each: float, kinds: float | None = None) -> DrawnClients:
    """Give each client n samples of the training set, of all classes or of c classes; clients share samples."""
    classes = None if kinds is None else int(labels.max()) + 1
    least = len(labels) if kinds is None else np.sort(np.bincount(labels))[: int(kinds)].sum()
    if each != int(each) or each > least or (kinds is not None and (kinds != int(kinds) or kinds > (classes or 0))):
        raise SteppeError(f"drawn needs a whole number of samples per client, at most {least}"
                          + (f", and a whole number of at most {classes} classes." if kinds else "."))  # fmt: skip
    return DrawnClients(labels, clients, int(rng.randint(2**31 - 1)), int(each), None if kinds is None else int(kinds))
