"""The Triton kernels of `client_conv.py`, and their launch parameters.

They are matrix products over pixels that gather the patches on the fly ("implicit GEMM"). The client is one more axis
of the launch grid:

    forward       y[p, o]  = Σ_{tap, i}  x[p·stride − padding + tap, i] · w[o, tap, i]
    input         dx[q, i] = Σ_{tap, o}  dy[(q + padding − tap) / stride, o] · w[o, tap, i]
    weight        dw[o, tap, i] = Σ_p    dy[p, o] · x[p·stride − padding + tap, i]

Bias, ReLU and 2×2 max-pooling may follow in the same kernel (POOL): the four pixels of a window are then neighbouring
rows of the product, and the result is the largest of each four and its place. Backward, dy is the gradient of the
pooled pixel at that place, and zero elsewhere (`unpool`).

Everything is channels-last in memory, so that the summed index is contiguous. Shapes are PyTorch's.
"""

# mypy: disable-error-code="no-any-return,no-untyped-def,untyped-decorator"

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

FEW = 16  # with fewer channels than this, one block of the sum covers several taps
WEIGHT_FORWARD, WEIGHT_BACK = (0, 1, 3, 4, 2), (0, 2, 3, 4, 1)  # (C, O, I, kh, kw) with the summed channels last
PIXELS, CHANNELS = (0, 1, 3, 4, 2), (0, 2, 1, 3, 4)  # (C, B, ch, h, w) with the channels, or the pixels, last
NOWHERE = 4  # the place of a pooled pixel that ReLU has set to zero; the others are 0 to 3, row by row


