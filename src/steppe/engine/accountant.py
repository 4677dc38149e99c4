"""The privacy that a run has spent: Rényi accounting by Google's dp-accounting (extra `dp`).

Neighbours differ by one client, present or absent. `rate` is the probability with which a client takes part in a
round, by a draw of its own (Poisson sampling, secret); 1 means that nothing is claimed from sampling. With
sampling, integer orders only: ε is a little looser than could be, never too small.
"""

from __future__ import annotations

from functools import lru_cache

from steppe.core.errors import missing

ORDERS = [1.25, 1.5, 1.75, *range(2, 65), 80, 96, 128, 256, 512, 1024]


def check_installed() -> None:
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise missing("dp needs an accountant to tell ε", "dp") from None


@lru_cache(maxsize=4096)
def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """ε at δ after this many rounds of the (Poisson-sampled) Gaussian mechanism with this noise multiplier."""
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
    orders = ORDERS if rate == 1 else [a for a in ORDERS if a == int(a)]  # others need a series that may not converge
    return float(
        RdpAccountant(orders, dp.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event, rounds).get_epsilon(delta)
    )
