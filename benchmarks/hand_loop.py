"""FedAvg and FedSAM as one would write them without a framework: the reference for all ratios.

`plain` is ordinary PyTorch. `tuned` is the same loop with optimisations of a few lines: channels-last weights and
images, and the fused optimiser. Its process also gets the allocator settings of `steppe.executors.allocator`. Nothing
here comes from the library except the arrays of the data set.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import jobs
from steppe.data import Data


class CNN(nn.Module):
    """The network of the FedAvg paper (McMahan et al., AISTATS 2017) for 28×28 grey images: 1,663,370 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc = nn.Linear(64 * 7 * 7, 512)
        self.classifier = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.classifier(F.relu(self.fc(x.flatten(1))))


class HandLoop:
    """A federation in a few dozen lines; `round` trains ten clients and averages their models."""

    def __init__(self, algorithm: str, data: Data, tuned: bool, epochs: int = jobs.EPOCHS) -> None:
        self.sam, self.tuned, self.epochs = algorithm == "fedsam", tuned, epochs
        torch.manual_seed(0)
        self.model = CNN()
        self.layout = torch.channels_last if tuned else torch.contiguous_format
        self.model.to(memory_format=self.layout)
        self.images, self.labels = self._normalised(data.train_inputs), data.train_targets
        self.test_images, self.test_labels = self._normalised(data.test_inputs), data.test_targets
        self.clients = [torch.from_numpy(c) for c in jobs.clients()]

    def _normalised(self, images: Tensor) -> Tensor:
        return ((images.float() / 255 - jobs.MEAN) / jobs.STD).contiguous(memory_format=self.layout)

    def round(self, number: int) -> None:
        replies = [self.train(self.clients[i]) for i in jobs.CPU.active(number)]
        mean = {name: torch.stack([r[name] for r in replies]).mean(0) for name in replies[0]}
        self.model.load_state_dict(mean)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels)

    def train(self, samples: Tensor) -> dict[str, Tensor]:
        model = copy.deepcopy(self.model)
        optimiser = torch.optim.SGD(model.parameters(), lr=jobs.LR, momentum=jobs.MOMENTUM, fused=self.tuned or None)
        for _ in range(self.epochs):
            for batch in samples[torch.randperm(len(samples))].split(jobs.BATCH):
                x, y = self.images[batch], self.labels[batch]
                optimiser.zero_grad()
                self.loss(model, x, y).backward()
                if self.sam:
                    moved = self._climb(model)
                    optimiser.zero_grad()
                    self.loss(model, x, y).backward()
                    self._return(model, moved)
                optimiser.step()
        return model.state_dict()

    @torch.no_grad()
    def _climb(self, model: nn.Module) -> list[Tensor]:
        grads = [p.grad for p in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        moved = [g * (jobs.RHO / (norm + 1e-12)) for g in grads]
        for p, e in zip(model.parameters(), moved, strict=True):
            p.add_(e)
        return moved

    @torch.no_grad()
    def _return(self, model: nn.Module, moved: list[Tensor]) -> None:
        for p, e in zip(model.parameters(), moved, strict=True):
            p.sub_(e)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the accuracy on the test set."""
        right = [(self.model(x).argmax(1) == y).sum() for x, y in
                 zip(self.test_images.split(1000), self.test_labels.split(1000), strict=True)]  # fmt: skip
        return float(sum(right)) / len(self.test_labels)
