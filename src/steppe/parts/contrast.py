"""Model-contrastive learning of MOON (Li, He & Song, CVPR 2021, arXiv:2103.16257).

    penalty = μ mean( −log( e^{cos(z, z_x)/τ} / (e^{cos(z, z_x)/τ} + e^{cos(z, z_prev)/τ}) ) )      over the batch

z, z_x, z_prev: features (the inputs of the head) of the local model, of the global one, and of the client's own
model at the end of its last round, which the client keeps; before its first round, the initial global model.
Gradients flow only through z. There are two forward passes per batch. Each cosine divides by norms of at least 1e-8.

`mu`    μ, the weight of the penalty.
`tau`   τ, the temperature.

Deviations: no projection head, as in the FedSoL code (the authors put two layers, 256 wide, between features
and loss).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import Amount, Positive
from steppe.core.scopes import ClientRound, Forward, LocalStep
from steppe.core.task import Outputs


@dataclass(frozen=True)
class Contrast(Part):
    name = "contrast"
    citation = """@inproceedings{moon,
      title = {Model-Contrastive Federated Learning},
      author = {Li, Qinbin and He, Bingsheng and Song, Dawn},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2021}, eprint = {2103.16257}, archiveprefix = {arXiv}
    }"""
    addable = True
    needs = frozenset({"features"})
    mu: Amount = 0.1
    tau: Positive = 0.5

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"previous": x.clone()}

    def observe(self, forward: Forward, s: LocalStep) -> dict[str, Tensor]:
        seen = {"global": forward(s.x).features, "previous": forward(s.state["previous"]).features}
        return {name: z for name, z in seen.items() if z is not None}

    def penalty(self, w: Tensor, out: Outputs, s: LocalStep) -> Tensor:
        assert out.features is not None
        near, far = (F.cosine_similarity(out.features, s.seen[k], dim=-1, eps=1e-8) for k in ("global", "previous"))
        return self.mu * s.mean(F.softplus((far - near) / self.tau))

    def finish(self, delta: Tensor, s: ClientRound) -> Tensor:
        s.state["previous"] = s.w
        return delta
