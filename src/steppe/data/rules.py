"""The rules by which training samples are divided among clients.

Each rule takes a generator, the labels, the number of clients and its own numbers, and returns the indices of each
client. The rules of published recipes draw from numpy's legacy generator in the order of the released code, so that the
clients are exactly those of the paper, sample by sample. No rule can run forever: the number of retries is limited, and
the error says which condition was not met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from numpy.random import RandomState

from steppe.core.errors import SteppeError
from steppe.data.dirichlet_rules import (
    Clients,
    dirichlet,
    dirichlet_once,
    dirichlet_replace,
    find_pools,
    lda,
    lda_fedntd,
    longtail,
    pathological,
)
from steppe.data.draw_clients import drawn


def iid(rng: RandomState, labels: np.ndarray, clients: int) -> Clients:
    """Give each client ⌊n/N⌋ samples; the rest is shuffled again for every client, as in FedSoL's code."""
    rest = np.arange(len(labels))
    share = len(labels) // clients
    parts = []
    for _ in range(clients):
        rng.shuffle(rest)
        parts.append(rest[:share].copy())
        rest = rest[share:]
    return parts


def iid_balanced(rng: RandomState, labels: np.ndarray, clients: int) -> Clients:
    """Give each client an equal share of every class (CIFAR-100's IID in the code of FedDyn and MAN)."""
    shares = [np.array_split(rng.permutation(pool), clients) for pool in find_pools(labels)]
    return [np.concatenate(own) for own in zip(*shares, strict=True)]


def sharding(rng: RandomState, labels: np.ndarray, clients: int, shards: float) -> Clients:
    """Cut each class into ⌊s·N/C⌋ contiguous shards, and give each client s shards (FedSoL's code).

    As in that code, shards have equal size only within a class, and a client may draw one class twice. If s·N is not a
    multiple of C, some list entries are repeated, find no shard and are skipped, and a client left without shards holds
    the same samples as the client before it. All draws come from numpy (the released code also seeds Python's `random`,
    but does not use it).
    """
    pools = _make_shards(labels, clients, shards)
    wanted = np.repeat(np.arange(len(pools)), len(pools[0]))
    rng.shuffle(wanted)
    missing = -len(wanted) % clients
    return _deal(rng, pools, np.concatenate([wanted, wanted[1 : missing + 1]]), clients)


def sharding_fedntd(rng: RandomState, labels: np.ndarray, clients: int, shards: float) -> Clients:
    """Do the same as `sharding`, but assign classes with Python's generator of the same seed (FedNTD's code)."""
    pools = _make_shards(labels, clients, shards)
    wanted = [*range(len(pools))] * len(pools[0])
    Random(int(rng.get_state()[1][0])).shuffle(wanted)  # type: ignore[index]  # a fresh state begins with its seed
    if len(wanted) % clients:
        raise SteppeError(f"sharding_fedntd({shards:g}) has {len(wanted)} shards, not a multiple of {clients} clients.")
    return _deal(rng, pools, np.array(wanted), clients)


def _make_shards(labels: np.ndarray, clients: int, shards: float) -> list[list[list[int]]]:
    """Return the shards of each class."""
    classes = labels.max() + 1
    each = int(int(shards) * clients / classes)
    if shards != int(shards) or each == 0:
        raise SteppeError(
            f"sharding({shards:g}) over {clients} clients gives {int(shards) * clients} whole shards for "
            f"{classes} classes; ask for more shards per client or more clients."
        )
    pools = []
    for pool in find_pools(labels):
        body, tail = np.split(pool, [len(pool) - len(pool) % each])
        cut = [list(shard) for shard in body.reshape(each, -1)]
        for shard, extra in zip(cut, tail, strict=False):
            shard.append(extra)
        pools.append(cut)
    return pools


def _deal(rng: RandomState, pools: list[list[list[int]]], wanted: np.ndarray, clients: int) -> Clients:
    """Give each client random shards of its classes."""
    parts: Clients = []
    for row in wanted.reshape(clients, -1):
        drawn = [pools[c].pop(rng.choice(len(pools[c]), replace=False)) for c in row if pools[c]]
        parts.append(np.concatenate(drawn).astype(np.int64) if drawn else parts[-1].copy())
    return parts


def natural(rng: RandomState, groups: np.ndarray, clients: int) -> Clients:
    """Give each client the samples that the data say are its own; of more clients, those with the most samples."""
    sizes = np.bincount(groups)
    present = int((sizes > 0).sum())
    if clients > present:
        raise SteppeError(f"The data have {present} clients, but clients is {clients}: set clients to at most "
                          f"{present}.")  # fmt: skip
    largest = np.sort(np.argsort(-sizes, kind="stable")[:clients])
    own = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])  # not a search per client
    return [own[client] for client in largest]


# name -> (rule, how to write it)
PARTITIONS: dict[str, tuple[Callable[..., Sequence[np.ndarray]], str]] = {
    "iid": (iid, "iid: equal random shares"),
    "iid_balanced": (iid_balanced, "iid_balanced: equal shares of every class, as MAN divides CIFAR-100"),
    "sharding": (sharding, "sharding(s): s one-class shards per client, as in FedSoL"),
    "sharding_fedntd": (sharding_fedntd, "sharding_fedntd(s): the same, with the draws of FedNTD's code"),
    "lda": (lda, "lda(alpha[, min]): size-capped Dirichlet, as in FedSoL; at least min=10 samples per client"),
    "lda_fedntd": (lda_fedntd, "lda_fedntd(alpha[, min]): the same, with the draws of FedNTD's code"),
    "dirichlet": (dirichlet, "dirichlet(alpha[, min]): plain Dirichlet; at least min=1 samples per client"),
    "dirichlet_replace": (dirichlet_replace, "dirichlet_replace(alpha): equal sizes, with repeats, as in FedSMOO"),
    "dirichlet_once": (dirichlet_once, "dirichlet_once(alpha): equal sizes, without repeats, as in FedDyn and MAN"),
    "pathological": (pathological, "pathological(c): c classes per client, equal sizes, with repeats, as in FedSMOO"),
    "natural": (natural, "natural: the clients that the data define (such as hospitals), or the largest of them"),
    "drawn": (drawn, "drawn(n[, c]): n samples per client, of c classes; drawn when needed, for millions of clients"),
    "longtail": (
        longtail,
        "longtail(alpha[, imbalance[, share]]): long-tailed classes, divided in blocks, as in FL-SAM",
    ),
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
    "natural": 0,
    "drawn": 0,
    "longtail": 1,
}
