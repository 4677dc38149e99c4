"""Partitions that the user gives: the indices of each client, or a client id per training sample.

>>> split_indices([[0, 1], [4, 2, 3]]).sizes.tolist()
[2, 3]
>>> clients, names = number_clients(["north", "south", "north"])
>>> clients.tolist(), names
([0, 1, 0], ('north', 'south'))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from steppe.core.errors import SteppeError, quote
from steppe.data.draw_clients import DrawnClients
from steppe.data.partition import BY_INDICES, Partition, as_array

BINS = 10  # of equal size, for numbers that a label-skew rule divides by


def split_indices(clients: Any) -> Partition:
    """Return the partition with these indices per client, given as lists, arrays, tensors or masks."""
    if isinstance(clients, dict):
        clients = list(clients.values())
    if isinstance(clients, Tensor):
        clients = as_array(clients)
    if isinstance(clients, str | bytes) or not isinstance(clients, Sequence | np.ndarray) or len(clients) == 0:
        raise SteppeError(f"partition is {quote(clients)}: give a rule such as 'lda(0.3)', a file, or a list with the "
                          "indices of each client.")  # fmt: skip
    arrays = [_read_array(i, one) for i, one in enumerate(clients)]
    masked = {len(one) for one in arrays if one.dtype == bool}
    if len(masked) > 1:
        raise SteppeError(f"partition: the clients' masks have different lengths, {min(masked)} and {max(masked)}; "
                          "give one value per training sample.")  # fmt: skip
    indices = tuple(np.flatnonzero(one) if one.dtype == bool else one.astype(np.int64) for one in arrays)
    return Partition(indices, BY_INDICES, 0, samples=next(iter(masked), None))


def _read_array(client: int, given: Any) -> np.ndarray:
    """Return a client's indices, or its mask, as an array."""
    if isinstance(given, Subset):
        raise SteppeError(f"partition: client {client} is a Subset: give its indices, subset.indices, or the subsets "
                          "to steppe.from_clients.")  # fmt: skip
    try:
        array = as_array(given)
    except (ValueError, TypeError) as error:
        raise SteppeError(f"partition: the indices of client {client} are not a list of numbers ({error}).") from error
    if array.ndim != 1 or (array.dtype.kind not in "iub" and len(array)):
        raise SteppeError(f"partition: the indices of client {client} are {quote(given)}, but must be a list of whole "
                          "numbers.")  # fmt: skip
    return array


def check_indices(split: Partition, samples: int, name: str, repeats: bool = False) -> None:
    """Refuse an index that does not exist, a client without samples and, unless allowed, a sample given twice."""
    if isinstance(split.clients, DrawnClients) and split.samples == samples:
        return  # right by construction, and perhaps too many to look at
    together = np.concatenate([np.empty(0, np.int64), *split.clients])
    if split.sizes.min(initial=1) and together.min(initial=0) >= 0 and together.max(initial=-1) < samples and (
        repeats or np.bincount(together, minlength=1).max() <= 1
    ):  # fmt: skip
        return
    owner = np.full(samples, -1)
    for client, indices in enumerate(split.clients):
        if len(indices) == 0:
            raise SteppeError(f"partition: client {client} has no samples; leave it out, or give it one.")
        odd = indices[(indices < 0) | (indices >= samples)]
        if len(odd):
            raise SteppeError(f"partition: client {client} has the index {odd[0]}, but {name} has {samples} training "
                              f"samples, 0 to {samples - 1}.")  # fmt: skip
        if repeats:
            continue
        values, counts = np.unique(indices, return_counts=True)
        if counts.max() > 1:
            raise SteppeError(f"partition: client {client} has sample {values[counts.argmax()]} twice; give each "
                              "sample once.")  # fmt: skip
        if (taken := indices[owner[indices] >= 0]).size:
            raise SteppeError(f"partition: sample {taken[0]} belongs to the clients {owner[taken[0]]} and {client}; "
                              "give each sample to one client.")  # fmt: skip
        owner[indices] = client


def number_clients(ids: Any, samples: int | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a client number per sample and the clients' names, from ids of any kind, in the order of the ids."""
    array = as_ids(ids)
    if array.ndim != 1 or (samples is not None and len(array) != samples):
        raise SteppeError(f"groups has the shape {array.shape}, but must have one client id per training sample"
                          + (f": {samples}." if samples is not None else "."))  # fmt: skip
    bad = array != array if array.dtype.kind == "f" else np.array([v is None or v != v for v in array.tolist()])
    if bad.any():
        raise SteppeError(f"groups has no client id for sample {int(np.argmax(bad))}.")
    try:
        names, numbers = np.unique(array, return_inverse=True)
    except TypeError:
        raise SteppeError("groups mixes ids of different types, such as numbers and text; use one.") from None
    return numbers.astype(np.int64), tuple(map(str, names.tolist()))


def as_ids(given: Any) -> np.ndarray:
    """Return clients' ids; whole numbers stored as floats, as tables with gaps have them, are whole numbers."""
    array = as_array(given)
    whole = array.dtype.kind == "f" and bool((array % 1 == 0).all())
    return array.astype(np.int64) if whole else array


def as_labels(by: Any, samples: int) -> np.ndarray:
    """Return labels 0, 1, 2, … for what a rule divides by: ids or text as they are, numbers in ten equal bins.

    Rows of several values are one label per different row.
    """
    array = as_array(by)
    if array.ndim == 0 or len(array) != samples:
        raise SteppeError(f"by has the shape {array.shape}, but must have one value per training sample: {samples}.")
    array = array[:, 0] if array.shape[1:] == (1,) else array
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise SteppeError("by has values that are not finite.")
        if array.ndim > 1 and (array % 1).any():
            raise SteppeError(f"by has the shape {array.shape}: give one number per training sample, or whole numbers.")
    if array.dtype.kind == "f" and array.ndim == 1:
        inner = np.quantile(array, np.linspace(0, 1, BINS + 1)[1:-1])
        array = np.searchsorted(inner, array, side="right")
    try:
        labels = np.unique(array, axis=0 if array.ndim > 1 else None, return_inverse=True)[1]
    except TypeError:
        raise SteppeError("by mixes values of different types, such as numbers and text; use one.") from None
    return labels.reshape(-1).astype(np.int64)


def choose_held_out(split: Partition, fraction: float, seed: int) -> np.ndarray:
    """Choose a share of every client's samples for validation, and leave each client at least one.

    Clients in the order of their remainders get what rounding down left over.
    """
    from steppe.core import keyed

    sizes = split.sizes
    wanted = sizes * fraction
    quota = np.floor(wanted).astype(np.int64)
    left = round(fraction * int(sizes.sum())) - int(quota.sum())
    quota[np.argsort(-(wanted - quota), kind="stable")[:left]] += 1
    quota = np.minimum(quota, sizes - 1)
    if quota.sum() == 0:
        raise SteppeError(f"validation = {fraction:g} leaves no sample for validation, because every client keeps at "
                          "least one: choose a larger share.")  # fmt: skip
    orders = [keyed.permutation(keyed.key(seed, i), n).numpy() for i, n in enumerate(sizes)]
    chosen = [own[order[:n]] for own, order, n in zip(split.clients, orders, quota, strict=True)]
    return np.unique(np.concatenate(chosen))
