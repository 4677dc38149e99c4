"""The global model as a teacher of the local one: FedSoL's KL divergence and FedNTD's not-true distillation.

KL     Hinton et al., 2015, arXiv:1503.02531; as a proximal loss in FedSoL, Lee et al., CVPR 2024, arXiv:2308.12532
NTD    FedNTD, Lee et al., NeurIPS 2022, arXiv:2106.03097

    q = softmax(z_x / τ),   p = softmax(z_w / τ)        without `not_true`: logits of the global and the local model
    q = softmax_{c ≠ y}(z_x / τ),   p = softmax_{c ≠ y}(z_w / τ)        `not_true`: without the example's own class y
    penalty = b mean( Σ_c q_c (log q_c − log p_c) )     the mean over the batch, the sum over classes c; b is `weight`

FedNTD has b = β τ², FedSoL's KL no τ². It keeps nothing and sends nothing; one forward pass of the teacher per batch
serves every gradient of the step.

`weight`     b, the weight of the penalty.
`tau`        τ, the temperature.
`not_true`   leave each example's own class out of both softmaxes, as FedNTD does.

Deviations: Σ(p − q), which is 0, is added. Both its value and its gradient vanish, but automatic
differentiation then forms p − q before anything else, so that w = x gives exactly 0 where the two models'
logits agree to the bit, instead of rounding noise (which FedSoL would turn into an ascent of full length).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount, Positive
from steppe.core.scopes import Forward, LocalStep
from steppe.core.task import Outputs


@dataclass(frozen=True)
class Distillation(Part):
    name = "distillation"
    citation = """@misc{distillation,
      title = {Distilling the Knowledge in a Neural Network},
      author = {Hinton, Geoffrey and Vinyals, Oriol and Dean, Jeff},
      year = {2015}, eprint = {1503.02531}, archiveprefix = {arXiv}
    }

    @inproceedings{fedntd,
      title = {Preservation of the Global Knowledge by Not-True Distillation in Federated Learning},
      author = {Lee, Gihun and Jeong, Minchan and Shin, Yongjin and Bae, Sangmin and Yun, Se-Young},
      booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
      year = {2022}, eprint = {2106.03097}, archiveprefix = {arXiv}
    }"""
    addable = True
    needs = frozenset({"logits"})
    flat_at_x = True  # the exact gradient at w = x is 0: a computed one is rounding noise
    weight: Amount = 1.0
    tau: Positive = 3.0
    not_true: bool = False

    def log_probabilities(self, logits: Tensor, y: Tensor) -> Tensor:
        """Compute log-probabilities for teacher and student alike, so that equal logits give equal numbers."""
        z = logits / self.tau
        if self.not_true:
            # Not −∞, whose differences are NaN. Half of the largest number has the same probability, exactly 0.
            z = torch.where(y[..., None] == torch.arange(z.shape[-1], device=z.device), torch.finfo(z.dtype).min / 2, z)
        return torch.log_softmax(z, -1)

    def observe(self, forward: Forward, s: LocalStep) -> dict[str, Tensor]:
        return {"log_q": self.log_probabilities(forward(s.x).logits, s.batch["y"])}

    def penalty(self, w: Tensor, out: Outputs, s: LocalStep) -> Tensor:
        log_q, log_p = s.seen["log_q"], self.log_probabilities(out.logits, s.batch["y"])
        q, p = log_q.exp(), log_p.exp()
        return self.weight * s.mean((q * (log_q - log_p) + (p - q)).sum(-1))
