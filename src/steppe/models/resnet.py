"""Residual networks (He et al., CVPR 2016): one post-activation block, two stems, any normalisation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from steppe.models.cnn import he_fan_out, image
from steppe.models.mlp import activations

Norm = Callable[[int], nn.Module]
group_norm: Norm = partial(nn.GroupNorm, 2)
batch_statistics: Norm = partial(nn.BatchNorm2d, track_running_stats=False)


class Convolution3(nn.Conv2d):
    """A 3×3 convolution, padded by 1, without bias."""

    def __init__(self, channels: int, after: int, stride: int = 1) -> None:
        super().__init__(channels, after, 3, stride, padding=1, bias=False)

    def _get_name(self) -> str:
        return "Conv2d"  # a model's hash has its modules' names, and a run of the same network can be resumed

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if not x.is_cpu or max(height, width) > self.stride[0]:
            return super().forward(x)
        # One pixel comes out: a product with the taps that see the image, which is several times as fast on a CPU.
        taps = self.weight.permute(0, 2, 3, 1)[:, 1 : 1 + height, 1 : 1 + width]
        return F.linear(x.permute(0, 2, 3, 1).flatten(1), taps.flatten(1))[..., None, None]


class BasicBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv x)))) + x), with a normalised 1×1 convolution of x if shapes change."""

    def __init__(self, channels: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = Convolution3(channels, after, stride)
        self.norm1 = norm(after)
        self.relu1 = nn.ReLU()
        self.conv2 = Convolution3(after, after)
        self.norm2 = norm(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != after:
            self.shortcut.append(nn.Conv2d(channels, after, 1, stride, bias=False)).append(norm(after))
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu1(self.norm1(self.conv1(x)))
        return self.relu2(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of `blocks` basic blocks at the given widths, global average pooling and a linear classifier."""

    head = "fc"

    def __init__(
        self, channels: int, widths: tuple[int, ...], blocks: int, classes: int, norm: Norm, imagenet: bool
    ) -> None:
        super().__init__()
        if imagenet:  # 7×7, stride 2, max-pooling: 32×32 pixels are 8×8 before the first block
            self.conv = nn.Conv2d(channels, widths[0], 7, stride=2, padding=3, bias=False)
            self.pool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
            self.pool = nn.Identity()
        self.norm = norm(widths[0])
        self.relu = nn.ReLU()
        self.stages = nn.Sequential()
        for before, after in pairwise((widths[0], *widths)):
            stride = 1 if before == after else 2
            first = BasicBlock(before, after, stride, norm)
            rest = (BasicBlock(after, after, 1, norm) for _ in range(blocks - 1))
            self.stages.append(nn.Sequential(first, *rest))
        self.fc = nn.Linear(widths[-1], classes)
        self.taps = activations(self)
        if imagenet:
            he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.conv(x))))
        return self.stages(x).mean((-2, -1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def _resnet18(name: str, classes: int, shape: tuple[int, ...], norm: Norm, imagenet: bool = False) -> ResNet:
    channels, *_ = image(name, shape, least=8)
    return ResNet(channels, (64, 128, 256, 512), 2, classes, norm, imagenet)


def resnet18_gn(classes: int, shape: tuple[int, ...]) -> ResNet:
    """ResNet-18, ImageNet stem, group norm with 2 groups, as in FedSMOO.

    FedSMOO (Sun et al., ICML 2023) uses the ImageNet network unchanged on 32×32 images, so that only 8×8 positions
    reach the first block. Convolutions are initialised by He's rule with fan-out.
    """
    return _resnet18("resnet18-gn", classes, shape, group_norm, imagenet=True)


def resnet18_bs(classes: int, shape: tuple[int, ...]) -> ResNet:
    """ResNet-18, CIFAR stem, batch norm on the batch's own statistics in training and test, as in FedSoL.

    FedSoL (Lee et al., CVPR 2024). Its paper cites the pre-activation form; its code, like this, is post-activation.
    There are no buffers: the prediction for an image depends on its batch.
    """
    return _resnet18("resnet18-bs", classes, shape, batch_statistics)


def resnet18_cifar_gn(classes: int, shape: tuple[int, ...]) -> ResNet:
    """ResNet-18, CIFAR stem (3×3, stride 1, no pooling), group norm with 2 groups."""
    return _resnet18("resnet18-cifar-gn", classes, shape, group_norm)


def resnet18_bn(classes: int, shape: tuple[int, ...]) -> ResNet:
    """ResNet-18, CIFAR stem, ordinary batch norm with running statistics (it has buffers)."""
    return _resnet18("resnet18-bn", classes, shape, nn.BatchNorm2d)


def resnet8_gn(classes: int, shape: tuple[int, ...]) -> ResNet:
    """ResNet-8, ImageNet stem, one block each at 64, 128 and 256 channels, group norm with 2 groups.

    The CIFAR-100 model of FedGMT (ICML 2025) and FedScar. They state no initialisation; He's fan-out rule is used, as
    in ResNet-18 with the same stem.
    """
    channels, *_ = image("resnet8-gn", shape, least=8)
    return ResNet(channels, (64, 128, 256), 1, classes, group_norm, imagenet=True)
