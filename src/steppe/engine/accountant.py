"""Privacy accounting: the ε that a run has spent, by Rényi accounting with Google's dp-accounting (extra `dp`).

Neighbouring data sets differ by one client, added or removed. `rate` is the probability that a client takes part in
a round. Each client is drawn independently and in secret (Poisson sampling). A rate of 1 claims no amplification by
sampling. With sampling, only integer orders are used: ε is then slightly loose, but never too small.
"""

from __future__ import annotations

from functools import lru_cache

from steppe.core.errors import missing

ORDERS = [1.25, 1.5, 1.75, *range(2, 65), 80, 96, 128, 256, 512, 1024]


def check_installed() -> None:
    """Raise an error that names the extra if dp-accounting is not installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise missing("dp needs a privacy accountant to compute ε", "dp") from None


@lru_cache(maxsize=4096)
def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return ε at δ after `rounds` rounds of the (Poisson-sampled) Gaussian mechanism with noise multiplier `noise`."""
    if rounds == 0 or rate == 0:
        return 0.0
    if noise == 0:
        return float("inf")
    check_installed()
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    event: dp.DpEvent = dp.GaussianDpEvent(noise)
    if rate < 1:
        event = dp.PoissonSampledDpEvent(rate, event)
    orders = (
        ORDERS if rate == 1 else [a for a in ORDERS if a == int(a)]
    )  # fractional ones need a series that may not converge
    return float(
        RdpAccountant(orders, dp.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, rounds).get_epsilon(delta)
    )
