"""A plain multilayer perceptron, and `Stack`, the class of all feed-forward models here.

The perceptron with two hidden layers of 200 units is the "2NN" of McMahan et al., "Communication-Efficient
Learning of Deep Networks from Decentralized Data" (AISTATS 2017).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from torch import Tensor, nn

_KINDS = {nn.Linear: "fc", nn.Conv2d: "conv", nn.GroupNorm: "norm", nn.MaxPool2d: "pool"}


def activations(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the ReLU and GELU modules; registration order is forward order in every model here."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, nn.ReLU | nn.GELU))


class Stack(nn.Module):
    """A sequence of layers and a linear classifier; layers are named by kind and number.

    >>> Stack([nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU()], 3, 2).taps
    ('body.relu1', 'body.relu2')
    """

    head = "classifier"

    def __init__(self, layers: Iterable[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential()
        seen: Counter[str] = Counter()
        for layer in layers:
            kind = _KINDS.get(type(layer), type(layer).__name__.lower())
            seen[kind] += 1
            self.body.add_module(f"{kind}{seen[kind]}", layer)
        self.classifier = nn.Linear(width, classes)
        self.taps = activations(self)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def dense(*widths: int) -> list[nn.Module]:
    """Return a flattening, then a linear layer and a ReLU per consecutive pair of widths."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, after in pairwise(widths):
        layers += [nn.Linear(width, after), nn.ReLU()]
    return layers


def mlp(classes: int, shape: tuple[int, ...], hidden: tuple[int, ...] = (200, 200)) -> Stack:
    """Multilayer perceptron, two hidden layers of 200 units, on flattened input of any shape."""
    widths = (math.prod(shape), *hidden)
    return Stack(dense(*widths), widths[-1], classes)
