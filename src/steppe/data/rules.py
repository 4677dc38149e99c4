"""The rules by which training samples are divided among clients.

Each takes a generator, the labels, the number of clients and its own numbers, and returns the indices of
each client. The rules of published recipes draw from numpy's legacy generator in the order of the released
code, so that the clients are the paper's own, sample by sample. None can run forever: a rule that must
retry has a limit, and then says what it could not meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
from numpy.random import RandomState

from steppe.core.errors import SteppeError

Clients = list[np.ndarray]


def _pools(labels: np.ndarray) -> Clients:
    """The indices of each class, in the order of the data set."""
    return [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]


def _corner(size: int, place: int) -> np.ndarray:
    q = np.zeros(size)
    q[place] = 1
    return q


def _proportions(rng: RandomState, alpha: float, size: int) -> np.ndarray:
    """Dirichlet(α·1). For a tiny α every gamma underflows; the limit is one random corner."""
    q = rng.dirichlet(np.repeat(alpha, size))
    return q if np.isfinite(q).all() else _corner(size, rng.randint(size))


def _trials(best: list[int], wanted: float) -> Iterator[int]:
    """Count trials until the limit; the rule notes each trial's smallest client in `best`.

    LDA(0.05) of CIFAR-10 needs 3,482 trials in FedSoL's code and 19,126 in FedNTD's, so the limit is high; a case
    whose best is not even a quarter of what is wanted after 500 trials is given up.
    """
    for trial in range(20_000):
        if trial == 500 and max(best, default=0) < wanted / 4:
            return
        yield trial


def _failure(rule: str, best: list[int], wanted: float, change: str) -> SteppeError:
    return SteppeError(
        f"{rule}: in {len(best)} trials the smallest client got at most {max(best)} "
        f"samples where {wanted:g} are wanted; use fewer clients, a larger alpha, another seed, or {change}."
    )


def iid(rng: RandomState, labels: np.ndarray, clients: int) -> Clients:
    """⌊n/N⌋ samples each; what is left is shuffled again for every client, as in FedSoL's code."""
    rest = np.arange(len(labels))
    share = len(labels) // clients
    parts = []
    for _ in range(clients):
        rng.shuffle(rest)
        parts.append(rest[:share].copy())
        rest = rest[share:]
    return parts


def iid_balanced(rng: RandomState, labels: np.ndarray, clients: int) -> Clients:
    """Every class in equal shares: CIFAR-100's IID in FedDyn's and MAN's code, which takes images as they come."""
    shares = [np.array_split(rng.permutation(pool), clients) for pool in _pools(labels)]
    return [np.concatenate(own) for own in zip(*shares, strict=True)]


def sharding(rng: RandomState, labels: np.ndarray, clients: int, shards: float) -> Clients:
    """Each class is cut into ⌊s·N/C⌋ contiguous shards, and a client gets s shards (FedSoL's code).

    Kept from that code: shards are of equal size within a class only, a client may draw one class twice,
    and when s·N is no multiple of C, some list entries are repeated, find no shard and are skipped, and a
    client left without any holds the same samples as the client before it.
    Every draw comes from numpy (Python's own `random` is seeded there too, but not used).
    """
    pools = _shards(labels, clients, shards)
    wanted = np.repeat(np.arange(len(pools)), len(pools[0]))
    rng.shuffle(wanted)
    missing = -len(wanted) % clients
    return _dealt(rng, pools, np.concatenate([wanted, wanted[1 : missing + 1]]), clients)


def sharding_fedntd(rng: RandomState, labels: np.ndarray, clients: int, shards: float) -> Clients:
    """As `sharding`, but Python's generator, of the same seed, says who gets which class (FedNTD's code)."""
    pools = _shards(labels, clients, shards)
    wanted = [*range(len(pools))] * len(pools[0])
    Random(int(rng.get_state()[1][0])).shuffle(wanted)  # type: ignore[index]  # a fresh state begins with its seed
    if len(wanted) % clients:
        raise SteppeError(f"sharding_fedntd({shards:g}) needs shards for {clients} clients, and has {len(wanted)}.")
    return _dealt(rng, pools, np.array(wanted), clients)


