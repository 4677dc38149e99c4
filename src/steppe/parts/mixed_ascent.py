"""The interpolated perturbation of FedGF (Lee & Yoon, ICML 2024, PMLR 235): SAM towards the server's worst point.

    p = (1−c) (w + ρ unit(g(w))) + c x̃            x̃ and c come from the server
    direction = g(p)                              the same batch for both gradients
    d = mean_{i∈S}(‖w_i − x‖)                     a plain mean, whatever the models' weights
    c ← mean(1[d > T])                            over the last `window` rounds; T is `threshold`
    x̃ ← x' + ρ_g unit(x − x')                     x' the new global model; the old one lies uphill

The further clients drift, the more they use the federation's sharpness instead of their own: c = 0 is FedSAM, as in
the first round; with c = 1 all gradients of a round are taken at x̃. Points are mixed, not perturbations, so for a
client far from x̃ the gradient is taken far away. x̃ and c are broadcast, the scalar ‖w_i − x‖ is uploaded; a client
keeps nothing. From the released code (github.com/hwan-sig/Official-FedGF); only the paper's abstract was available.

`rho`          ρ, the radius of the client's ascent.
`rho_global`   ρ_g, the radius of the server's ascent; ρ if not set.
`threshold`    T, the drift above which a round counts as diverging: the length of a whole update, so it depends on
               model, rate and steps. Set it near the `drift` of a run's records.
`window`       the number of recent rounds from which c is computed.

Limits: if every round exceeds the threshold, c stays 1 and all steps of a round use gradients at one point, which fails
at a large rate (digits, rate 0.1, drift 1.1: 29 %, compared with FedSAM's 90 %).

Deviations: ε of unit(g) is 1e-16 as released; x̃ = x' where the model did not move (the code divides by zero). The code
has no default threshold, and its script passes one under a different name; 0.2 is our reading, for its rate of 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part, ascend, unit
from steppe.core.ranges import Amount, Bound, FromOne
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle


@dataclass(frozen=True)
class MixedAscent(Part):
    name = "mixed_ascent"
    citation = """@inproceedings{fedgf,
      title = {Rethinking the Flat Minima Searching in Federated Learning},
      author = {Lee, Taehwan and Yoon, Sung Whan},
      booktitle = {International Conference on Machine Learning (ICML)},
      series = {PMLR}, volume = {235}, pages = {27037--27071}, year = {2024}
    }"""
    addable = True
    down = ("point", "c")
    reduction = {"distance": "mean"}  # noqa: RUF012
    asks = 2
    rho: Amount = 0.05
    rho_global: Amount | None = None  # ρ unless set
    threshold: Bound = 0.2
    window: FromOne = 30

    def caution(self, per_round: int, clients: int) -> str:
        return "" if self.threshold != type(self).threshold else (
            f"fedgf: threshold = {self.threshold:g} fits a learning rate of 0.01. It is compared with the length of a "
            "client's update (`drift` in the records): if every round exceeds it, training may fail. Set it near "
            "the drift of a FedSAM run"
        )  # fmt: skip

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        zero = x.new_zeros(())
        return {"point": x.clone(), "c": zero, "bits": x.new_zeros(self.window), "rounds": zero.clone()}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        c = s.down["c"]
        return grad((1 - c) * ascend(w, grad(w), self.rho, 1e-16) + c * s.down["point"])

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.up["distance"] = torch.linalg.vector_norm(s.w - s.x)
        return delta

    def settle(self, x: Tensor, s: Aggregation) -> None:
        n, far = s.state["rounds"], (s.up["distance"] > self.threshold).to(x.dtype)
        oldest = torch.arange(self.window, device=x.device) == n % self.window
        bits = s.state["bits"] = torch.where(oldest, far, s.state["bits"])
        s.state["c"], s.state["rounds"] = bits.sum() / (n + 1).clamp(max=self.window), n + 1
        back = self.rho if self.rho_global is None else self.rho_global
        s.state["point"] = x + back * unit(s.x - x, 0.0)
