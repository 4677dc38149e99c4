"""Sampling of the clients that take part in a round.

The ids are in the order of the released code, not sorted, for recipes that depend on the order.

    >>> fixed(100, 10, 0).tolist()
    [26, 86, 2, 55, 75, 93, 16, 73, 54, 95]
    >>> sparse(10**8, 3, 0).tolist()
    [81490080, 27783856, 19142632]
    >>> bernoulli(100, 0.1, 0).tolist()
    [4, 15, 33, 61, 69, 80, 92]
"""

from __future__ import annotations

import numpy as np
from numpy.random import RandomState

from steppe.core import keyed
from steppe.core.errors import SteppeError


def fixed(clients: int, count: int, round: int, seed: int = 0, official: bool = True) -> np.ndarray:
    """Sample `count` different clients.

    FedSoL's schedule (`official`) is a function of the round only: the same for every algorithm and every seed. With
    official=False it also depends on the seed.
    """
    if not 1 <= count <= clients:
        raise SteppeError(f"{count} of {clients} clients cannot take part; choose between 1 and {clients}.")
    if official:
        return RandomState(round).choice(clients, count, replace=False)
    return keyed.permutation(keyed.key(seed, round, _PURPOSE), clients)[:count].numpy()


def sparse(clients: int, count: int, round: int, seed: int = 0) -> np.ndarray:
    """Sample `count` different clients at the cost of `count`, however many clients there are: a schedule of its own.

    The others draw for every client, which takes 20 ms for a million.
    """
    return keyed.choose(keyed.key(seed, round, _PURPOSE), clients, count).numpy()


_PURPOSE = 0x5A3D  # separates this use of (seed, round) from all others


def bernoulli(clients: int, ratio: float, round: int, seed: int = 20) -> np.ndarray:
    """Sample each client independently with probability `ratio`, as in the FedSMOO recipe; at least one client."""
    if clients < 1 or not 0 < ratio <= 1:
        raise SteppeError(f"Sampling {clients} clients with ratio {ratio} needs at least 1 client and 0 < ratio <= 1.")
    for again in range(10_000):
        chosen = np.flatnonzero(RandomState(round + seed + again).uniform(size=clients) <= ratio)
        if len(chosen):
            return chosen
    raise SteppeError(f"A ratio of {ratio} over {clients} clients samples no client; use a larger ratio.")