class Blocks(NamedTuple):
    """Launch parameters: the block of the product that one program computes, its warps and pipeline stages."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def lay_out(t: Tensor, order: Sequence[int]) -> Tensor:
    """Return t permuted to this order and contiguous; no copy is made if its memory is already in this order."""
    return t.permute(*order).contiguous()


def _compute_size(inner: int, kernel: int, stride: int, padding: int) -> int:
    return (inner + 2 * padding - kernel) // stride + 1


def _round_to_power(n: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << (n - 1).bit_length()))


@cache
def _make_kernels() -> tuple[Any, Any, Any] | None:
    """Return the three Triton kernels, or None if Triton is not installed."""
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    # H, W, I are the source's rows, columns and channels; OH, OW, N are the result's. Only the taps H0 … H1 − 1 and
    # W0 … W1 − 1 ever meet a pixel. BACK: the result's pixels fall into SH·SW phases by their remainder. The pixels of
    # a phase share the taps that reach them, kh0 + j·SH. Within a phase, it is a backward convolution of stride 1.
    @triton.jit
    def conv(
        x, w, y, bias, place, batch, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, OH: tl.constexpr,
        OW: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
        PH: tl.constexpr, PW: tl.constexpr, H0: tl.constexpr, H1: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
        BACK: tl.constexpr, POOL: tl.constexpr, FLAT: tl.constexpr, PRECISION: tl.constexpr,
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ):  # fmt: skip
        tile = tl.program_id(0)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        client = tl.program_id(2).to(tl.int64)
        GH: tl.constexpr = (OH + SH - 1) // SH if BACK else OH
        GW: tl.constexpr = (OW + SW - 1) // SW if BACK else OW
        DH: tl.constexpr = SH if BACK else 1  # the distance between taps
        DW: tl.constexpr = SW if BACK else 1
        SIGN: tl.constexpr = -1 if BACK else 1
        kh0 = H0
        kw0 = W0
        th = H1 - H0
        tw = W1 - W0
        phase_h = 0
        phase_w = 0
        if BACK and SH * SW > 1:
            tiles = tl.cdiv(batch * GH * GW, BM)
            phase_h = tile // tiles // SW
            phase_w = tile // tiles % SW
            tile = tile % tiles
            kh0 = H0 + (phase_h + PH - H0) % SH
            kw0 = W0 + (phase_w + PW - W0) % SW
            th = (H1 - kh0 + SH - 1) // SH
            tw = (W1 - kw0 + SW - 1) // SW
        m = tile * BM + tl.arange(0, BM)
        b = m // (GH * GW)
        oh = m // GW % GH
        ow = m % GW
        if POOL:
            oh = m // 4 // (GW // 2) % (GH // 2) * 2 + m % 4 // 2
            ow = m // 4 % (GW // 2) * 2 + m % 2
        if BACK:
            h = oh + (phase_h + PH - kh0) // SH
            v = ow + (phase_w + PW - kw0) // SW
            oh = oh * SH + phase_h
            ow = ow * SW + phase_w
        else:
            h = oh * SH - PH + H0
            v = ow * SW - PW + W0
        kept = (b < batch) & (oh < OH) & (ow < OW)
        x += client * (batch * H * W * I)
        w += client * (N * KH * KW * I)
        row = ((b * H + h) * W + v) * I
        column = n * (KH * KW * I)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        if FLAT:
            for start in range(0, th * tw * I, BK):
                k = start + tl.arange(0, BK)
                real = k < th * tw * I
                i = k % I
                jh = k // I // tw
                jw = k // I % tw
                hh = h[:, None] + SIGN * jh[None, :]
                vv = v[:, None] + SIGN * jw[None, :]
                inside = (hh >= 0) & (hh < H) & (vv >= 0) & (vv < W) & kept[:, None] & real[None, :]
                there = (SIGN * (jh * W + jw)) * I + i
                tap = (kh0 + DH * jh) * KW + kw0 + DW * jw
                left = tl.load(x + row[:, None] + there[None, :], mask=inside, other=0.0)
                right = tl.load(w + column[None, :] + (tap * I + i)[:, None], mask=(n < N)[None, :] & real[:, None],
                                other=0.0)  # fmt: skip
                total = tl.dot(left, right, total, input_precision=PRECISION)
        else:
            for step in range(0, th * tw * ((I + BK - 1) // BK)):
                i = step // (th * tw) * BK + tl.arange(0, BK)
                jh = step % (th * tw) // tw
                jw = step % (th * tw) % tw
                hh = h + SIGN * jh
                vv = v + SIGN * jw
                inside = ((hh >= 0) & (hh < H) & (vv >= 0) & (vv < W) & kept)[:, None]
                there = (SIGN * (jh * W + jw)) * I + i
                tap = (kh0 + DH * jh) * KW + kw0 + DW * jw
                real = (n < N)[None, :]
                if I % BK != 0:
                    inside = inside & (i < I)[None, :]
                    real = real & (i < I)[:, None]
                left = tl.load(x + row[:, None] + there[None, :], mask=inside, other=0.0)
                right = tl.load(w + column[None, :] + (tap * I + i)[:, None], mask=real, other=0.0)
                total = tl.dot(left, right, total, input_precision=PRECISION)
        if POOL:
            total += tl.load(bias + client * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
            four = tl.permute(tl.reshape(total, (BM // 4, 2, 2, BN)), (0, 3, 1, 2))
            left, right = tl.split(four)
            best, third = tl.split(left)
            second, fourth = tl.split(right)
            at_best = tl.zeros((BM // 4, BN), dtype=tl.int32)
            for i in tl.static_range(1, 4):
                other = second if i == 1 else third if i == 2 else fourth
                take = (other > best) | (other != other)  # NaN stays NaN
                best = tl.where(take, other, best)
                at_best = tl.where(take, i, at_best)
            best = tl.where(best < 0, 0.0, best)
            at_best = tl.where(best <= 0, 4, at_best)  # NOWHERE
            window = tile * (BM // 4) + tl.arange(0, BM // 4)
            windows = batch * (OH // 2) * (OW // 2)
            there = (client * windows + window)[:, None] * N + n[None, :]
            real = (window < windows)[:, None] & (n < N)[None, :]
            tl.store(y + there, best.to(y.dtype.element_ty), mask=real)
            tl.store(place + there, at_best.to(tl.uint8), mask=real)
        else:
            y += client * (batch * OH * OW * N)
            at = ((b * OH + oh) * OW + ow) * N
            tl.store(y + at[:, None] + n[None, :], total.to(y.dtype.element_ty), mask=kept[:, None] & (n < N)[None, :])

    # One program sums `length` pixels for a block of (output channel) × (tap, input channel). TURNED: the pixels of dy
    # are contiguous, as tensor cores need for 32-bit numbers, because they cannot transpose them.
    @triton.jit
    def weight_grad(
        dy, x, out, batch, length, clients, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, OH: tl.constexpr,
        OW: tl.constexpr, O: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
        PH: tl.constexpr, PW: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ):  # fmt: skip
        K: tl.constexpr = KH * KW * I
        TILES: tl.constexpr = (K + BN - 1) // BN
        o = tl.program_id(0) // TILES * BM + tl.arange(0, BM)
        n = tl.program_id(0) % TILES * BN + tl.arange(0, BN)
        part = tl.program_id(1)
        client = tl.program_id(2).to(tl.int64)
        kh = n // I // KW
        kw = n // I % KW
        column = (kh * W + kw) * I + n % I
        pixels = batch * OH * OW
        dy += client * (pixels * O)
        x += client * (batch * H * W * I)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(part * length, tl.minimum((part + 1) * length, pixels), BK):
            m = start + tl.arange(0, BK)
            b = m // (OH * OW)
            h = m // OW % OH * SH - PH
            v = m % OW * SW - PW
            real = m < pixels
            if TURNED:
                left = tl.load(dy + o[:, None] * pixels + m[None, :], mask=(o < O)[:, None] & real[None, :], other=0.0)
            else:
                left = tl.load(dy + (m * O)[:, None] + o[None, :], mask=real[:, None] & (o < O)[None, :], other=0.0)
                left = tl.trans(left)
            hh = h[:, None] + kh[None, :]
            vv = v[:, None] + kw[None, :]
            inside = (hh >= 0) & (hh < H) & (vv >= 0) & (vv < W) & real[:, None] & (n < K)[None, :]
            row = ((b * H + h) * W + v) * I
            right = tl.load(x + row[:, None] + column[None, :], mask=inside, other=0.0)
            total = tl.dot(left, right, total, input_precision=PRECISION)
        out += (part * clients + client) * (O * K)
        at = (o * K)[:, None] + n[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=(o < O)[:, None] & (n < K)[None, :])

    # The gradient before ReLU and pooling, from that of the pooled pixels and their places, with the channels last in
    # memory (SHALL_PIXELS), with the pixels last (SHALL_CHANNELS), or both.
    @triton.jit
    def unpool(
        g, place, dy, turned, batch, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, SHALL_PIXELS: tl.constexpr,
        SHALL_CHANNELS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ):  # fmt: skip
        m = tl.program_id(0) * BM + tl.arange(0, BM)
        o = tl.program_id(1) * BN + tl.arange(0, BN)
        client = tl.program_id(2).to(tl.int64)
        pixels = batch * H * W
        window = (m // (H * W) * (H // 2) + m // W % H // 2) * (W // 2) + m % W // 2
        here = m // W % H % 2 * 2 + m % W % 2
        at = client * (pixels // 4 * O) + (window * O)[:, None] + o[None, :]
        real = (m < pixels)[:, None] & (o < O)[None, :]
        value = tl.load(g + at, mask=real, other=0.0)
        value = tl.where(here[:, None] == tl.load(place + at, mask=real, other=4), value, 0.0)
        if SHALL_PIXELS:
            tl.store(dy + client * (pixels * O) + (m * O)[:, None] + o[None, :], value, mask=real)
        if SHALL_CHANNELS:
            there = client * (pixels * O) + o[:, None] * pixels + m[None, :]
            tl.store(turned + there, tl.trans(value), mask=(o < O)[:, None] & (m < pixels)[None, :])

    return conv, weight_grad, unpool


_put_off: dict[Any, Callable[[], Any]] | None = None  # compilations of kernels that were not launched


def _launch(which: int, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    kernels = _make_kernels()
    assert kernels is not None
    launch(kernels[which], grid, *args, **constants)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch a Triton kernel, or note that it will have to be compiled (`skip_launches`)."""
    if _put_off is None:
        kernel[grid](*args, **constants)
        return
    kinds = [a.dtype if isinstance(a, Tensor) else a for a in args]
    _put_off[id(kernel), *kinds, *constants.values()] = partial(kernel.warmup, *kinds, grid=grid, **constants)


