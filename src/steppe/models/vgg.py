"""VGG-11 without normalisation (Simonyan and Zisserman, ICLR 2015, configuration A) for 32×32 images."""

from __future__ import annotations

import math

from torch import nn

from steppe.models.cnn import he_fan_out, image
from steppe.models.mlp import Stack, dense

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a 2×2 max-pooling ends each


def _vgg(name: str, classes: int, shape: tuple[int, ...], hidden: tuple[int, ...]) -> Stack:
    layers: list[nn.Module] = []
    if shape[1:] == (28, 28):
        layers, shape = [nn.Upsample((32, 32))], (shape[0], 32, 32)
    channels, *sides = image(name, shape, least=32, multiple=32)
    for stage in STAGES:
        for after in stage:
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.ReLU()]
            channels = after
        layers += [nn.MaxPool2d(2)]
    widths = (channels * math.prod(side // 32 for side in sides), *hidden)
    model = Stack(layers + dense(*widths), widths[-1], classes)
    he_fan_out(model)
    return model


def vgg11(classes: int, shape: tuple[int, ...]) -> Stack:
    """VGG-11 with FedSoL's classifier: two dense layers of 512 units and a linear head.

    FedSoL (Lee et al., CVPR 2024): no dropout, He initialisation by fan-out, nearest up-sampling of 28×28
    images to 32×32.
    """
    return _vgg("vgg11", classes, shape, hidden=(512, 512))


def vgg11_linear(classes: int, shape: tuple[int, ...]) -> Stack:
    """VGG-11 with a single linear head on the 512 convolutional features."""
    return _vgg("vgg11-linear", classes, shape, hidden=())
