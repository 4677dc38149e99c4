"""Norm bounding (Sun et al., 2019, arXiv:1911.07963): nobody's upload is longer than a limit.

    v_i ← v_i · min(1, M / ‖v_i‖)        v_i: all that client i uploads (update, control variates, …) as one vector

The server scales before anything is averaged, so a boosted update counts for M at most. Goes with any reduction
(mean, median, Krum, …). Keeps nothing, sends nothing.

Deviations: the paper scales the update; here what a part uploads beside it is bounded too, by one norm for all,
because the server acts on it as well. Clients' own states (duals, variates) do not learn that they were scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.layout import Tensors
from steppe.core.part import Part
from steppe.core.scopes import ServerTurn
from steppe.core.settings import Bound
from steppe.core.validate import joint_norms


@dataclass(frozen=True)
class NormBound(Part):
    name = "norm_bound"
    citation = """@misc{norm_bound,
      title = {Can You Really Backdoor Federated Learning?},
      author = {Sun, Ziteng and Kairouz, Peter and Suresh, Ananda Theertha and McMahan, H. Brendan},
      year = {2019}, eprint = {1911.07963}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    limit: Bound

    def screen(self, rows: Tensors, s: ServerTurn) -> Tensors:
        return bounded(rows, self.limit)


def bounded(rows: Tensors, limit: float) -> Tensors:
    """Every client's rows scaled together to a joint norm of at most `limit`; shorter ones stay as they are."""
    factor: Tensor = (limit / joint_norms(rows)).clamp(max=1)  # (n,); 1 where the norm is 0
    return {k: v * factor.to(v.dtype).reshape(-1, *[1] * (v.ndim - 1)) for k, v in rows.items()}
