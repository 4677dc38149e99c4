"""The locally estimated perturbation of FedLESAM (Fan et al., ICML 2024, arXiv:2405.18890): SAM with one gradient.

    direction = g(w + ρ unit(x_old − x))           constant during a round; an older global model lies uphill

`paper` and `paper_init` keep x_old on the client and send nothing; the others keep nothing and send the direction down.

`rho`          ρ, the radius of the ascent.
`variant`      which x_old, and which norm:
`paper`        x_old is the model that the client received when it was last active; no perturbation the first time.
`paper_init`   the same, with x_old = x⁰ the first time (the paper's text allows either).
`last_round`   x_old is the global model of the round before, the same for all: the intention of the released code.
`sum_norm`     as last_round, divided by the sum of the tensors' norms instead of the norm of all, as the code intends.
`official`     as the code runs: the flat update is indexed by the number of the tensor, so all entries of tensor j move
               by the same number (x_old − x)[j] / Σ_j |(x_old − x)[j]|, over the first numbers of the first tensors.
               The radius then has little to do with ρ (about 54 ρ on a ResNet-18): published values of ρ do not carry
               over.

Deviations: ε = 1e-7 in every norm, as in the code; the paper has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.layout import Layout
from steppe.core.part import Part, unit
from steppe.core.ranges import Amount
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle

Variant = Literal["paper", "paper_init", "last_round", "sum_norm", "official"]


@dataclass(frozen=True)
class LocallyEstimatedSAM(Part):
    name = "locally_estimated_sam"
    citation = """@inproceedings{fedlesam,
      title = {Locally Estimated Global Perturbations are Better than Local Perturbations for Federated
        Sharpness-aware Minimization},
      author = {Fan, Ziqing and Hu, Shengchao and Yao, Jiangchao and Niu, Gang and Zhang, Ya and Sugiyama, Masashi
        and Wang, Yanfeng},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2024}, eprint = {2405.18890}, archiveprefix = {arXiv}
    }"""
    addable = True
    rho: Amount = 0.1
    variant: Variant = "paper"

    @property
    def down(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.variant in ("paper", "paper_init") else ("ascent",)

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {name: torch.zeros_like(x) for name in self.down}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        if self.down:
            return {}
        return {"old": x.clone()} | ({"seen": x.new_zeros(())} if self.variant == "paper" else {})

    def receive(self, s: ClientRound) -> None:
        if not self.down:
            ascent = unit(s.state["old"] - s.x, 1e-7)
            s.state["ascent"] = s.state["seen"] * ascent if "seen" in s.state else ascent

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w + self.rho * (s.down if self.down else s.state)["ascent"])

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        if not self.down:
            s.state["old"] = s.x
        if "seen" in s.state:
            s.state["seen"] = torch.ones_like(s.state["seen"])
        return delta

    def settle(self, x: Tensor, s: Aggregation) -> None:
        if self.down:
            s.state["ascent"] = _scale(s.x - x, s.layout, self.variant)


def _scale(back: Tensor, layout: Layout, variant: Variant) -> Tensor:
    if variant == "last_round":
        return unit(back, 1e-7)
    if variant == "sum_norm":
        return back / (torch.stack([torch.linalg.vector_norm(p) for p in layout.pieces(back)]).sum() + 1e-7)
    return by_tensor_number(back, layout)


def by_tensor_number(v: Tensor, layout: Layout) -> Tensor:
    """Reproduce a bug of several released programs: fill tensor j with v[j] / Σ_j |v[j]|."""
    pieces = layout.pieces(v)
    flat = torch.cat([p.reshape(-1) for p in pieces])  # the model's own order, not the layout's
    first = flat[: len(pieces)]
    each = first / (first.abs().sum() + 1e-7)
    return torch.cat([each[j].expand(n) for j, n in enumerate(layout.sizes)])