@contextmanager
def skip_launches() -> Iterator[dict[Any, Callable[[], Any]]]:
    """Launch no kernel in this context, so that none has to be compiled for a trace; their results are arbitrary.

    The context's value has the compilations that were not needed.
    """
    global _put_off
    before, _put_off = _put_off, {}
    try:
        yield _put_off
    finally:
        _put_off = before


def compile_together(compilations: Iterable[Callable[[], Any]]) -> None:
    """Compile kernels in threads: one by one, those of a ResNet-18 take longer than its trace."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(each) for each in compilations]:
            done.result()


def _choose_precision(t: Tensor) -> str:
    """Return the precision of products: TF32, or three TF32 products, which are as exact as float32 and faster."""
    return "tf32" if t.dtype != torch.float32 or torch.backends.cudnn.allow_tf32 else "tf32x3"


def prefers_contiguous_pixels(t: Tensor, channels: int) -> bool:
    """Return whether the weight gradient is faster with the pixels of dy contiguous, even if that needs a copy."""
    return t.dtype == torch.float32 and _choose_precision(t) == "tf32" and channels % 4 == 0 and channels >= FEW


def choose_conv_blocks(t: Tensor, clients: int, pixels: int, channels: int, results: int, back: bool = False) -> Blocks:
    """Choose tall blocks, as wide as the channels allow, but enough of them for all multiprocessors."""
    tf32 = t.element_size() == 4 and _choose_precision(t) == "tf32"
    if back and tf32 and channels >= 32 and 16 < results <= 32 and clients * pixels >= 256 * 264:
        return Blocks(256, 32, 32, 8, 3)  # H200, gradient for 32 channels: 96 µs, with 128 rows and 4 warps 105
    m = 64 if pixels <= 64 else 128
    n = _round_to_power(results, 16, 128 if t.element_size() == 2 else 64)
    while n > 32 and clients * -(-pixels // m) * -(-results // n) < 132:
        n //= 2
    wide = 32 if t.element_size() == 4 or channels < 64 else 64
    k = wide if channels < FEW else _round_to_power(channels, 16, wide)
    return Blocks(m, n, k, 8 if m * n > 128 * 64 else 4, 3)


def choose_weight_grad_blocks(t: Tensor, channels: int, results: int, taps: int) -> Blocks:
    """Choose the blocks of the weight gradient.

    Hopper's larger instructions need four warps and 64 rows and, for 32-bit numbers, also x with contiguous pixels.
    Two warps select the older instructions, which take x as it is.
    """
    m = _round_to_power(results, 16, 64)
    n = _round_to_power(taps * channels, 16, 128)
    k = 64 if t.element_size() == 2 and channels >= FEW else 32
    return Blocks(m, n, k, 2 if t.element_size() == 4 and _choose_precision(t) == "tf32" and m == 64 else 4, 3)


def split_sum(clients: int, tiles: int, pixels: int, k: int, wanted: int) -> tuple[int, int]:
    """Return into how many sums a weight gradient is split, and the pixels of each, for `wanted` programs in all."""
    count = max(1, min(-(-wanted // (clients * tiles)), -(-pixels // (8 * k))))
    length = -(-pixels // (count * k)) * k
    return -(-pixels // length), length


def _find_taps(inner: int, outer: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Return the range of taps that meet a pixel: of a 3×3 kernel on a 1×1 image, only the middle one does."""
    first = min(max(0, padding - (outer - 1) * stride), kernel - 1)
    return first, max(first + 1, min(kernel, inner + padding))


