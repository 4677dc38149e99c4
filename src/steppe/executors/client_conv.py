"""Convolutions whose weights differ between clients, with all clients in one kernel.

Under vmap, PyTorch turns them into a grouped convolution, which cuDNN runs as one small kernel per client. Here they
are operators over all clients. They use the Triton kernels of `client_conv_kernels.py` on a GPU, and grouped
convolutions elsewhere. The entry point is `ClientConvolutions`: while it is active, `F.conv2d` with a batched weight
on a GPU uses these operators.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call,no-untyped-def,untyped-decorator"

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.overrides import TorchFunctionMode

from steppe.core.stacking import move_clients_first
from steppe.executors import client_norm
from steppe.executors.client_attention import attend, suits
from steppe.executors.client_conv_kernels import (
    CHANNELS,
    FEW,
    PIXELS,
    WEIGHT_BACK,
    WEIGHT_FORWARD,
    can_use_triton,
    find_output_size,
    lay_out,
    prefers_contiguous_pixels,
    triton_conv,
    triton_input_grad,
    triton_weight_grad,
)
from steppe.executors.switches import SWITCHES


def _lay(t: Tensor, order: Sequence[int]) -> Tensor:
    """Do as `lay_out`, but keep t's shape. Outside the operators, a compiler can fuse the copy with its producer."""
    return lay_out(t, order).permute(*(order.index(axis) for axis in range(t.ndim)))


def _pad_channels(t: Tensor, channels: int) -> Tensor:
    """Pad a few channels to a multiple of four (3 to 4), so that each pixel is one aligned vector in memory."""
    if channels >= FEW or channels % 4 == 0:
        return t
    # Not F.pad, which would fix the number of clients in a trace that leaves it open.
    return torch.cat([t, t.new_zeros(*t.shape[:2], -channels % 4, *t.shape[3:])], 2)


def _fold_clients(t: Tensor) -> Tensor:
    """Reshape (C, B, ch, h, w) to the (B, C·ch, h, w) of a grouped convolution."""
    return t.transpose(0, 1).flatten(1, 2)


def _unfold_clients(t: Tensor, clients: int) -> Tensor:
    return _lay(t.unflatten(1, (clients, -1)).transpose(0, 1), PIXELS)


