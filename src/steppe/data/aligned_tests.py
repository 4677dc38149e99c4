"""Test samples for each client, with the class shares of its training samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import RandomState

from steppe.core.errors import SteppeError
from steppe.data.partition import Partition, as_array, replay


def align_test_sets(
    partition: Partition, targets: Any, test_targets: Any, size: int = 1000, seed: int | None = None
) -> tuple[np.ndarray, ...]:
    """Return the test indices of each client, sorted by class: min(available, ⌊size · class share⌋) per class.

    Clients draw independently, so their test sets overlap. Rounding down gives at most `size` samples, and drops
    classes with a share below 1/size. Because the order is by class, shuffle them for a model that uses batch
    statistics. Without a seed, the draws continue where those of the partition ended, as in FedSoL's code. With a seed,
    they are independent of the partition.
    """
    labels, test_labels = as_array(targets), as_array(test_targets)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise SteppeError("Aligned test sets follow class shares, but these targets are not class labels.")
    if size < 1:
        raise SteppeError(f"Aligned test sets of {size} samples are impossible; ask for at least 1.")
    classes = int(max(labels.max(), test_labels.max(initial=0))) + 1
    pools = [np.flatnonzero(test_labels == c) for c in range(classes)]
    rng = replay(partition, labels) if seed is None else RandomState(seed)
    # Single precision, because the released code truncates a float32 product: 0.29·1000 may give 289.
    shares = partition.counts(labels, classes).astype(np.float32) / partition.sizes[:, None].astype(np.float32)
    amounts = (np.float32(size) * shares).astype(np.int64)
    return tuple(
        np.concatenate([rng.choice(pool, min(len(pool), n), replace=False) for pool, n in zip(pools, row, strict=True)])
        for row in amounts
    )
