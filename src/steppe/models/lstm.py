"""A character-level LSTM for the next token, in the form of LEAF's and FedAvg's Shakespeare models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017): an embedding
of 8 numbers and two layers of 256 units (`lstm-fedavg`). `lstm` is smaller, for a CPU. The
recurrence is written out, because PyTorch's own layer can neither be batched over clients nor, on a GPU, be
differentiated twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from steppe.core.errors import SteppeError


class Recurrence(nn.Module):
    """One LSTM layer over (B, T, inputs); the gates are input, forget, output and cell."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.inputs, self.state = nn.Linear(inputs, 4 * units), nn.Linear(units, 4 * units, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(units), 1 / math.sqrt(units))
        nn.init.ones_(self.inputs.bias.data[units : 2 * units])  # so that it does not forget at first

    def forward(self, x: Tensor) -> Tensor:
        driven = self.inputs(x)  # of all times at once
        h = c = torch.zeros_like(driven[:, 0, : self.units])
        found = []
        for now in driven.unbind(1):
            gates = now + self.state(h)
            i, f, o = gates[:, : 3 * self.units].sigmoid().chunk(3, -1)
            c = f * c + i * gates[:, 3 * self.units :].tanh()
            h = o * c.tanh()
            found.append(h)
        return torch.stack(found, 1)


class LSTM(nn.Module):
    """Tokens (B, T) to logits (B, T, tokens): the next token at every place."""

    head = "classifier"
    taps = ()

    def __init__(self, tokens: int, width: int, units: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.body = nn.Sequential(*(Recurrence(width if k == 0 else units, units) for k in range(layers)))
        self.classifier = nn.Linear(units, tokens)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.embedding(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def lstm(classes: int, shape: tuple[int, ...], width: int = 32, units: int = 128, layers: int = 1) -> LSTM:
    """LSTM for the next token: an embedding of 32 and one layer of 128 units."""
    check_sequence("lstm", shape)
    return LSTM(classes, width, units, layers)


def lstm_fedavg(classes: int, shape: tuple[int, ...]) -> LSTM:
    """LSTM of FedAvg's Shakespeare experiment: an embedding of 8 and two layers of 256 units."""
    return lstm(classes, shape, 8, 256, 2)


def check_sequence(name: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs that are not sequences of tokens."""
    if len(shape) != 1:
        raise SteppeError(f"{name} reads sequences of tokens, (n, length), but these inputs have the shape {shape}; "
                          "use a model for images, such as cnn.")  # fmt: skip
