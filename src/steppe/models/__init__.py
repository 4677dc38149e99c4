"""The models of the papers, by name.

Every model names two kinds of submodules. `head` is the classifier: its input is the feature vector, its output the
logits, and nothing comes after it. `taps` hold the hidden activations: after ReLU or GELU, before pooling, in forward
order, each called once per forward pass. `features(x)` is the input of the head.

    >>> model = build("cnn", classes=10, shape=(3, 32, 32))
    >>> sum(p.numel() for p in model.parameters()), model.head, model.taps
    (2156490, 'classifier', ('body.relu1', 'body.relu2', 'body.relu3'))
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from steppe.core.errors import SteppeError, quote, suggest_name, take_first_line
from steppe.models.cnn import cnn, convnet_tiny, lenet
from steppe.models.gpt import gpt
from steppe.models.lstm import lstm, lstm_fedavg
from steppe.models.mlp import mlp
from steppe.models.resnet import resnet8_gn, resnet18_bn, resnet18_bs, resnet18_cifar_gn, resnet18_gn
from steppe.models.vgg import vgg11, vgg11_linear
from steppe.models.vit import slvit, slvit_original, vit, vit_small

Builder = Callable[[int, tuple[int, ...]], nn.Module]

MODELS: dict[str, Builder] = {
    "cnn": cnn,
    "mlp": mlp,
    "lenet": lenet,
    "convnet-tiny": convnet_tiny,
    "vgg11": vgg11,
    "vgg11-linear": vgg11_linear,
    "resnet18-gn": resnet18_gn,
    "resnet18-bs": resnet18_bs,
    "resnet18-cifar-gn": resnet18_cifar_gn,
    "resnet18-bn": resnet18_bn,
    "resnet8-gn": resnet8_gn,
    "slvit": slvit,
    "slvit-original": slvit_original,
    "vit-small": vit_small,
    "vit": vit,
    "lstm": lstm,
    "lstm-fedavg": lstm_fedavg,
    "gpt": gpt,
}


def build(name: str, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Build the named model for inputs of this shape (without the batch axis), with new weights."""
    if name not in MODELS:
        raise SteppeError(f"There is no model named {quote(name)}{suggest_name(name, MODELS)}")
    if classes < 1 or not shape or min(shape) < 1:
        raise SteppeError(f"{name} needs at least one class and a non-empty shape, not {classes} and {shape}.")
    return MODELS[name](classes, tuple(shape))


def describe(name: str) -> str:
    """Return the help text of a model: the first line of its builder's docstring."""
    return take_first_line(MODELS[name].__doc__)
