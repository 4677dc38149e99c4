"""FedWMSAM (Li et al., NeurIPS 2025, arXiv:2511.22080): SAM along a personal momentum, at one gradient per step.

    m_i = m + α / (1−α) (c − c_i)                  fixed during the round
    direction = α g(w + ρ unit(e)) + (1−α) m_i     in step b = 0, …, K−1
    e = x + b m_i − w                              `paper`: uphill, since m_i is like a gradient; 0 in the first step
    d_i = −Δ_i / (K η),   c_i ← c_i − c + d_i
    m ← s mean_{i∈S}(d_i)                          uniform means over the n active of N clients; s is `scale`
    c ← c + (n/N) (mean_{i∈S}(d_i) − c)
    α ← (1−κ) α + κ clamp(mean_{i∈S}(v_i))         between 0.1 and 0.9; κ is `adapt`, v_i see `aligned`

m, c and α are broadcast. The client keeps c_i. Two scalars are uploaded: the server derives m and c from the updates.

`rho`      ρ, the radius of the ascent.
`alpha`    α, the share of the client's own gradient at first.
`adapt`    κ, how fast α follows the clients' agreement; 0 keeps α constant.
`scale`    s multiplies m. The code uses the round's learning-rate decay here; 1 leaves it out.
`kind`     paper: as above; without η, e is nearly along m_i. text: e = w − (x − η b m_i), away from where the momentum
           would have led, as the text says. official: as the code runs, e enters with the other sign (it descends) and
           is indexed by the number of the tensor: all entries of tensor j move by −ρ e[j] / Σ_j |e[j]|.
`aligned`  v_i = 1 + cos(−Δ_i, m), so that α grows where clients agree with the momentum, as the paper says. False, as
           released: 1 + cos(Δ_i, m), which has the opposite effect. v_i = 0 where a norm is 0, as in the first round.

Deviations: m as printed (Δ̄/η, then x − m) climbs, so m has the sign of a gradient everywhere, as in the code. The
authors keep all c_i on the server and send only m_i; here clients keep them: one more vector is sent, with equal
results. K is the client's own count, corrected for momentum; the code uses the first client's. ε is 1e-7 in every norm.

Limits: α scales the gradient but not the optimiser's weight decay λ, so the objective has the decay λ/α. With
`norm_bound` the optimum stays the same, but v_i is one of the bounded uploads: a limit below 1 slows the last rounds
down, and affects α.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part, unit
from steppe.core.ranges import Amount, Momentum, Share
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle
from steppe.parts.locally_estimated_sam import by_tensor_number


@dataclass(frozen=True)
class MomentumSAM(Part):
    name = "momentum_sam"
    citation = """@inproceedings{fedwmsam,
      title = {{FedWMSAM}: Fast and Flat Federated Learning via Weighted Momentum and Sharpness-Aware Minimization},
      author = {Li, Tianle and Huang, Yongzhi and Jiang, Linshan and Liu, Chang and Xie, Qipeng and Du, Wenfeng and
        Wang, Lu and Wu, Kaishun},
      booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
      year = {2025}, eprint = {2511.22080}, archiveprefix = {arXiv}
    }"""
    addable = True
    down = ("M", "c", "alpha")
    reduction = {"value": "mean", "direction": "mean"}  # noqa: RUF012
    times = ("rate",)
    needs_plain_steps = True
    rho: Amount = 0.01
    alpha: Momentum = 0.1
    adapt: Share = 0.01
    scale: Amount = 1.0
    kind: Literal["paper", "text", "official"] = "paper"
    aligned: bool = True

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"M": torch.zeros_like(x), "c": torch.zeros_like(x), "alpha": x.new_tensor(self.alpha)}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"c": torch.zeros_like(x)}

    def receive(self, s: ClientRound) -> None:
        alpha = s.down["alpha"]
        s.state["D"] = s.down["M"] + alpha / (1 - alpha) * (s.down["c"] - s.state["c"])

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        alpha, D = s.down["alpha"], s.state["D"]
        return alpha * grad(w + self.rho * self._ascent(w, s)) + (1 - alpha) * D

    def _ascent(self, w: Tensor, s: LocalStep) -> Tensor:
        ahead = s.index * s.state["D"]
        if self.kind == "text":
            return unit(w - s.x + s.lr * ahead, 1e-7)
        gap = s.x + ahead - w
        return unit(gap, 1e-7) if self.kind == "paper" else -by_tensor_number(gap, s.layout)

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        rate = 1 / (s.effective_steps * s.lr)
        d, M = rate * (s.start - s.w), s.down["M"]
        if s.update_differs:  # the server cannot derive it from the update alone
            s.up["direction"] = d
        else:
            s.up["rate"] = rate
        s.state["c"] = s.state["c"] - s.down["c"] + d
        lengths = torch.linalg.vector_norm(d) * torch.linalg.vector_norm(M)
        cosine = (d @ M) / torch.where(lengths > 0, lengths, 1.0)
        s.up["value"] = torch.where(lengths > 0, 1 + cosine if self.aligned else 1 - cosine, 0.0)
        return delta

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        s.state["c"] = s.state["c"] - (1 - share) / (s.effective_steps * s.lr) * (s.start - s.w)

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        d = s.up["direction"] if "direction" in s.up else -s.mean_times("rate", "mean")
        value = s.up["value"].clamp(0.1, 0.9)
        s.state["alpha"] = (1 - self.adapt) * s.state["alpha"] + self.adapt * value
        s.state["c"] = s.state["c"] + s.active / s.clients * (d - s.state["c"])
        s.state["M"] = self.scale * d
        return delta