def triton_conv(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int],
                blocks: Blocks | None = None) -> Tensor:  # fmt: skip
    """Launch the forward convolution."""
    return _convolve(x, w, find_output_size(x, w, stride, padding), stride, padding, False, blocks)[0]


def triton_conv_pool(x: Tensor, w: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int],
                     blocks: Blocks | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the forward convolution with bias, ReLU and pooling; return the pooled pixels and their places."""
    y, place = _convolve(x, w, find_output_size(x, w, stride, padding), stride, padding, False, blocks, bias=bias)
    assert place is not None
    return y, place


def triton_input_grad(dy: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
                      blocks: Blocks | None = None) -> Tensor:  # fmt: skip
    """Launch the gradient for the input."""
    return _convolve(dy, w, size, stride, padding, True, blocks)[0]


def find_output_size(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Return the height and width of the forward convolution's output."""
    return [_compute_size(*each) for each in zip(x.shape[3:], w.shape[3:], stride, padding, strict=True)]


def _convolve(x: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], back: bool,
              blocks: Blocks | None, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Launch `conv`; with a bias, it also pools."""
    clients, batch, channels, *inner = x.shape
    pool = bias is not None
    results, kernel = w.shape[2] if back else w.shape[1], w.shape[3:]
    large, small = (size, inner) if back else (inner, size)  # of the forward convolution's input and output
    taps = [_find_taps(*each) for each in zip(large, small, kernel, stride, padding, strict=True)]
    phases = stride[0] * stride[1] if back else 1
    pixels = batch * (-(-size[0] // stride[0]) * -(-size[1] // stride[1]) if back else size[0] * size[1])
    blocks = blocks or choose_conv_blocks(x, clients * phases, pixels, channels, results, back)
    y = x.new_empty(clients, batch, *(side // (2 if pool else 1) for side in size), results)
    place = torch.empty_like(y, dtype=torch.uint8) if pool else y
    grid = (phases * -(-pixels // blocks.m), -(-results // blocks.n), clients)
    with torch.cuda.device_of(x):
        _launch(
            0, grid, lay_out(x, PIXELS), lay_out(w, WEIGHT_BACK if back else WEIGHT_FORWARD), y,
            y if bias is None else bias.contiguous(), place, batch, H=inner[0], W=inner[1],
            I=channels, OH=size[0], OW=size[1], N=results, KH=kernel[0], KW=kernel[1], SH=stride[0], SW=stride[1],
            PH=padding[0], PW=padding[1], H0=taps[0][0], H1=taps[0][1], W0=taps[1][0], W1=taps[1][1], BACK=back,
            POOL=pool, FLAT=channels < FEW, PRECISION=_choose_precision(x), BM=blocks.m, BN=blocks.n,
            BK=blocks.k, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
    return y.movedim(-1, -3), place.movedim(-1, -3) if pool else None


def triton_weight_grad(dy: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
                       blocks: Blocks | None = None, is_turned: bool | None = None,
                       wanted: int | None = None) -> Tensor:  # fmt: skip
    """Launch the gradient for the weight, as about `wanted` programs."""
    clients, batch, channels, *inner = x.shape
    # Four programs per multiprocessor of an H200; with 32-bit numbers eight: 114 instead of 127 µs.
    wanted = wanted or (1056 if x.element_size() == 4 else 528)
    results, *outer = dy.shape[2:]
    is_turned = prefers_contiguous_pixels(x, channels) if is_turned is None else is_turned
    columns, pixels = size[0] * size[1] * channels, batch * outer[0] * outer[1]
    blocks = blocks or choose_weight_grad_blocks(x, channels, results, size[0] * size[1])
    tiles = -(-results // blocks.m) * -(-columns // blocks.n)
    count, length = split_sum(clients, tiles, pixels, blocks.k, wanted)
    # A single sum is the result. Several sums are added afterwards, always in the same order.
    out = x.new_empty(count, clients, results, *size, channels, dtype=x.dtype if count == 1 else torch.float32)
    with torch.cuda.device_of(x):
        _launch(
            1, (tiles, count, clients), lay_out(dy, CHANNELS if is_turned else PIXELS), lay_out(x, PIXELS), out, batch,
            length, clients, H=inner[0], W=inner[1], I=channels, OH=outer[0], OW=outer[1], O=results, KH=size[0],
            KW=size[1], SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], TURNED=is_turned,
            PRECISION=_choose_precision(x), BM=blocks.m, BN=blocks.n, BK=blocks.k, num_warps=blocks.warps,
            num_stages=blocks.stages,
        )  # fmt: skip
    total = out[0] if count == 1 else out.sum(0).to(x.dtype)
    return total.movedim(-1, 2)


def triton_unpool(g: Tensor, place: Tensor, pixels: bool, channels: bool, rows: int = 64,
                  columns: int = 32) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the gradient of ReLU and pooling, in the wanted layouts (see `PIXELS` and `CHANNELS`); None is empty."""
    clients, batch, results, height, width = g.shape
    height, width = 2 * height, 2 * width
    dy = g.new_empty(clients, batch, height, width, results) if pixels else g.new_empty(0)
    other = g.new_empty(clients, results, batch, height, width) if channels else g.new_empty(0)
    grid = (-(-batch * height * width // rows), -(-results // columns), clients)
    with torch.cuda.device_of(g):
        _launch(
            2, grid, lay_out(g, PIXELS), lay_out(place, PIXELS), dy, other, batch, H=height, W=width, O=results,
            SHALL_PIXELS=pixels, SHALL_CHANNELS=channels, BM=rows, BN=columns,
        )  # fmt: skip
    return (dy.movedim(-1, -3) if pixels else dy), (other.transpose(1, 2) if channels else other)


@cache
def _can(device: torch.device) -> bool:
    return (
        torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0) and _make_kernels() is not None
    )


def can_use_triton(*tensors: Tensor) -> bool:
    """Return whether the Triton kernels can take these tensors; their offsets within a client have 32 bits."""
    known = all(t.is_cuda and t.dtype in (torch.float32, torch.bfloat16) for t in tensors)
    return known and all(t[0].numel() < 2**31 for t in tensors) and _can(tensors[0].device)
