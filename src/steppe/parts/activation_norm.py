"""The activation norm of MAN ("minimise the activations' norm"; WACV 2024, arXiv:2512.08314), for any algorithm.

    penalty = (ζ/2) Σ_l mean(a_l²)        over hidden layers l; each mean over the batch and the layer's units

a_l: the outputs of a hidden layer's non-linearity, before pooling; the logits are left out. The Hessian of one
layer z = W a on one example is aaᵀ ⊗ ∇²_z loss, with top eigenvalue ‖a‖² λ₁(∇²_z loss): smaller activations
make flatter layers. It keeps nothing, sends nothing and needs no additional pass.

`weight`   ζ, the weight of the penalty.

Deviations: the authors' text and scripts differ by the factor ½ (ζ = 0.15 and 0.1 in the text); it is included here,
as in the code. Every call of a tap counts; the released Tiny-ImageNet network omits its third convolution and adds
the batch variance of a layer instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount
from steppe.core.scopes import LocalStep
from steppe.core.task import Outputs


@dataclass(frozen=True)
class ActivationNorm(Part):
    name = "man"
    citation = """@inproceedings{man,
      title = {Minimizing Layerwise Activation Norm Improves Generalization in Federated Learning},
      author = {Yashwanth, M. and Nayak, Gaurav Kumar and Rangwani, Harsh and Singh, Arya and Babu, R. Venkatesh
        and Chakraborty, Anirban},
      booktitle = {IEEE/CVF Winter Conference on Applications of Computer Vision (WACV)},
      year = {2024}, eprint = {2512.08314}, archiveprefix = {arXiv}
    }"""
    addable = True
    needs = frozenset({"activations"})
    weight: Amount = 0.1

    def penalty(self, w: Tensor, out: Outputs, s: LocalStep) -> Tensor:
        return self.weight / 2 * torch.stack([s.mean(a.square()) for a in out.activations]).sum()