def _shards(labels: np.ndarray, clients: int, shards: float) -> list[list[list[int]]]:
    """The shards of each class."""
    classes = labels.max() + 1
    each = int(int(shards) * clients / classes)
    if shards != int(shards) or each == 0:
        raise SteppeError(
            f"sharding({shards:g}) over {clients} clients gives {int(shards) * clients} whole shards for "
            f"{classes} classes; ask for more shards a client or more clients."
        )
    pools = []
    for pool in _pools(labels):
        body, tail = np.split(pool, [len(pool) - len(pool) % each])
        cut = [list(shard) for shard in body.reshape(each, -1)]
        for shard, extra in zip(cut, tail, strict=False):
            shard.append(extra)
        pools.append(cut)
    return pools


def _dealt(rng: RandomState, pools: list[list[list[int]]], wanted: np.ndarray, clients: int) -> Clients:
    """Random shards of the classes that each client is to get."""
    parts: Clients = []
    for row in wanted.reshape(clients, -1):
        drawn = [pools[c].pop(rng.choice(len(pools[c]), replace=False)) for c in row if pools[c]]
        parts.append(np.concatenate(drawn).astype(np.int64) if drawn else parts[-1].copy())
    return parts


def lda(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float = 10) -> Clients:
    """FedSoL's: Dirichlet(α) over clients for each class, none for clients that already hold n/N.

    Everything is drawn again until each client has `minimum` samples; the number of trials is bounded.
    """
    return _lda(rng, labels, clients, alpha, minimum, afresh=False)


def lda_fedntd(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float = 10) -> Clients:
    """As `lda`, but every trial starts from the order of the data set, and failed ones are not shuffled (FedNTD's)."""
    return _lda(rng, labels, clients, alpha, minimum, afresh=True)


def _lda(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float, afresh: bool) -> Clients:
    fair = len(labels) // clients
    if fair < minimum:
        raise SteppeError(
            f"{len(labels)} samples cannot give {clients} clients {minimum:g} each; ask for at most "
            f"{int(len(labels) // minimum)} clients or write lda({alpha:g}, {fair})."
        )
    pools = ordered = _pools(labels)  # shuffled in place, so a retry goes on from the order before it
    spent = np.empty(len(labels), np.int64)
    best: list[int] = []
    for _ in _trials(best, minimum):
        if afresh:
            pools = [pool.copy() for pool in ordered]
        sizes = np.zeros(clients, np.int64)
        cuts = []
        for pool in pools:
            rng.shuffle(pool)
            cuts.append(_capped_cuts(rng, alpha, sizes < fair, len(pool)))
            sizes += np.diff(cuts[-1], prepend=0, append=len(pool))
        best.append(int(sizes.min()))
        if sizes.min() >= minimum:
            parts = _gather(pools, cuts)
            for part in parts:
                rng.shuffle(part)
            return parts
        for size in [] if afresh else sizes:  # FedSoL's code shuffles a failed trial too: only its draws matter
            rng.shuffle(spent[:size])
    change = f"dirichlet({alpha:g}), which moves samples instead of trying again"
    if max(best):
        change = f"a smaller minimum such as lda({alpha:g}, {max(best)}), or {change}"
    raise _failure(f"lda({alpha:g}) over {clients} clients", best, minimum, change)


def _capped_cuts(rng: RandomState, alpha: float, open_: np.ndarray, size: int) -> np.ndarray:
    """Where to cut a class so that clients get Dirichlet shares of it, and full clients nothing."""
    q = _proportions(rng, alpha, len(open_)) * open_
    if q.sum() == 0:  # a tiny α put everything on full clients; the limit is a corner of the open ones
        free = np.flatnonzero(open_) if open_.any() else np.arange(len(open_))
        q = _corner(len(open_), rng.choice(free))
    return (np.cumsum(q / q.sum()) * size).astype(np.int64)[:-1]


