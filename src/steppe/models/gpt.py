"""A small decoder-only transformer for the next token (Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019): learned positions, layer norm before each part, GELU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.models.lstm import check_sequence
from steppe.models.mlp import activations


class CausalAttention(nn.Module):
    """Self-attention in which no token sees a later one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, heads, T, d)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens (B, T) to logits (B, T, tokens): the next token at every place."""

    head = "classifier"

    def __init__(self, tokens: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(length, width))
        self.body = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.classifier = nn.Linear(width, tokens)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                last = name.endswith(("out.weight", "mlp.2.weight"))  # what is added to the residual stream
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.taps = activations(self)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.embedding(x) + self.position[: x.shape[-1]])

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def gpt(classes: int, shape: tuple[int, ...], width: int = 64, heads: int = 4, layers: int = 2) -> GPT:
    """Small GPT: two blocks of width 64 with four heads, causal attention."""
    check_sequence("gpt", shape)
    return GPT(classes, shape[0], width, heads, layers)