@torch.library.custom_op(
    "steppe::client_conv", mutates_args=(), schema="(Tensor x, Tensor w, int[] stride, int[] padding) -> Tensor"
)
def client_conv(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Convolve x (C, B, I, h, w) with w (C, O, I, kh, kw) to (C, B, O, h', w')."""
    if can_use_triton(x, w):
        return triton_conv(x, w, stride, padding)
    y = F.conv2d(_fold_clients(x), w.flatten(0, 1), None, stride, padding, groups=len(w))
    return _unfold_clients(y, len(w))


@client_conv.register_fake
def _(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    size = find_output_size(x, w, stride, padding)
    return x.new_empty(x.shape[0], x.shape[1], *size, w.shape[1]).movedim(-1, -3)


@torch.library.custom_op(
    "steppe::client_conv_input_grad", mutates_args=(),
    schema="(Tensor dy, Tensor w, int[] size, int[] stride, int[] padding) -> Tensor",
)  # fmt: skip
def client_conv_input_grad(
    dy: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Compute the gradient for an input of the given height and width."""
    if can_use_triton(dy, w):
        return triton_input_grad(dy, w, size, stride, padding)
    shape = (dy.shape[1], len(w) * w.shape[2], *size)
    dx = conv2d_input(shape, w.flatten(0, 1), _fold_clients(dy), stride, padding, groups=len(w))
    return _unfold_clients(dx, len(w))


@client_conv_input_grad.register_fake
def _(dy: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    return dy.new_empty(dy.shape[0], dy.shape[1], *size, w.shape[2]).movedim(-1, -3)


@torch.library.custom_op(
    "steppe::client_conv_weight_grad", mutates_args=(),
    schema="(Tensor dy, Tensor x, int[] size, int[] stride, int[] padding) -> Tensor",
)  # fmt: skip
def client_conv_weight_grad(
    dy: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Compute the gradient for a kernel of the given height and width."""
    if can_use_triton(dy, x):
        return triton_weight_grad(dy, x, size, stride, padding)
    clients, shape = len(x), (len(x) * dy.shape[2], x.shape[2], *size)
    dw = conv2d_weight(_fold_clients(x), shape, _fold_clients(dy), stride, padding, groups=clients)
    return _lay(dw.unflatten(0, (clients, -1)), WEIGHT_FORWARD)


@client_conv_weight_grad.register_fake
def _(dy: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    return x.new_empty(x.shape[0], dy.shape[2], *size, x.shape[2]).movedim(-1, 2)


# ------------------------------------------------------------------------------------- gradients and batching


def _batch_clients(function: Any, clients: int, dims: Sequence[int | None], left: Tensor, right: Tensor, *rest: Any,
             fold: bool) -> tuple[Tensor, int]:  # fmt: skip
    """Move the client axis to the front. If only `left` has one and `fold` allows it, merge it into the batch."""
    already = left.ndim - (dims[0] is not None) == 5  # inside another vmap, whose clients are merged with these
    if fold and dims[1] is None and not already:
        left = left.movedim(dims[0] or 0, 0)
        return function.apply(left.flatten(0, 1), right, *rest).unflatten(0, left.shape[:2]), 0
    left, right = move_clients_first(clients, (left, right), dims)
    if not already:
        return function.apply(left, right, *rest), 0
    both = left.shape[:2]
    return function.apply(left.flatten(0, 1), right.flatten(0, 1), *rest).unflatten(0, both), 0


class _Conv(torch.autograd.Function):
    """A convolution of x and w without clients (4 axes, by PyTorch) or with clients (5 axes, by `client_conv`)."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: list[int], padding: list[int]) -> Tensor:
        if w.ndim == 5:
            x, w = _pad_channels(x, x.shape[2]), _pad_channels(w, x.shape[2])
            return client_conv(_lay(x, PIXELS), _lay(w, WEIGHT_FORWARD), stride, padding)
        return torch.ops.aten.convolution(x, w, None, stride, padding, [1, 1], False, [0, 0], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx = _InputGrad.apply(g, w, list(x.shape[-2:]), ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
        dw = _WeightGrad.apply(g, x, list(w.shape[-2:]), ctx.stride, ctx.padding) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, stride: list[int], padding: list[int]) -> Any:
        return _batch_clients(_Conv, info.batch_size, in_dims[:2], x, w, stride, padding, fold=True)


class _InputGrad(torch.autograd.Function):
    """The gradient of `_Conv` for its input. The three functions are each other's derivatives."""

    @staticmethod
    def forward(dy: Tensor, w: Tensor, size: list[int], stride: list[int], padding: list[int]) -> Tensor:
        if w.ndim == 5:
            return client_conv_input_grad(_lay(dy, PIXELS), _lay(w, WEIGHT_BACK), size, stride, padding)
        return conv2d_input((dy.shape[0], w.shape[1], *size), w, dy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        dy, w, ctx.size, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(dy, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        dy, w = ctx.saved_tensors
        ddy = _Conv.apply(g, w, ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
        dw = _WeightGrad.apply(dy, g, list(w.shape[-2:]), ctx.stride, ctx.padding) if ctx.needs_input_grad[1] else None
        return ddy, dw, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, dy: Tensor, w: Tensor, *rest: Any) -> Any:
        return _batch_clients(_InputGrad, info.batch_size, in_dims[:2], dy, w, *rest, fold=True)


class _WeightGrad(torch.autograd.Function):
    """The gradient of `_Conv` for its weight."""

    @staticmethod
    def forward(dy: Tensor, x: Tensor, size: list[int], stride: list[int], padding: list[int]) -> Tensor:
        if x.ndim == 5:
            order = CHANNELS if x.is_cuda and prefers_contiguous_pixels(x, x.shape[2]) else PIXELS
            full = _lay(_pad_channels(x, x.shape[2]), PIXELS)
            return client_conv_weight_grad(_lay(dy, order), full, size, stride, padding)[:, :, : x.shape[2]]
        return conv2d_weight(x, (dy.shape[1], x.shape[1], *size), dy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        dy, x, _, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(dy, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        dy, x = ctx.saved_tensors
        ddy = _Conv.apply(x, g, ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
        dx = _InputGrad.apply(dy, g, list(x.shape[-2:]), ctx.stride, ctx.padding) if ctx.needs_input_grad[1] else None
        return ddy, dx, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, dy: Tensor, x: Tensor, *rest: Any) -> Any:
        return _batch_clients(_WeightGrad, info.batch_size, in_dims[:2], dy, x, *rest, fold=False)


# ------------------------------------------------------------------------------------------------ entry point


def _pair(value: int | Sequence[int]) -> list[int]:
    both = [value] if isinstance(value, int) else list(value)
    return both * 2 if len(both) == 1 else both


class ClientConvolutions(TorchFunctionMode):
    """A mode in which plain 2-D convolutions on these devices use `client_conv`; all others stay PyTorch's.

    It also replaces what vmap has no rule for: attention, and group norm on a CPU. And it lets models know that they
    are traced: those of transformers then leave out checks that read numbers, such as whether a mask is all ones.
    """

    def __init__(self, devices: Sequence[str] = ("cuda",)) -> None:
        super().__init__()
        self.devices = devices

    def __enter__(self) -> Self:
        self.before = torch.compiler._is_compiling_flag  # what torch.compiler.is_compiling() returns
        torch.compiler._is_compiling_flag = True
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch.compiler._is_compiling_flag = self.before
        super().__exit__(*raised)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if func is torch.conv2d and SWITCHES.client_conv:
            return self._convolve(*args, **kwargs)
        if (
            func is F.group_norm
            and args
            and args[0].device.type in self.devices
            and (found := self._normalise(*args, **kwargs)) is not None
        ):
            return found
        if func in (F.group_norm, torch.group_norm) and args and args[0].device.type == "cpu":
            # On a CPU, group norm checks inputs that look channels-last for that memory format, which vmap does not
            # support. With axes of length one, a contiguous tensor may look so too: flatten it and reshape it.
            args = (args[0].contiguous().flatten().view(args[0].shape), *args[1:])
        if func is F.layer_norm and args[0].device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            args = (args[0].float(), *args[1:])  # as on a GPU; vmap's rule takes no weight of another type
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        return func(*args, **kwargs)

    def _normalise(self, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
              eps: float = 1e-5) -> Tensor | None:  # fmt: skip
        if torch.is_autocast_enabled(input.device.type) or not client_norm.suits(input, num_groups, weight, bias):
            return None
        assert weight is not None
        assert bias is not None
        return client_norm.normalise_groups(input, num_groups, weight, bias, eps)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                   dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                   enable_gqa: bool = False) -> Tensor:  # fmt: skip
        if query.device.type in self.devices and not torch.is_autocast_enabled(query.device.type) and suits(
            query, key, value, attn_mask, dropout_p, is_causal, enable_gqa
        ):  # fmt: skip
            return attend(query, key, value, is_causal, scale)
        kind = query.device.type
        if torch.is_autocast_enabled(kind):
            # It casts these three. Under vmap it would also cast what PyTorch computes in float32 inside, where
            # gradients are not prepared for that.
            dtype = torch.get_autocast_dtype(kind)
            query, key, value = (t.to(dtype) for t in (query, key, value))
            attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        # vmap has no rule for the other kernels' gradients, and would loop over clients.
        with torch.autocast(kind, enabled=False), sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                                  enable_gqa=enable_gqa)  # fmt: skip

    def _convolve(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
                dilation: Any = 1, groups: int = 1) -> Tensor:  # fmt: skip
        plain = groups == 1 and _pair(dilation) == [1, 1] and not isinstance(padding, str) and input.ndim == 4
        same = input.dtype == weight.dtype and input.shape[1] == weight.shape[1]  # otherwise PyTorch raises the error
        kind = input.device.type
        here = kind in self.devices and weight.device.type == kind and not torch.is_autocast_enabled(kind)
        if not (plain and same and here):
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        y = _Conv.apply(input, weight, _pair(stride), _pair(padding))
        return y if bias is None else y + bias[:, None, None]
