"""Robust aggregation: a minority of clients, whatever they send, does not determine the result.

Median, trimmed mean    Yin et al., ICML 2018, arXiv:1803.01498
Krum, multi-Krum        Blanchard et al., NeurIPS 2017, arXiv:1703.02757

Every client has the same weight, because its sample count is only a claim. The rule applies to all uploads, not to
the update alone, so that a client cannot poison SCAFFOLD's variates behind a normal update. If the algorithm uses the
sum over all N clients, n/N times the robust value replaces it. An attack from one side still moves a median slightly;
states that sum over rounds (SCAFFOLD's variate, FedDyn's dual) magnify this, within bounds. Krum's choice does not.

Deviations: k is rounded up (Yin et al. leave it open), so that a small cut also protects a small round, but at least
one value is kept. Krum's squared distances of each upload are first divided by their median over the pairs, so that
uploads of different sizes have equal influence; with one upload this changes nothing. Running statistics (batch norm)
are reduced like everything else but do not influence Krum's choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import torch
from torch import Tensor

from steppe.core.errors import RunFailed
from steppe.core.layout import Tensors
from steppe.core.part import Part
from steppe.core.ranges import Count, FromOne, Range
from steppe.core.scopes import ServerTurn
from steppe.core.stacking import flatten_rows
from steppe.core.widest_float import find_widest


def trimmed(rows: Tensor, cut: float) -> Tensor:
    """Return the mean over clients of each coordinate's middle values: (n, …) -> (…)."""
    n = len(rows)
    k = min(ceil(cut * n - 1e-9), (n - 1) // 2)
    if not k:
        return rows.mean(0)
    pieces = torch.split(flatten_rows(rows), 1 << 20, dim=1)  # sorting keeps an index of eight bytes for every number
    return torch.cat([piece.sort(0).values[k : n - k].mean(0) for piece in pieces]).reshape(rows.shape[1:])


@dataclass(frozen=True)
class TrimmedMean(Part):
    """Robust aggregation: the mean of each coordinate's middle values (Yin et al., ICML 2018).

        Δ̄ = 1/(n − 2 k) Σ_{j=k+1}^{n−k} Δ_{(j)}      for each coordinate: Δ_{(j)} the j-th smallest of the n values
        k = ⌈q n⌉                                    q is `cut`

    `cut`   q, the share of values that is left out on each side.
    """

    name = "trimmed_mean"
    citation = """@inproceedings{median,
      title = {Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates},
      author = {Yin, Dong and Chen, Yudong and Ramchandran, Kannan and Bartlett, Peter},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2018}, eprint = {1803.01498}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    cut: Annotated[float, Range(0, 0.5)] = 0.1

    def reduce(self, rows: Tensors, s: ServerTurn) -> Tensors:
        return {k: trimmed(v, self.cut) for k, v in rows.items()}


@dataclass(frozen=True)
class Median(Part):
    """Robust aggregation: the median of each coordinate (Yin et al., ICML 2018).

        Δ̄ = median_{i∈S}(Δ_i)               for each coordinate; the mean of the two middle values if n is even

    It has no settings.
    """

    name = "median"
    citation = TrimmedMean.citation
    addable = True
    outer = True

    def reduce(self, rows: Tensors, s: ServerTurn) -> Tensors:
        return {k: trimmed(v, 0.5) for k, v in rows.items()}


@dataclass(frozen=True)
class Krum(Part):
    """Robust aggregation: the reply nearest to the others', or the mean of several (Blanchard et al., NeurIPS 2017).

        q_i = Σ_{j∈B_i} ‖v_i − v_j‖²         B_i: the n − f − 2 replies nearest to v_i; f is `bad`
        Δ̄ = (1/m) Σ_{i∈M} Δ_i                M: the m replies with the lowest scores q_i; m is `keep`

    `bad`    f, the number of clients that may send anything.
    `keep`   m, the number of replies that are averaged; more than 1 is multi-Krum.
    """

    name = "krum"
    citation = """@inproceedings{krum,
      title = {Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent},
      author = {Blanchard, Peva and El Mhamdi, El Mahdi and Guerraoui, Rachid and Stainer, Julien},
      booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
      year = {2017}, eprint = {1703.02757}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    bad: Count = 1
    keep: FromOne = 1

    @property
    def fewest(self) -> int:
        """Return how many replies Krum needs to outvote the bad ones and to find `keep` good ones."""
        return max(2 * self.bad + 3, self.keep + self.bad)

    def reduce(self, rows: Tensors, s: ServerTurn) -> Tensors:
        n = len(rows["update"])
        if n < self.fewest:
            raise RunFailed(f"round {int(s.round) + 1}: krum:bad={self.bad},keep={self.keep} needs {self.fewest} "
                            f"replies or more, but this round has {n}: sample more clients, or lower bad or "
                            "keep.")  # fmt: skip
        apart = torch.stack([_distances(v) for k, v in rows.items() if not k.startswith("@")]).sum(0)  # (n, n)
        nearest = apart.fill_diagonal_(float("inf")).sort(1).values[:, : n - self.bad - 2]
        chosen = nearest.sum(1).argsort(stable=True)[: self.keep]
        return {k: v[chosen].mean(0) for k, v in rows.items()}


def _distances(rows: Tensor) -> Tensor:
    """Return the squared distances between clients, divided by their median over the pairs, in float64: (n, n)."""
    rows = flatten_rows(rows)
    wide = find_widest(rows.device)
    apart = torch.stack([torch.linalg.vector_norm(rows - one, dim=1, dtype=wide) for one in rows]).square()
    pairs = apart[torch.ones_like(apart, dtype=torch.bool).triu(1)]
    return apart / pairs.median().clamp(min=1e-30)
