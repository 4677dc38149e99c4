"""Norm bounding (Sun et al., 2019, arXiv:1911.07963): no client's upload is longer than a limit.

    v_i ← v_i min(1, M / ‖v_i‖)          v_i: all uploads of client i (update, control variates, …) as one vector

The server scales before anything is averaged, so a boosted update counts for at most M. It works with any reduction
(mean, median, Krum, …), keeps nothing and sends nothing.

The limit is also applied on the client, which shrinks its own states (duals, variates: `Part.shrink`) by the same
factor. Otherwise the server's mean of them would stay wrong after one long upload.

`limit`   M, the largest norm of a client's uploads.

Deviations: the paper scales the update; here the parts' uploads are bounded too, by one norm for all, because the
server also acts on them.
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
    """Return the factors that scale vectors of these norms to at most `limit`; 1 for shorter ones."""
    return (limit / norms).clamp(max=1)
