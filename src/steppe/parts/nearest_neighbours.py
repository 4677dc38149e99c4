"""kNN-Per (Marfoq et al., ICML 2022, arXiv:2111.09360): mix the model's prediction with the nearest local examples'.

    prediction(c) = b knn(c) + (1−b) model(c)                  for each class c; b is `weight`
    knn(c) = (Σ_{j: y_j = c} s_j) / (Σ_j s_j)                  over the k nearest examples j
    s_j = exp(−‖f − f_j‖² / (d σ))                             d features; σ is `scale`

f: features of the global model, f_j those of the client's own training examples. Training is FedAvg: this part
only defines how a client predicts afterwards (`evaluate/personal.py`).

`k`        the number of neighbours.
`weight`   b, the neighbours' share of the prediction.
`scale`    σ, the width of the kernel.
`of`       probabilities: the model's softmax, as in the paper. logits: raw logits, as in the FedSoL code (switched off
           there).

Deviations: the authors tune weight and scale per client; here all clients have the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part
from steppe.core.ranges import FromOne, Positive, Share


@dataclass(frozen=True)
class NearestNeighbours(Part):
    name = "nearest_neighbours"
    citation = """@inproceedings{knnper,
      title = {Personalized Federated Learning through Local Memorization},
      author = {Marfoq, Othmane and Neglia, Giovanni and Kameni, Laetitia and Vidal, Richard},
      booktitle = {International Conference on Machine Learning (ICML)},
      year = {2022}, eprint = {2111.09360}, archiveprefix = {arXiv}
    }"""
    k: FromOne = 5
    weight: Share = 0.5
    scale: Positive = 1.0
    of: Literal["probabilities", "logits"] = "probabilities"

    def predict(self, logits: Tensor, features: Tensor, memory: Tensor, labels: Tensor) -> Tensor:
        """Predict (B, classes) from features (B, d) and a memory of features (M, d) with their labels (M,)."""
        model = logits.softmax(-1) if self.of == "probabilities" else logits
        gaps = torch.cdist(features, memory, compute_mode="donot_use_mm_for_euclid_dist").square()
        gaps, nearest = gaps.topk(min(self.k, len(labels)), largest=False)
        shares = torch.softmax(-gaps / (features.shape[-1] * self.scale), -1)  # s_j / Σ s_j, also if all are tiny
        votes = torch.zeros_like(model).scatter_add(-1, labels[nearest], shares)
        return self.weight * votes + (1 - self.weight) * model
