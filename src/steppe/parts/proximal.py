"""The proximal term of FedProx (Li et al., MLSys 2020, arXiv:1812.06127).

    direction = g(w) + μ (w − x)

This is the gradient of loss + (μ/2)‖w − x‖² over all trainable parameters. The term is zero in the first step of a
round. It keeps nothing and sends nothing. It is added to the oracle, not to the loss: the numbers are the same, and
automatic differentiation is not needed.

`mu`   μ, the strength of the pull.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount
from steppe.core.scopes import LocalStep, Oracle


@dataclass(frozen=True)
class Proximal(Part):
    name = "proximal"
    citation = """@inproceedings{fedprox,
      title = {Federated Optimization in Heterogeneous Networks},
      author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and
        Smith, Virginia},
      booktitle = {Conference on Machine Learning and Systems (MLSys)},
      year = {2020}, eprint = {1812.06127}, archiveprefix = {arXiv}
    }"""
    addable = True
    mu: Amount

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        return grad(w) + self.mu * (w - s.x)
