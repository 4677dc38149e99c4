"""Norm bounding (Sun et al., 2019, arXiv:1911.07963): nobody's upload is longer than a limit.

    v_i ← v_i · min(1, M / ‖v_i‖)        v_i: all that client i uploads (update, control variates, …) as one vector

The server scales before anything is averaged, so a boosted update counts for M at most. Goes with any reduction
(mean, median, Krum, …). Keeps nothing, sends nothing.

A client knows the limit too, so it shrinks what it keeps of its own (duals, variates: `Part.shrink`) by the same
factor: otherwise the server's mean of them would be wrong for good after one long upload.

Deviations: the paper scales the update; here what a part uploads with it is bounded too, by one norm for all, because
the server acts on it as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Bound


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

    def screen(self, norms: Tensor) -> Tensor:
        return share_below(self.limit, norms)


def share_below(limit: float, norms: Tensor) -> Tensor:
    """Return what brings vectors of these norms to `limit` at most; 1 for shorter ones."""
    return (limit / norms).clamp(max=1)
