"""Rules that divide training samples by random proportions: Dirichlet, and what published code makes of it.

See `rules`, which has all rules by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.random import RandomState

from steppe.core.errors import SteppeError

Clients = list[np.ndarray]
MOST_DRAWS = 1_000_000  # of a class, for one sample


def find_pools(labels: np.ndarray) -> Clients:
    """Return the indices of each class, in the order of the data set."""
    return [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]


def _draw_corner(size: int, place: int) -> np.ndarray:
    q = np.zeros(size)
    q[place] = 1
    return q


def _draw_proportions(rng: RandomState, alpha: float, size: int) -> np.ndarray:
    """Draw from Dirichlet(α·1). For a tiny α all gammas underflow; the limit is a random corner of the simplex."""
    q = rng.dirichlet(np.repeat(alpha, size))
    return q if np.isfinite(q).all() else _draw_corner(size, rng.randint(size))


def _count_trials(best: list[int], wanted: float) -> Iterator[int]:
    """Count trials up to the limit; the rule appends the size of each trial's smallest client to `best`.

    LDA(0.05) of CIFAR-10 needs 3,482 trials in FedSoL's code and 19,126 in FedNTD's, so the limit is high. A rule gives
    up after 500 trials if its best is below a quarter of the wanted size.
    """
    for trial in range(20_000):
        if trial == 500 and max(best, default=0) < wanted / 4:
            return
        yield trial


def _make_failure(rule: str, best: list[int], wanted: float, change: str) -> SteppeError:
    return SteppeError(
        f"{rule}: in {len(best)} trials the smallest client got at most {max(best)} "
        f"samples, but needs {wanted:g}; use fewer clients, a larger alpha, another seed, or {change}."
    )


def lda(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float = 10) -> Clients:
    """Divide each class by Dirichlet(α) over clients, without clients that already hold n/N (FedSoL's LDA).

    Everything is drawn again until each client has `minimum` samples; the number of trials is limited.
    """
    return _divide_lda(rng, labels, clients, alpha, minimum, afresh=False)


def lda_fedntd(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float = 10) -> Clients:
    """Do the same as `lda`, but start trials from the data set's order and do not shuffle failed ones (FedNTD)."""
    return _divide_lda(rng, labels, clients, alpha, minimum, afresh=True)


def _divide_lda(
    rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float, afresh: bool
) -> Clients:
    fair = len(labels) // clients
    if fair < minimum:
        most = int(len(labels) // minimum)
        fewer = f"ask for at most {most} clients or " if most else ""
        raise SteppeError(f"{len(labels)} samples cannot give {clients} clients {minimum:g} each; {fewer}write "
                          f"lda({alpha:g}, {fair}).")  # fmt: skip
    pools = ordered = find_pools(labels)  # shuffled in place, so a retry continues from the previous order
    spent = np.empty(len(labels), np.int64)
    best: list[int] = []
    for _ in _count_trials(best, minimum):
        if afresh:
            pools = [pool.copy() for pool in ordered]
        sizes = np.zeros(clients, np.int64)
        cuts = []
        for pool in pools:
            rng.shuffle(pool)
            cuts.append(_find_capped_cuts(rng, alpha, sizes < fair, len(pool)))
            sizes += np.diff(cuts[-1], prepend=0, append=len(pool))
        best.append(int(sizes.min()))
        if sizes.min() >= minimum:
            parts = _gather(pools, cuts)
            for part in parts:
                rng.shuffle(part)
            return parts
        for size in [] if afresh else sizes:  # FedSoL's code also shuffles a failed trial, which advances the generator
            rng.shuffle(spent[:size])
    change = f"dirichlet({alpha:g}), which moves samples instead of trying again"
    if max(best):
        change = f"a smaller minimum such as lda({alpha:g}, {max(best)}), or {change}"
    raise _make_failure(f"lda({alpha:g}) over {clients} clients", best, minimum, change)


def _find_capped_cuts(rng: RandomState, alpha: float, open_: np.ndarray, size: int) -> np.ndarray:
    """Return where to cut a class so that clients get Dirichlet shares of it, and full clients get nothing."""
    q = _draw_proportions(rng, alpha, len(open_)) * open_
    if q.sum() == 0:  # a tiny α gave everything to full clients; the limit is one random open client
        free = np.flatnonzero(open_) if open_.any() else np.arange(len(open_))
        q = _draw_corner(len(open_), rng.choice(free))
    return (np.cumsum(q / q.sum()) * size).astype(np.int64)[:-1]


def _gather(pools: Clients, cuts: Clients) -> Clients:
    pieces = [np.split(pool, cut) for pool, cut in zip(pools, cuts, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def dirichlet(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float = 1) -> Clients:
    """Divide each class by Dirichlet(α) over clients; every sample is used once, and nothing is retried.

    A client with fewer than `minimum` samples takes the missing ones from the largest client.
    """
    least = math.ceil(minimum)
    if len(labels) < clients * least:
        raise SteppeError(
            f"{len(labels)} samples cannot give {clients} clients {least} each; use fewer clients or "
            f"write dirichlet({alpha:g}, {len(labels) // clients})."
        )
    pools = find_pools(labels)
    cuts = []
    for pool in pools:
        rng.shuffle(pool)
        cuts.append(_find_capped_cuts(rng, alpha, np.ones(clients, bool), len(pool)))
    parts = _gather(pools, cuts)
    for part in parts:
        rng.shuffle(part)
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < least):
        while (lacking := least - int(sizes[client])) > 0:
            donor = sizes.argmax()  # it has more than the minimum, because the mean is at least the minimum
            taken = min(lacking, int(sizes[donor]) - least)
            parts[client] = np.concatenate([parts[client], parts[donor][-taken:]])
            parts[donor] = parts[donor][:-taken]
            sizes[donor] -= taken
            sizes[client] += taken
    return parts


def dirichlet_replace(rng: RandomState, labels: np.ndarray, clients: int, alpha: float) -> Clients:
    """Give each client its own Dirichlet(α) over classes; equal sizes, samples may repeat (FedSMOO)."""
    order = rng.permutation(len(labels))
    return _fill(rng, labels, order, np.cumsum(_draw_priors(rng, labels, clients, alpha), axis=1), recycle=True)


def dirichlet_once(rng: RandomState, labels: np.ndarray, clients: int, alpha: float) -> Clients:
    """Give each client its own Dirichlet(α) over classes; equal sizes, no sample twice (FedDyn, in MAN's code)."""
    cum = np.cumsum(_draw_priors(rng, labels, clients, alpha), axis=1)
    return _fill(rng, labels, np.arange(len(labels)), cum, recycle=False)


def _draw_priors(rng: RandomState, labels: np.ndarray, clients: int, alpha: float) -> np.ndarray:
    classes = labels.max() + 1
    prior = rng.dirichlet(np.repeat(alpha, classes), clients)
    for row in np.flatnonzero(~np.isfinite(prior).all(axis=1)):
        prior[row] = _draw_corner(classes, rng.randint(classes))
    return prior


def pathological(rng: RandomState, labels: np.ndarray, clients: int, active: float) -> Clients:
    """Give each client c classes in equal shares; equal sizes, samples may repeat (FedSMOO)."""
    order = rng.permutation(len(labels))
    classes = labels.max() + 1
    if active != int(active) or active > classes:
        raise SteppeError(f"pathological({active:g}) needs a whole number of at most {classes} classes.")
    rows = np.tile(np.arange(classes) < active, (clients, 1)).astype(np.int64)
    for row in rows:
        rng.shuffle(row)
    return _fill(rng, labels, order, np.cumsum(rows, axis=1) / active * rows, recycle=True)


def _fill(rng: RandomState, labels: np.ndarray, order: np.ndarray, cum: np.ndarray, recycle: bool) -> Clients:
    """Give one sample at a time to a random client, of a class drawn from its row of `cum`.

    If a class has run out, the class is drawn again. With `recycle` it also starts again from its full pool; this is
    what "with replacement" means in FedSMOO's recipe. Clients are filled from their last slot backwards.
    """
    clients = len(cum)
    share = len(labels) // clients
    pools = [order[labels[order] == c] for c in range(cum.shape[1])]
    left = [len(pool) for pool in pools]
    free = np.full(clients, share)
    parts = np.empty((clients, share), np.int64)
    unfilled = clients * share
    while unfilled:
        client = rng.randint(clients)
        if free[client] == 0:
            continue
        free[client] -= 1
        unfilled -= 1
        for _ in range(MOST_DRAWS):
            c = int(np.argmax(rng.uniform() <= cum[client]))  # 0 when rounding leaves the last below 1
            if left[c] > 0 or not recycle:
                break
            left[c] = len(pools[c])
        c = c if left[c] > 0 else _draw_again(rng, cum[client], left)
        if left[c] == 0:
            raise SteppeError(
                f"The classes of client {client} have run out with {unfilled + 1} samples left; ask for a larger "
                "alpha, another seed, or dirichlet, which moves samples instead of drawing again."
            )
        left[c] -= 1
        parts[client, free[client]] = pools[c][left[c]]
    return list(parts)


def _draw_again(rng: RandomState, row: np.ndarray, left: list[int]) -> int:
    """Draw classes until one has samples left, as one draw after the other would; the last if none has."""
    before, there = rng.get_state(), np.array(left) > 0
    for count in (100, 10_000, MOST_DRAWS):
        rng.set_state(before)
        classes = np.searchsorted(row, rng.uniform(size=count)) % len(row)
        found = np.flatnonzero(there[classes])[:1]
        if len(found):
            rng.set_state(before)
            rng.uniform(size=found[0] + 1)
            return int(classes[found[0]])
    return int(classes[-1])


def longtail(
    rng: RandomState,
    labels: np.ndarray,
    clients: int,
    alpha: float,
    imbalance: float = 0.5,
    share: float = 0.5,
) -> Clients:
    """Thin out the classes, divide blocks of ten clients by Dirichlet(α), cut into equal sizes (FL-SAM).

    Class c keeps ⌊n/C · imbalance^(c/(C−1))⌋ samples. In a block, clients that hold their fair share get no more, and
    the block is drawn again until each client has `share` of it. Then all blocks are concatenated and cut into clients
    of equal size, so a client may get samples of two neighbours.
    """
    classes = int(labels.max()) + 1
    if imbalance > 1 or share >= 1 or classes < 2:
        raise SteppeError("longtail needs two classes, an imbalance of at most 1 and a share below 1.")
    # The released code thins with the global generator and divides with a second one of the same seed.
    fresh = RandomState()
    fresh.set_state(rng.get_state())
    kept = []
    for c, pool in enumerate(find_pools(labels)):
        rng.shuffle(pool)
        kept.append(pool[: int(len(labels) / classes * imbalance ** (c / (classes - 1)))])
    samples = np.concatenate(kept)
    fresh.shuffle(samples)
    if len(samples) < clients:
        raise SteppeError(f"The long tail keeps {len(samples)} samples for {clients} clients; use fewer clients.")
    block = int(10 / clients * len(samples)) if clients > 10 else len(samples)
    parts: Clients = []
    for first in range(0, clients, 10):
        start = first // 10 * block
        rest = samples[start : start + block] if first + 10 < clients else samples[start:]
        parts += _draw_balanced_block(fresh, rest, labels[rest], classes, min(10, clients - first), alpha, share)
    return np.array_split(np.concatenate(parts), clients)  # the first n mod N clients get one more


def _draw_balanced_block(
    rng: RandomState,
    samples: np.ndarray,
    labels: np.ndarray,
    classes: int,
    clients: int,
    alpha: float,
    share: float,
) -> Clients:
    pools = [samples[labels == c] for c in range(classes)]
    fair = len(samples) / clients
    wanted = int(share * fair)
    best: list[int] = []
    for _ in _count_trials(best, wanted):
        sizes = np.zeros(clients, np.int64)
        cuts = []
        for pool in pools:
            cuts.append(_find_capped_cuts(rng, alpha, sizes < fair, len(pool)))
            sizes += np.diff(cuts[-1], prepend=0, append=len(pool))
        best.append(int(sizes.min()))
        if sizes.min() >= wanted:
            return _gather(pools, cuts)
    raise _make_failure(
        f"longtail({alpha:g}) in a block of {clients} clients", best, wanted, "a smaller share as its third number"
    )
