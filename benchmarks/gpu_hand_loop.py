"""FedAvg on a GPU as one would write it without any framework: the yardstick of `benchmarks.gpu`.

`plain` is ordinary PyTorch over images that are on the card already. `tuned` is the same loop with what costs a few
lines: TF32, channels-last, and the whole local step captured as one CUDA graph. Nothing comes from the library but the
arrays and the network's shape. Augmentation is a flip alone, which is in the loops' favour.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIENTS, SAMPLES, EPOCHS, BATCH, LR, MOMENTUM, DECAY = 10, 500, 5, 50, 0.01, 0.9, 1e-5


class HandLoop:
    """One `round` trains ten clients, one after the other, averages their models and evaluates the mean."""

    def __init__(self, model: nn.Module, data, tuned: bool) -> None:  # type: ignore[no-untyped-def]
        layout = torch.channels_last if tuned else torch.contiguous_format
        self.model, self.tuned = model.cuda().to(memory_format=layout), tuned
        self.images, self.labels = data.train_inputs.cuda(), data.train_targets.cuda()
        self.tests, self.test_labels = data.test_inputs.cuda(), data.test_targets.cuda()
        self.mean, self.std = (torch.tensor(v, device="cuda").view(3, 1, 1) for v in (data.mean, data.std))
        self.optimiser = self._optimiser()
        self.index = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
        self.graph = self._captured() if tuned else None

    def _optimiser(self) -> torch.optim.SGD:
        return torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)

    def _normalised(self, images: Tensor) -> Tensor:
        images = (images.float() / 255 - self.mean) / self.std
        return images.contiguous(memory_format=torch.channels_last) if self.tuned else images

    def _step(self) -> None:
        x = self._normalised(self.images[self.index])
        flip = torch.rand(BATCH, 1, 1, 1, device="cuda") < 0.5
        loss = F.cross_entropy(self.model(torch.where(flip, x.flip(-1), x)), self.labels[self.index])
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
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tuned
        start = {k: v.clone() for k, v in self.model.state_dict().items()}
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for client in range(CLIENTS):
            self.model.load_state_dict(start)
            if self.graph is None:
                self.optimiser = self._optimiser()
            else:
                for state in self.optimiser.state.values():
                    state["momentum_buffer"].zero_()
            mine = torch.arange(client * SAMPLES, (client + 1) * SAMPLES, device="cuda")
            for _ in range(EPOCHS):
                for index in mine[torch.randperm(SAMPLES, device="cuda")].split(BATCH):
                    self.index.copy_(index)
                    if self.graph is None:
                        self._step()
                    else:
                        self.graph.replay()
            total = {k: total[k] + v / CLIENTS for k, v in self.model.state_dict().items()}
        self.model.load_state_dict(total)
        with torch.no_grad():
            hits = [(self.model(self._normalised(x)).argmax(1) == y).sum()
                    for x, y in zip(self.tests.split(1000), self.test_labels.split(1000), strict=True)]  # fmt: skip
        return float(sum(hits)) / len(self.test_labels)
