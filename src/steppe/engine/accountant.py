"""Privacy accounting: the ε that a run has spent, by Google's dp-accounting (extra `dp`), as the smaller of two bounds.

Privacy loss distributions (Koskela, Jälkö & Honkela, AISTATS 2020; Doroshenko et al., PETS 2022) are exact up to a
grid, whose error is on the safe side. Rényi accounting (Mironov 2017) is looser, by up to several times for little
noise. It determines how fine the grid must be, and is used alone if δ is small compared with the rounding of the grid.

Neighbouring data sets differ by one client, added or removed. `rate` is the probability that a client takes part in
a round. Each client is drawn independently and in secret (Poisson sampling). A rate of 1 claims no amplification by
sampling.
"""

from __future__ import annotations

import math
from functools import lru_cache

from steppe.core.errors import make_missing_error

ORDERS = [1.25, 1.5, 1.75, *range(2, 65), 80, 96, 128, 256, 512, 1024]
SMALLEST = 1e-10  # smallest δ for the grid; below it, rounding errors of the transforms would matter
FINEST, COARSEST = 1e-4, 0.1  # spacing of the grid, in units of ε


def check_installed() -> None:
    """Raise an error that names the extra if dp-accounting is not installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise make_missing_error("dp needs a privacy accountant to compute ε", "dp") from None


@lru_cache(maxsize=4096)
def compute_epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return ε at δ after `rounds` rounds of the (Poisson-sampled) Gaussian mechanism with noise multiplier `noise`."""
    if rounds == 0 or rate == 0:
        return 0.0
    if noise == 0:
        return float("inf")
    check_installed()
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    if rate == 1:  # several Gaussian mechanisms equal one with less noise
        event: dp.DpEvent = dp.GaussianDpEvent(noise / math.sqrt(rounds))
        rounds = 1
    else:
        event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    orders = ORDERS if rate == 1 else [a for a in ORDERS if a == int(a)]  # others need a series that may not converge
    bound = float(RdpAccountant(orders, relation).compose(event, rounds).get_epsilon(delta))
    if delta < SMALLEST or not math.isfinite(bound):
        return bound
    grid = min(max(bound / (100 * math.sqrt(rounds)), FINEST), COARSEST)  # its error grows with the rounds
    fine = PLDAccountant(relation, value_discretization_interval=grid).compose(event, rounds).get_epsilon(delta)
    return min(bound, float(fine))
