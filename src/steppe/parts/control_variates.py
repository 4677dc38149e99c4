"""Control variates of SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378), option II.

    direction = g(w) + s (c − c_i)                    s is `scale`: 1, except in FedLESAM-S as released
    c_i⁺ = c_i − c − Δ_i / (K η)                      `corrected`: option II of the paper
    c_i⁺ = −Δ_i / (K η)                               `plain` or `outside`: the mean of the client's directions
    c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i)                `corrected` or `outside`, without `gain`: uniformly
    c ← c + γ mean_{i∈S}(c_i⁺ − c)                    `gain`: γ is `gain`
    c ← Σ_{i∈S} p_i c_i⁺                              `plain`: by the models' weights

The client keeps c_i⁺ as its next c_i; c is broadcast and c_i⁺ − c_i uploaded. All states start at 0. If a part moves
the start, Δ_i is measured from it.

`divisor`    K: effective, the client's step count corrected for momentum and for its own rate, as in the FedSoL
             code (the plain count without them); steps, the plain count, as printed (with momentum 0.9 it overestimates
             the gradient up to tenfold).
`scale`      the factor on c − c_i.
`estimate`   corrected: as above. plain: c_i⁺ = −Δ_i / (K η), and c is the models' weighted mean of the round's c_i⁺:
             FedDC as printed, where the direction still contains c − c_i. outside: the direction does not contain
             c − c_i (FedSoL ascends along it instead), so c_i⁺ = −Δ_i / (K η).
`gain`       γ of FedMoSWA (Liu et al., ICML 2025, arXiv:2507.20016): c ← c + γ mean_{i∈S}(c_i⁺ − c), and c_i⁺ − c is
             uploaded; c follows the newest c_i⁺ by momentum, and is no longer the mean of all c_i. It equals SCAFFOLD
             only if all clients are active and γ = 1. The rule comes from two consistent accounts of the paper; the
             paper itself was not available.
`jump`       with `gain`: the first round has γ = 1, as in FedMoSWA's released code.

Limits: a norm bound clips c_i⁺ − c, which does not vanish at the optimum, so with `gain` it biases the result.

Deviations: decay and clipping act inside Δ_i and therefore inside c_i, as in the released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.errors import SettingError
from steppe.core.part import Part
from steppe.core.ranges import Amount
from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle


@dataclass(frozen=True)
class ControlVariates(Part):
    name = "control_variates"
    citation = """@inproceedings{scaffold,
      title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
      author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and Stich,
        Sebastian and Suresh, Ananda Theertha},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2020}, eprint = {1910.06378}, archiveprefix = {arXiv}
    }"""
    addable = True
    down = ("c",)
    reduction = {"dc": "sum", "gap": "mean"}  # noqa: RUF012
    outer = True
    needs_plain_steps = True
    divisor: Literal["effective", "steps"] = "effective"
    scale: Amount = 1.0
    estimate: Literal["corrected", "plain", "outside"] = "corrected"
    gain: Amount | None = None
    jump: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gain is not None and self.estimate != "corrected":
            raise SettingError(f"gain of part {self.name!r} is {self.gain:g}, but only the corrected estimate "
                               "has a gain: leave it out, or use estimate='corrected'")  # fmt: skip

    def objection(self, others: tuple[Part, ...]) -> str:
        paced = next((p.name for p in others if p.around_optimiser and p.has("stride")), None)
        return "" if paced is None or self.divisor == "effective" else (
            f"'{paced}' gives the steps its own learning rate, which divisor=steps of '{self.name}' ignores: use "
            "divisor=effective"
        )  # fmt: skip

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"c": torch.zeros_like(x)}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"c": torch.zeros_like(x)}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w) + self.scale * (s.down["c"] - s.state["c"])

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        steps = s.effective_steps if self.divisor == "effective" else s.steps.clamp(min=1)
        mean = (s.start - s.w) / (steps * s.lr)  # of the client's directions
        if self.estimate == "plain":
            s.up["c"] = s.state["c"] = mean
            return delta
        change = mean - (s.state if self.estimate == "outside" else s.down)["c"]
        c = s.state["c"] = s.state["c"] + change
        if self.gain is None:
            s.up["dc"] = change
        else:
            s.up["gap"] = c - s.down["c"]
        return delta

    def shrink(self, share: Tensor, s: ClientRound) -> None:
        (sent,) = s.up.values()
        s.state["c"] = s.state["c"] - (1 - share) * sent

    def server(self, delta: Tensor, s: Aggregation) -> Tensor:
        if self.estimate == "plain":
            s.state["c"] = s.up["c"]
        elif self.gain is None:
            s.state["c"] = s.state["c"] + s.up["dc"]
        else:
            moved = self.gain * s.up["gap"]
            s.state["c"] = s.state["c"] + (torch.where(s.round > 0, moved, s.up["gap"]) if self.jump else moved)
        return delta
