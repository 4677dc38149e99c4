"""Which clients take part in a round. The order of the ids is the official one, not sorted: executors
that go through clients one by one, and recipes that depend on it, see what the released code sees.

    >>> fixed(100, 10, 0).tolist()
    [26, 86, 2, 55, 75, 93, 16, 73, 54, 95]
    >>> bernoulli(100, 0.1, 0).tolist()
    [4, 15, 33, 61, 69, 80, 92]
"""

from __future__ import annotations

import numpy as np
from numpy.random import RandomState

from steppe.core import keyed
from steppe.core.errors import SteppeError


def fixed(clients: int, count: int, round: int, seed: int = 0, official: bool = True) -> np.ndarray:
    """`count` different clients. FedSoL's schedule is a function of the round only (`official`): the same
    for every algorithm and every seed. With official=False it depends on the seed too.
    """
    if not 1 <= count <= clients:
        raise SteppeError(f"{count} of {clients} clients cannot take part; choose between 1 and {clients}.")
    if official:
        return RandomState(round).choice(clients, count, replace=False)
    return keyed.permutation(keyed.key(seed, round, _PURPOSE), clients)[:count].numpy()


_PURPOSE = 0x5A3D  # keeps this use of (seed, round) apart from every other


def bernoulli(clients: int, ratio: float, round: int, seed: int = 20) -> np.ndarray:
    """Each client independently with probability `ratio`, as in the FedSMOO recipe; never nobody."""
    if clients < 1 or not 0 < ratio <= 1:
        raise SteppeError(f"Sampling {clients} clients with ratio {ratio} needs a client and 0 < ratio <= 1.")
    for again in range(10_000):
        chosen = np.flatnonzero(RandomState(round + seed + again).uniform(size=clients) <= ratio)
        if len(chosen):
            return chosen
    raise SteppeError(f"A ratio of {ratio} over {clients} clients samples nobody; use a larger ratio.")
