"""Small convolutional networks without residual connections: FedAvg-CNN, LeNet, the Tiny-ImageNet ConvNet."""

from __future__ import annotations

from torch import Tensor, nn

from steppe.core.errors import SteppeError
from steppe.models.mlp import Stack, dense


def image(name: str, shape: tuple[int, ...], least: int, multiple: int = 1) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image shape; refuse one that the model cannot take."""
    if len(shape) != 3:
        raise SteppeError(f"{name} takes images of shape (channels, height, width), not {shape}.")
    channels, height, width = shape
    if min(height, width) < least or height % multiple or width % multiple:
        rule = f"at least {least} pixels" + (f" and a multiple of {multiple}" if multiple > 1 else "")
        raise SteppeError(f"{name} needs image sides of {rule}, not {height}×{width}.")
    return channels, height, width


def he_fan_out(model: nn.Module) -> None:
    """Initialise convolutions by N(0, 2 / (kernel area · output channels)), with zero biases; skip linear layers."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class RepeatChannel(nn.Module):
    """Grey to RGB: repeats the one channel three times."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


def conv(channels: int, after: int, kernel: int, padding: int = 0, groups: int = 0) -> list[nn.Module]:
    """Return a convolution, group norm if `groups` is given, ReLU and 2×2 max-pooling."""
    norm = [nn.GroupNorm(groups, after)] if groups else []
    return [nn.Conv2d(channels, after, kernel, padding=padding), *norm, nn.ReLU(), nn.MaxPool2d(2)]


def cnn(classes: int, shape: tuple[int, ...]) -> Stack:
    """FedAvg-CNN: two 5×5 convolutions (32, 64) and a dense layer of 512 units; image sides a multiple of 4.

    McMahan et al. (AISTATS 2017), in the sizes of FedSoL (Lee et al., CVPR 2024): 4096 inputs to the dense layer at
    32×32, 3136 at 28×28. As in the FedSoL code, a grey 28×28 image is repeated to three channels. At any other size,
    such as the 8×8 digits, a grey image keeps its one channel.
    """
    channels, height, width = image("cnn", shape, least=8, multiple=4)
    repeat = (channels, height, width) == (1, 28, 28)
    layers: list[nn.Module] = [RepeatChannel()] if repeat else []
    layers += conv(3 if repeat else channels, 32, 5, padding=2) + conv(32, 64, 5, padding=2)
    return Stack(layers + dense(64 * (height // 4) * (width // 4), 512), 512, classes)


def lenet(classes: int, shape: tuple[int, ...]) -> Stack:
    """LeNet of FedSMOO and the CIFAR net of MAN: two unpadded 5×5 convolutions (64), dense 384 and 192.

    As in FedDyn (Acar et al., ICLR 2021), FedSMOO (Sun et al., ICML 2023) and MAN (WACV 2024): LeCun's order
    of layers, other widths, ReLU and max-pooling.
    """
    channels, *sides = image("lenet", shape, least=16)
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    layers = conv(channels, 64, 5) + conv(64, 64, 5)
    return Stack(layers + dense(64 * height * width, 384, 192), 192, classes)


def convnet_tiny(classes: int, shape: tuple[int, ...]) -> Stack:
    """ConvNet of MAN for Tiny-ImageNet: three 3×3 convolutions (64) with group norm (4), dense 512 and 384.

    MAN (WACV 2024). The taps are the five intended ones, each after ReLU and before pooling. The released code drops
    that of the third convolution or takes it after pooling, depending on the folder.
    """
    channels, height, width = image("convnet-tiny", shape, least=8)
    layers = [layer for c in (channels, 64, 64) for layer in conv(c, 64, 3, padding=1, groups=4)]
    return Stack(layers + dense(64 * (height // 8) * (width // 8), 512, 384), 384, classes)