def _gather(pools: Clients, cuts: Clients) -> Clients:
    pieces = [np.split(pool, cut) for pool, cut in zip(pools, cuts, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def dirichlet(rng: RandomState, labels: np.ndarray, clients: int, alpha: float, minimum: float = 1) -> Clients:
    """Each class is divided by Dirichlet(α) over clients; every sample is used once, nothing is retried.

    A client with fewer than `minimum` samples takes what it lacks from the largest one.
    """
    least = math.ceil(minimum)
    if len(labels) < clients * least:
        raise SteppeError(
            f"{len(labels)} samples cannot give {clients} clients {least} each; use fewer clients or "
            f"write dirichlet({alpha:g}, {len(labels) // clients})."
        )
    pools = _pools(labels)
    cuts = []
    for pool in pools:
        rng.shuffle(pool)
        cuts.append(_capped_cuts(rng, alpha, np.ones(clients, bool), len(pool)))
    parts = _gather(pools, cuts)
    for part in parts:
        rng.shuffle(part)
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < least):
        while (lacking := least - int(sizes[client])) > 0:
            donor = sizes.argmax()  # above the minimum, because the mean is not below it
            taken = min(lacking, int(sizes[donor]) - least)
            parts[client] = np.concatenate([parts[client], parts[donor][-taken:]])
            parts[donor] = parts[donor][:-taken]
            sizes[donor] -= taken
            sizes[client] += taken
    return parts


def dirichlet_replace(rng: RandomState, labels: np.ndarray, clients: int, alpha: float) -> Clients:
    """FedSMOO's: each client has its own Dirichlet(α) over classes; equal sizes; samples may repeat."""
    order = rng.permutation(len(labels))
    return _filled(rng, labels, order, np.cumsum(_priors(rng, labels, clients, alpha), axis=1), recycle=True)


def dirichlet_once(rng: RandomState, labels: np.ndarray, clients: int, alpha: float) -> Clients:
    """FedDyn's, as in MAN's code: each client has its own Dirichlet(α) over classes; equal sizes, no sample twice."""
    cum = np.cumsum(_priors(rng, labels, clients, alpha), axis=1)
    return _filled(rng, labels, np.arange(len(labels)), cum, recycle=False)


def _priors(rng: RandomState, labels: np.ndarray, clients: int, alpha: float) -> np.ndarray:
    classes = labels.max() + 1
    prior = rng.dirichlet(np.repeat(alpha, classes), clients)
    for row in np.flatnonzero(~np.isfinite(prior).all(axis=1)):
        prior[row] = _corner(classes, rng.randint(classes))
    return prior


def pathological(rng: RandomState, labels: np.ndarray, clients: int, active: float) -> Clients:
    """FedSMOO's: each client has c classes in equal shares; equal sizes; samples may repeat."""
    order = rng.permutation(len(labels))
    classes = labels.max() + 1
    if active != int(active) or active > classes:
        raise SteppeError(f"pathological({active:g}) needs a whole number of at most {classes} classes.")
    rows = np.tile(np.arange(classes) < active, (clients, 1)).astype(np.int64)
    for row in rows:
        rng.shuffle(row)
    return _filled(rng, labels, order, np.cumsum(rows, axis=1) / active * rows, recycle=True)


def _filled(rng: RandomState, labels: np.ndarray, order: np.ndarray, cum: np.ndarray, recycle: bool) -> Clients:
    """Give one sample at a time to a random client, of a class drawn from its row of `cum`.

    The class is drawn anew where it has run out; `recycle`: and starts again from its full pool, which is what
    "with replacement" means in FedSMOO's recipe. Clients fill from their last slot backwards.
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
        for _ in range(1_000_000):
            c = int(np.argmax(rng.uniform() <= cum[client]))  # 0 when rounding leaves the last below 1
            if left[c] > 0:
                break
            left[c] = len(pools[c]) if recycle else 0
        else:
            raise SteppeError(
                f"The classes of client {client} are used up with {unfilled + 1} samples to go; ask for a larger "
                "alpha, another seed, or dirichlet, which moves samples instead of drawing again."
            )
        left[c] -= 1
        parts[client, free[client]] = pools[c][left[c]]
    return list(parts)


def longtail(
    rng: RandomState,
    labels: np.ndarray,
    clients: int,
    alpha: float,
    imbalance: float = 0.5,
    share: float = 0.5,
) -> Clients:
    """FL-SAM's: thin the classes out, divide blocks of ten clients by Dirichlet(α), cut into equal sizes.

    Class c keeps ⌊n/C · imbalance^(c/(C−1))⌋ samples. In a block, clients that hold their fair share get
    no more, and the block is drawn again until each client has `share` of it; then all blocks are put one
    after the other and cut into equal clients, so a client may straddle two neighbours' samples.
    """
    classes = int(labels.max()) + 1
    if imbalance > 1 or share >= 1 or classes < 2:
        raise SteppeError("longtail needs two classes, an imbalance of at most 1 and a share below 1.")
    # The released code thins with the global generator and divides with another of the same seed.
    fresh = RandomState()
    fresh.set_state(rng.get_state())
    kept = []
    for c, pool in enumerate(_pools(labels)):
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
        parts += _balanced_block(fresh, rest, labels[rest], classes, min(10, clients - first), alpha, share)
    return np.array_split(np.concatenate(parts), clients)  # the first n mod N clients get one more


def _balanced_block(
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
    for _ in _trials(best, wanted):
        sizes = np.zeros(clients, np.int64)
        cuts = []
        for pool in pools:
            cuts.append(_capped_cuts(rng, alpha, sizes < fair, len(pool)))
            sizes += np.diff(cuts[-1], prepend=0, append=len(pool))
        best.append(int(sizes.min()))
        if sizes.min() >= wanted:
            return _gather(pools, cuts)
    raise _failure(
        f"longtail({alpha:g}) in a block of {clients} clients", best, wanted, "a smaller share as its third number"
    )


# name -> (rule, how to write it)
PARTITIONS: dict[str, tuple[Callable[..., Clients], str]] = {
    "iid": (iid, "iid: equal random shares"),
    "iid_balanced": (iid_balanced, "iid_balanced: equal shares of every class, as MAN has CIFAR-100"),
    "sharding": (sharding, "sharding(s): s one-class shards a client, as in FedSoL"),
    "sharding_fedntd": (sharding_fedntd, "sharding_fedntd(s): the same as FedNTD's code draws it"),
    "lda": (lda, "lda(alpha[, min]): size-capped Dirichlet, as in FedSoL; at least min=10 samples a client"),
    "lda_fedntd": (lda_fedntd, "lda_fedntd(alpha[, min]): the same as FedNTD's code draws it"),
    "dirichlet": (dirichlet, "dirichlet(alpha[, min]): plain Dirichlet; at least min=1 samples a client"),
    "dirichlet_replace": (dirichlet_replace, "dirichlet_replace(alpha): equal sizes, repeats, as in FedSMOO"),
    "dirichlet_once": (dirichlet_once, "dirichlet_once(alpha): equal sizes, no repeats, as in FedDyn and MAN"),
    "pathological": (pathological, "pathological(c): c classes a client, equal sizes, repeats, as in FedSMOO"),
    "longtail": (longtail, "longtail(alpha[, imbalance[, share]]): thinned classes, then blocks, as in FL-SAM"),
}

OFFICIAL_SEEDS = {
    "iid": 19940817,
    "iid_balanced": 0,
    "sharding": 19940817,
    "sharding_fedntd": 19940817,
    "lda": 19940817,
    "lda_fedntd": 19940817,
    "dirichlet": 0,
    "dirichlet_replace": 20,
    "dirichlet_once": 23217,  # the first of the three in MAN's code; the others are 43217 and 83217
    "pathological": 20,
    "longtail": 1,
}
