"""Attention of all clients in one call: their axis is merged into the batch's, forward and backward.

PyTorch's fused kernels have a batching rule for the forward pass alone, so under vmap their gradients would run one
client after the other. Attention has no weights, so the clients are only more examples.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call,no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.core.stacking import move_clients_first
from steppe.executors.switches import SWITCHES

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)


def suits(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, dropout: float = 0.0, causal: bool = False,
          gqa: bool = False) -> bool:  # fmt: skip
    """Return whether the fused kernels can take these tensors (examples, heads, tokens, width)."""
    plain = SWITCHES.client_attention and mask is None and not dropout and not gqa and q.ndim == k.ndim == v.ndim == 4
    if not plain or not (q.dtype == k.dtype == v.dtype) or not (q.shape[-1] == k.shape[-1] == v.shape[-1]):
        return False
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or (causal and q.shape != k.shape):
        return False
    if q.device.type == "cpu":
        return q.dtype in (torch.float32, torch.float64)
    known = q.dtype == torch.float32 or q.dtype in HALF
    return known and q.shape[-1] % 8 == 0 and q.shape[-1] <= 128 and _can(q.device)


def _can(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Return softmax(scale · q·kᵀ)·v, as `F.scaled_dot_product_attention` does."""
    return _Attention.apply(q, k, v, causal, scale)[0]


class _Attention(torch.autograd.Function):
    """Attention of (examples, heads, tokens, width); also returns what the gradient needs."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, ...]:
        if q.device.type == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        if q.dtype in HALF:
            found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
            return found[0], found[1], found[6], found[7]
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, ctx.causal, ctx.scale = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*given, *output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
        return *_AttentionGrad.apply(ctx.causal, ctx.scale, g, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Any:
        folded = _fold(info.batch_size, in_dims[:3], (q, k, v))
        out, log, *seeds = _Attention.apply(*folded, *how)
        return (*_unfold(info.batch_size, (out, log)), *seeds), (0, 0, *[None] * len(seeds))


class _AttentionGrad(torch.autograd.Function):
    """The gradients of `_Attention`; it has none itself, as PyTorch's kernels have none."""

    @staticmethod
    def forward(causal: bool, scale: float | None, g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
                log: Tensor, *seeds: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
        if g.stride(-1) != 1:
            g = g.contiguous()
        if q.device.type == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu_backward(
                g, q, k, v, out, log, 0.0, causal, scale=scale
            )
        if q.dtype in HALF:
            return aten._scaled_dot_product_flash_attention_backward(
                g, q, k, v, out, log, None, None, q.shape[2], k.shape[2], 0.0, causal, *seeds, scale=scale
            )
        return aten._scaled_dot_product_efficient_attention_backward(
            g, q, k, v, None, out, log, *seeds, 0.0, [True, True, True, False], causal, scale=scale
        )[:3]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("second derivatives of fused attention are not implemented")

    @staticmethod
    def vmap(info: Any, in_dims: Any, causal: bool, scale: float | None, *tensors: Tensor) -> Any:
        folded = _fold(info.batch_size, in_dims[2:8], tensors[:6])
        found = _AttentionGrad.apply(causal, scale, *folded, *tensors[6:])
        return tuple(_unfold(info.batch_size, found)), (0, 0, 0)


def _fold(clients: int, dims: Any, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Merge the client axis into the examples'."""
    return [t.flatten(0, 1) for t in move_clients_first(clients, tensors, dims)]


def _unfold(clients: int, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.unflatten(0, (clients, -1)) for t in tensors]
