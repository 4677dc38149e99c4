"""Group norm of all clients in one kernel, channels-last.

Under vmap, PyTorch's group norm becomes a normalisation without weights, products with the clients' weights, and a
dozen small reductions backward. Here it is one operator forward and one backward, which can also take a residual
connection and ReLU (`fuse_norm.py`).
"""

# mypy: disable-error-code="no-any-return,no-untyped-call,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.core.stacking import move_clients_first
from steppe.executors.client_conv_kernels import PIXELS, can_use_triton, lay_out
from steppe.executors.client_norm_kernels import fits, triton_norm, triton_norm_grad
from steppe.executors.switches import SWITCHES


def _put_last(t: Tensor) -> Tensor:
    return lay_out(t, PIXELS).movedim(-1, -3)


def _compute_statistics(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and 1/std of each group of (…, channels, height, width)."""
    grouped, all_ = x.unflatten(-3, (groups, -1)), (-3, -2, -1)
    mean = grouped.mean(all_)
    var = (grouped - mean[..., None, None, None]).square().mean(all_)  # var_mean warns of a batch without examples
    return mean, (var + eps).rsqrt()


def _spread_groups(values: Tensor, x: Tensor) -> Tensor:
    """Spread a number per group over (…, channels, height, width)."""
    return values.repeat_interleave(x.shape[-3] // values.shape[-1], -1)[..., None, None]


def _align_weight(weight: Tensor) -> Tensor:
    return weight[..., None, :, None, None]


@torch.library.custom_op(
    "steppe::client_norm", mutates_args=(),
    schema="(Tensor x, Tensor? residual, Tensor weight, Tensor bias, int groups, float eps, bool relu) -> "
    "(Tensor, Tensor, Tensor)",
)  # fmt: skip
def client_norm(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float,
                relu: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Normalise x (C, B, ch, h, w) with weight and bias (C, ch); return also mean and 1/std (C, B, groups)."""
    if can_use_triton(x):
        return triton_norm(x, residual, weight, bias, groups, eps, relu)
    wide = x if x.dtype == torch.float64 else x.float()
    mean, rstd = _compute_statistics(wide, groups, eps)
    y = (wide - _spread_groups(mean, x)) * _spread_groups(rstd, x) * _align_weight(weight) + _align_weight(bias)
    y = y if residual is None else y + residual
    return _put_last((y.relu() if relu else y).to(x.dtype)), mean, rstd


@client_norm.register_fake
def _(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float,
      relu: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    clients, batch, channels, *size = x.shape
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, rstd = (x.new_empty(clients, batch, groups, dtype=wide) for _ in range(2))
    return x.new_empty(clients, batch, *size, channels).movedim(-1, -3), mean, rstd


@torch.library.custom_op(
    "steppe::client_norm_grad", mutates_args=(),
    schema="(Tensor g, Tensor? y, Tensor x, Tensor weight, Tensor mean, Tensor rstd, bool shall_gate) -> "
    "(Tensor, Tensor, Tensor)",
)  # fmt: skip
def client_norm_grad(g: Tensor, y: Tensor | None, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor,
                     shall_gate: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, of the residual (if wanted), and of weight and bias by example (2, C, B, ch).

    y is the result of ReLU, if there is one.
    """
    if can_use_triton(g, x):
        return triton_norm_grad(g, y, x, weight, mean, rstd, shall_gate)
    d = g if y is None else torch.where(y <= 0, 0, g)
    dx, *sums = _compute_gradients(d.to(mean.dtype), x.to(mean.dtype), weight.to(mean.dtype), mean, rstd)
    return (
        _put_last(dx.to(x.dtype)),
        _put_last(d.clone()) if shall_gate else x.new_empty(0),
        torch.stack(sums),
    )


def _compute_gradients(
    d: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    groups = mean.shape[-1]
    even = (x - _spread_groups(mean, x)) * _spread_groups(rstd, x)
    steep = d * _align_weight(weight)

    def average(t: Tensor) -> Tensor:
        return _spread_groups(t.unflatten(-3, (groups, -1)).mean((-3, -2, -1)), x)

    dx = _spread_groups(rstd, x) * (steep - average(steep) - even * average(steep * even))
    return dx, (d * even).sum((-2, -1)), d.sum((-2, -1))


@client_norm_grad.register_fake
def _(g: Tensor, y: Tensor | None, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor,
      shall_gate: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    clients, batch, channels, *size = x.shape
    dx = x.new_empty(clients, batch, *size, channels).movedim(-1, -3)
    sums = x.new_empty(2, clients, batch, channels, dtype=mean.dtype)
    return dx, torch.empty_like(dx) if shall_gate else x.new_empty(0), sums


# ------------------------------------------------------------------------------------- gradients and batching


def suits(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Return whether the operators can take this group norm of images (without the client axis)."""
    if not SWITCHES.client_norm or weight is None or bias is None or x.ndim != 4 or x.dtype == torch.float16:
        return False
    return x.dtype == weight.dtype == bias.dtype and x.shape[1] == len(weight) and fits(x.shape[1], groups)


def normalise_groups(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return group norm of x, as `F.group_norm` does."""
    return _Norm.apply(x, weight, bias, groups, eps)[0]


class _Norm(torch.autograd.Function):
    """Group norm of x (B, ch, h, w), or with clients (C, B, ch, h, w); also returns mean and 1/std of the groups."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, ...]:
        if x.ndim == 4:
            return tuple(
                t[0] for t in client_norm(_put_last(x[None]), None, weight[None], bias[None], groups, eps, False)
            )
        return client_norm(_put_last(x), None, weight, bias, groups, eps, False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
        return *_NormGrad.apply(g, *ctx.saved_tensors, ctx.eps), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, *how: Any) -> Any:
        given = move_clients_first(info.batch_size, (x, weight, bias), in_dims[:3])
        if given[0].ndim == 5:
            return _Norm.apply(*given, *how), (0, 0, 0)
        found = _Norm.apply(*(t.flatten(0, 1) for t in given), *how)  # inside another vmap: one axis for both
        return tuple(t.unflatten(0, given[0].shape[:2]) for t in found), (0, 0, 0)


class _NormGrad(torch.autograd.Function):
    """The gradients of `_Norm` for x, weight and bias."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, eps: float) -> tuple[Tensor, ...]:
        one = x.ndim == 4
        given = [t[None] for t in (g, x, weight, mean, rstd)] if one else [g, x, weight, mean, rstd]
        dx, _, sums = client_norm_grad(_put_last(given[0]), None, _put_last(given[1]), *given[2:], False)
        dweight, dbias = sums.sum(2).to(x.dtype)
        return (dx[0], dweight[0], dbias[0]) if one else (dx, dweight, dbias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        g, x, weight, mean, _, ctx.eps = inputs
        ctx.groups = mean.shape[-1]
        ctx.save_for_backward(g, x, weight)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Any, ...]:
        def plain(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            dx, dweight, dbias = _compute_gradients(g, x, weight, *_compute_statistics(x, ctx.groups, ctx.eps))
            return dx, dweight.sum(-2), dbias.sum(-2)

        pull = torch.func.vjp(plain, *ctx.saved_tensors)[1]
        return *pull(above), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        front = move_clients_first(info.batch_size, given[:5], in_dims[:5])
        if front[1].ndim == 5:
            return _NormGrad.apply(*front, given[5]), (0, 0, 0)
        found = _NormGrad.apply(*(t.flatten(0, 1) for t in front), given[5])
        return tuple(t.unflatten(0, front[1].shape[:2]) for t in found), (0, 0, 0)
