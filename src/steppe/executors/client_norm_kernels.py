"""The Triton kernels of `client_norm.py`: group norm with ReLU and a residual connection, and its gradient.

One program computes one group of one example: its numbers are read, reduced and written in blocks of (pixels,
channels). Everything is channels-last in memory and computed in float32:

    n = (x − mean) · rstd         y = relu(n · weight + bias + residual)
    d = dy where y > 0            dx = rstd · (d · weight − mean(d · weight) − n · mean(d · weight · n))

The gradients of weight and bias are sums over the pixels of each example, which are added outside.
"""

# mypy: disable-error-code="no-any-return,no-untyped-def,untyped-decorator"

from functools import cache
from typing import Any

import torch
from torch import Tensor

from steppe.executors.client_conv_kernels import PIXELS, launch, lay_out

MOST = 4096  # numbers in a block


@cache
def _make_kernels() -> tuple[Any, Any]:
    import triton
    import triton.language as tl

    @triton.jit
    def norm(
        x, residual, weight, bias, y, mean, rstd, batch, EPS: tl.constexpr, P: tl.constexpr, CH: tl.constexpr,
        GROUPS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ):  # fmt: skip
        WIDE: tl.constexpr = CH // GROUPS
        at = tl.program_id(0).to(tl.int64)
        example = at // GROUPS
        client = example // batch
        n = tl.arange(0, BN)
        c = at % GROUPS * WIDE + n
        m = tl.arange(0, BM)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, P, BM):
            there = example * (P * CH) + ((start + m) * CH)[:, None] + c[None, :]
            real = ((start + m) < P)[:, None] & (n < WIDE)[None, :]
            total += tl.load(x + there, mask=real, other=0.0).to(tl.float32)
        middle = tl.sum(tl.sum(total, 1), 0) / (P * WIDE)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, P, BM):
            there = example * (P * CH) + ((start + m) * CH)[:, None] + c[None, :]
            real = ((start + m) < P)[:, None] & (n < WIDE)[None, :]
            away = tl.where(real, tl.load(x + there, mask=real, other=0.0).to(tl.float32) - middle, 0.0)
            total += away * away
        scale = 1.0 / tl.sqrt(tl.sum(tl.sum(total, 1), 0) / (P * WIDE) + EPS)
        tl.store(mean + at, middle)
        tl.store(rstd + at, scale)
        w = tl.load(weight + client * CH + c, mask=n < WIDE, other=0.0).to(tl.float32)[None, :]
        b = tl.load(bias + client * CH + c, mask=n < WIDE, other=0.0).to(tl.float32)[None, :]
        for start in range(0, P, BM):
            there = example * (P * CH) + ((start + m) * CH)[:, None] + c[None, :]
            real = ((start + m) < P)[:, None] & (n < WIDE)[None, :]
            value = (tl.load(x + there, mask=real, other=0.0).to(tl.float32) - middle) * scale * w + b
            if RESIDUAL:
                value += tl.load(residual + there, mask=real, other=0.0).to(tl.float32)
            if RELU:
                value = tl.where(value < 0, 0.0, value)  # NaN stays NaN
            tl.store(y + there, value.to(y.dtype.element_ty), mask=real)

    @triton.jit
    def norm_grad(
        g, y, x, weight, mean, rstd, dx, gated, dweight, dbias, batch, P: tl.constexpr, CH: tl.constexpr,
        GROUPS: tl.constexpr, RELU: tl.constexpr, SHALL_GATE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ):  # fmt: skip
        WIDE: tl.constexpr = CH // GROUPS
        at = tl.program_id(0).to(tl.int64)
        example = at // GROUPS
        client = example // batch
        n = tl.arange(0, BN)
        c = at % GROUPS * WIDE + n
        m = tl.arange(0, BM)
        middle = tl.load(mean + at)
        scale = tl.load(rstd + at)
        plain = tl.zeros((BM, BN), dtype=tl.float32)
        along = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, P, BM):
            there = example * (P * CH) + ((start + m) * CH)[:, None] + c[None, :]
            real = ((start + m) < P)[:, None] & (n < WIDE)[None, :]
            d = tl.load(g + there, mask=real, other=0.0).to(tl.float32)
            if RELU:
                d = tl.where(tl.load(y + there, mask=real, other=0.0) <= 0, 0.0, d)
            plain += d
            along += d * (tl.load(x + there, mask=real, other=0.0).to(tl.float32) - middle) * scale
        sums = tl.sum(plain, 0)
        sums_along = tl.sum(along, 0)
        tl.store(dbias + example * CH + c, sums, mask=n < WIDE)
        tl.store(dweight + example * CH + c, sums_along, mask=n < WIDE)
        w = tl.load(weight + client * CH + c, mask=n < WIDE, other=0.0).to(tl.float32)
        first = tl.sum(w * sums, 0) / (P * WIDE)
        second = tl.sum(w * sums_along, 0) / (P * WIDE)
        for start in range(0, P, BM):
            there = example * (P * CH) + ((start + m) * CH)[:, None] + c[None, :]
            real = ((start + m) < P)[:, None] & (n < WIDE)[None, :]
            d = tl.load(g + there, mask=real, other=0.0).to(tl.float32)
            if RELU:
                d = tl.where(tl.load(y + there, mask=real, other=0.0) <= 0, 0.0, d)
            if SHALL_GATE:
                tl.store(gated + there, d.to(gated.dtype.element_ty), mask=real)
            even = (tl.load(x + there, mask=real, other=0.0).to(tl.float32) - middle) * scale
            value = scale * (d * w[None, :] - first - even * second)
            tl.store(dx + there, value.to(dx.dtype.element_ty), mask=real)

    return norm, norm_grad


