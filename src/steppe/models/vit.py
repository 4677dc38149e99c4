"""Vision transformers: pre-norm encoders with a class token (Dosovitskiy et al., ICLR 2021), plain and SL.

SL-ViT is Lee, Lee and Song, "Vision Transformer for Small-Size Datasets" (arXiv 2112.13492): patches also include four
shifted copies of the image (SPT), and attention has a learned temperature and no diagonal (LSA).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.core.errors import SteppeError
from steppe.models.cnn import RepeatChannel, image
from steppe.models.mlp import activations

Shifts = Sequence[tuple[int, int]]  # (right, down), in pixels


def cardinal(s: int) -> Shifts:
    """Return shifts by s pixels along the axes."""
    return (s, 0), (-s, 0), (0, s), (0, -s)


def diagonal(s: int) -> Shifts:
    """Return shifts by s pixels along both axes at once."""
    return (s, s), (-s, s), (s, -s), (-s, -s)


def shifted(x: Tensor, shifts: Shifts) -> Tensor:
    """Concatenate the image and its zero-filled shifted copies along the channels."""
    return torch.cat([x, *(F.pad(x, (right, -right, down, -down)) for right, down in shifts)], dim=1)


class Tokens(nn.Module):
    """Square patches as vectors; with shifts, this is shifted patch tokenisation with its LayerNorm."""

    def __init__(self, channels: int, patch: int, dim: int, shifts: Shifts = ()) -> None:
        super().__init__()
        self.patch, self.shifts = patch, shifts
        width = channels * (1 + len(shifts)) * patch**2
        self.norm = nn.LayerNorm(width) if shifts else nn.Identity()
        self.linear = nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = shifted(x, self.shifts)
        x = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))  # (B, C, rows, p, columns, p)
        x = x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, tokens, p·p·C)
        return self.linear(self.norm(x))


class Attention(nn.Module):
    """Multi-head self-attention with the usual scale 1/√d."""

    def __init__(self, dim: int, heads: int, dim_head: int, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.qkv = nn.Linear(dim, 3 * heads * dim_head, bias=bias)
        self.out = nn.Linear(heads * dim_head, dim)

    def scores(self, dots: Tensor) -> Tensor:
        return dots * self.scale

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, tokens, d)
        mixed = self.scores(q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class FusedAttention(Attention):
    """The same by PyTorch's fused kernels, which never store the weights of the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class LocalAttention(Attention):
    """Locality self-attention: a learned temperature that starts at 1/√d, and no token attends to itself.

    The temperature is one scalar exp(t) per layer in the FedSoL code, and one factor per head in the original.
    """

    def __init__(self, dim: int, heads: int, dim_head: int, per_head: bool) -> None:
        super().__init__(dim, heads, dim_head, bias=False)
        self.per_head = per_head
        start = torch.full((heads, 1, 1), self.scale) if per_head else torch.tensor(math.log(self.scale))
        self.temperature = nn.Parameter(start)

    def scores(self, dots: Tensor) -> Tensor:
        dots = dots * (self.temperature if self.per_head else self.temperature.exp())
        itself = torch.eye(dots.shape[-1], dtype=torch.bool, device=dots.device)
        return dots.masked_fill(itself, -torch.finfo(dots.dtype).max)


class Layer(nn.Module):
    """Attention and a GELU perceptron, each after a LayerNorm and with a residual connection."""

    def __init__(self, dim: int, attention: Attention, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), attention
        self.norm2, self.fc1 = nn.LayerNorm(dim), nn.Linear(dim, hidden)
        self.gelu, self.fc2 = nn.GELU(), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """A vision transformer with a class token and learned positions; the class token's output is the feature vector.

    Positions and class token are initialised by N(0, 1), the rest by PyTorch's defaults.
    """

    head = "mlp_head"

    def __init__(self, tokens: nn.Module, number: int, layers: Sequence[Layer], dim: int, classes: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.class_token = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, number + 1, dim))
        self.layers = nn.Sequential(*layers)
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))
        self.taps = activations(self)

    def features(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.layers(x)[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp_head(self.features(x))


def _square(name: str, shape: tuple[int, ...], multiple: int) -> tuple[int, int]:
    channels, height, width = image(name, shape, least=8, multiple=multiple)
    if height != width:
        raise SteppeError(f"{name} needs square images, not {height}×{width}.")
    return channels, height


def slvit(classes: int, shape: tuple[int, ...]) -> ViT:
    """SL-ViT with the settings of the FedSoL code: 4×4 patches, dimension 192, depth 9, 12 heads of 64.

    Lee et al., FedSoL (CVPR 2024). Differences from the original: larger patches, wider heads, a narrower perceptron,
    shifts by one pixel along the axes, one temperature per layer. Grey images are repeated to three channels.
    """
    channels, side = _square("slvit", shape, multiple=4)
    patch, dim = min(side // 4, 16), 192
    if side % patch:
        raise SteppeError(f"slvit uses patches of 16 pixels above 64×64, and {side} is not a multiple of 16.")
    layers = [Layer(dim, LocalAttention(dim, 12, 64, per_head=False), hidden=192) for _ in range(9)]
    tokens: nn.Module = Tokens(3 if channels == 1 else channels, patch, dim, cardinal(1))
    if channels == 1:
        tokens = nn.Sequential(RepeatChannel(), tokens)
    return ViT(tokens, (side // patch) ** 2, layers, dim, classes)


def slvit_original(classes: int, shape: tuple[int, ...]) -> ViT:
    """SL-ViT with its authors' settings: patches of 4 pixels (8 above 32×32), 12 heads of 16, diagonal shifts.

    Lee, Lee and Song (arXiv 2112.13492): shifts by half a patch, one temperature per head, perceptrons of twice the
    dimension, Xavier-normal weights and zero biases. Their stochastic depth and dropout are left out.
    """
    patch, dim = 4 if max(shape[1:], default=0) <= 32 else 8, 192
    channels, side = _square("slvit-original", shape, multiple=patch)
    layers = [Layer(dim, LocalAttention(dim, 12, 16, per_head=True), hidden=384) for _ in range(9)]
    tokens = Tokens(channels, patch, dim, diagonal(patch // 2))
    model = ViT(tokens, (side // patch) ** 2, layers, dim, classes)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def vit_small(classes: int, shape: tuple[int, ...]) -> ViT:
    """Small ViT: 8×8 patches, 2 layers, dimension 384, perceptron 384, 8 heads, no dropout.

    It has the size of FedScar's CINIC-10 model. What is not stated there follows Dosovitskiy et al.: class token,
    biases in the attention, scale 1/√d.
    """
    channels, side = _square("vit-small", shape, multiple=8)
    layers = [Layer(384, Attention(384, 8, 48), hidden=384) for _ in range(2)]
    return ViT(Tokens(channels, side // 8, 384), 64, layers, 384, classes)


def vit(classes: int, shape: tuple[int, ...]) -> ViT:
    """ViT-tiny: dimension 192, depth 12, 3 heads of 64, patches of 4 pixels (8 above 32×32, 16 above 64×64).

    The size is DeiT-Ti's (Touvron et al., ICML 2021). Weights, class token and positions are initialised by
    N(0, 0.02²), biases by zero; no dropout and no stochastic depth.
    """
    side = max(shape[1:], default=0)
    patch, dim = 4 if side <= 32 else 8 if side <= 64 else 16, 192
    channels, side = _square("vit", shape, multiple=patch)
    layers = [Layer(dim, FusedAttention(dim, 3, 64), hidden=768) for _ in range(12)]
    model = ViT(Tokens(channels, patch, dim), (side // patch) ** 2, layers, dim, classes)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model
