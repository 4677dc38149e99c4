"""FedAvg on a GPU as one would write it without a framework: the reference of `benchmarks.gpu`.

`plain` is ordinary PyTorch on images that are already on the GPU. `tuned` is the same loop with optimisations of a few
lines: TF32, channels-last, and the whole local step captured as one CUDA graph. Nothing comes from the library except
the arrays and the network. Augmentation is only a flip, which is in the loops' favour.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs import GPU, Job
from steppe.data import Data


class HandLoop:
    """A federation; `round` trains ten clients one after the other, averages their models and evaluates the mean."""

    def __init__(self, model: nn.Module, data: Data, tuned: bool, device: str = "cuda", job: Job = GPU) -> None:
        layout = torch.channels_last if tuned else torch.contiguous_format
        self.model, self.tuned, self.job = model.to(device).to(memory_format=layout), tuned, job
        self.images, self.labels = data.train_inputs.to(device), data.train_targets.to(device)
        self.tests, self.test_labels = data.test_inputs.to(device), data.test_targets.to(device)
        self.mean, self.std = (torch.tensor(v, device=device).view(-1, 1, 1) for v in (data.mean, data.std))
        self.clients = torch.arange(job.clients * job.samples, device=device).split(job.samples)
        self.optimiser = self._optimiser()
        self.index = torch.zeros(job.batch, dtype=torch.int64, device=device)
        self.graph = self._captured() if tuned else None

    def _optimiser(self) -> torch.optim.SGD:
        job = self.job
        return torch.optim.SGD(self.model.parameters(), lr=job.lr, momentum=job.momentum, weight_decay=job.decay)

    def _normalised(self, images: Tensor) -> Tensor:
        images = (images.float() / 255 - self.mean) / self.std
        return images.contiguous(memory_format=torch.channels_last) if self.tuned else images

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        x = self._normalised(images)
        flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
        return F.cross_entropy(model(torch.where(flip, x.flip(-1), x)), labels)

    def _step(self) -> None:
        loss = self.loss(self.model, self.images[self.index], self.labels[self.index])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def _captured(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph

    def round(self) -> float:
        """Run a round and return the accuracy after it."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tuned
        start = {k: v.clone() for k, v in self.model.state_dict().items()}
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for samples in self.clients:
            self.model.load_state_dict(start)
            total = {k: total[k] + v / len(self.clients) for k, v in self.train(samples).items()}
        self.model.load_state_dict(total)
        return self.evaluate()

    def train(self, samples: Tensor) -> dict[str, Tensor]:
        """Train one client, in place."""
        if self.graph is None:
            self.optimiser = self._optimiser()
        else:
            for state in self.optimiser.state.values():
                state["momentum_buffer"].zero_()
        for _ in range(self.job.epochs):
            for index in samples[torch.randperm(len(samples), device=samples.device)].split(self.job.batch):
                self.index.copy_(index)
                if self.graph is None:
                    self._step()
                else:
                    self.graph.replay()
        return self.model.state_dict()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the accuracy on the test set."""
        hits = [(self.model(self._normalised(x)).argmax(1) == y).sum()
                for x, y in zip(self.tests.split(1000), self.test_labels.split(1000), strict=True)]  # fmt: skip
        return float(sum(hits)) / len(self.test_labels)
