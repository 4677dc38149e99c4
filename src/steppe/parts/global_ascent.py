"""The server-side ascent of FedGloSS (Caldarola et al., CVPR 2025, arXiv:2412.03752): clients start at the worst point.

    x̃ = x − ρ unit(Δ̄_last)              what is sent; Δ̄_last of the round before, 0 in the first round
    Δ̄ = Σ_{i∈S} p_i (w_i − x̃)           measured from what was sent, so the perturbation is undone

One vector is sent down and one up; a client keeps nothing. FedGloSS puts SAM inside it and the dual of FedDyn
(α = 1/β) around it, measured from x̃.

`rho`    ρ, the radius of the server's ascent.
`ramp`   the radius grows linearly from 1e-3 to ρ over this many rounds; 0 keeps it constant.

Deviations: the released ramp of the server's radius reads the clients' list by mistake, so it follows neither
radius; here each radius ramps to its own value. The released client moves its anchor in every epoch; here it
is x̃ for the whole round (the same for the one epoch that the paper uses).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part, unit
from steppe.core.ranges import Amount, Count
from steppe.core.scopes import Aggregation, ServerTurn
from steppe.parts.sam import ramped


@dataclass(frozen=True)
class GlobalAscent(Part):
    name = "global_ascent"
    citation = """@inproceedings{fedgloss,
      title = {Beyond Local Sharpness: Communication-Efficient Global Sharpness-aware Minimization for Federated
        Learning},
      author = {Caldarola, Debora and Cagnasso, Pietro and Caputo, Barbara and Ciccone, Marco},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2025}, eprint = {2412.03752}, archiveprefix = {arXiv}
    }"""
    addable = True
    rho: Amount = 0.15
    ramp: Count = 0

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"back": torch.zeros_like(x)}

    def send(self, x: Tensor, s: ServerTurn) -> Tensor:
        return x + ramped(self.rho, self.ramp, s.round) * unit(s.state["back"], 0.0)

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        s.state["back"] = -delta
        return delta