def _choose_blocks(pixels: int, channels: int, groups: int) -> dict[str, int]:
    columns = max(2, 1 << (channels // groups - 1).bit_length())
    rows = max(2, min(MOST // columns, 1 << (pixels - 1).bit_length()))
    return {"BM": rows, "BN": columns, "num_warps": max(1, min(8, rows * columns // 512))}


def fits(channels: int, groups: int) -> bool:
    """Return whether a block holds all channels of a group."""
    return channels % groups == 0 and channels // groups <= MOST


def triton_norm(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float,
                relu: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch the forward pass; return the result, and mean and 1/std of each group in float32."""
    clients, batch, channels, height, width = x.shape
    y = x.new_empty(clients, batch, height, width, channels)
    mean, rstd = (x.new_empty(clients, batch, groups, dtype=torch.float32) for _ in range(2))
    given = lay_out(x, PIXELS)
    with torch.cuda.device_of(x):
        launch(
            _make_kernels()[0], (clients * batch * groups,), given,
            given if residual is None else lay_out(residual, PIXELS), weight.contiguous(), bias.contiguous(), y,
            mean, rstd, batch, EPS=eps, P=height * width, CH=channels, GROUPS=groups, RESIDUAL=residual is not None,
            RELU=relu, **_choose_blocks(height * width, channels, groups),
        )  # fmt: skip
    return y.movedim(-1, -3), mean, rstd


def triton_norm_grad(g: Tensor, y: Tensor | None, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor,
                     shall_gate: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch the gradient; y is the result of ReLU, if there is one. The sums of each example are in float32."""
    clients, batch, channels, height, width = x.shape
    groups = mean.shape[-1]
    dx = x.new_empty(clients, batch, height, width, channels)
    gated = torch.empty_like(dx) if shall_gate else dx
    sums = x.new_empty(2, clients, batch, channels, dtype=torch.float32)  # for weight and bias
    given = lay_out(g, PIXELS)
    with torch.cuda.device_of(x):
        launch(
            _make_kernels()[1], (clients * batch * groups,), given, given if y is None else lay_out(y, PIXELS),
            lay_out(x, PIXELS), weight.contiguous(), mean.contiguous(), rstd.contiguous(), dx, gated, *sums,
            batch, P=height * width, CH=channels, GROUPS=groups, RELU=y is not None, SHALL_GATE=shall_gate,
            **_choose_blocks(height * width, channels, groups),
        )  # fmt: skip
    return dx.movedim(-1, -3), gated.movedim(-1, -3) if shall_gate else dx.new_empty(0), sums
