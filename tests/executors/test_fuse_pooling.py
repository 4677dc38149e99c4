"""Convolution, bias, ReLU and pooling in one operator, against PyTorch: in the graph of a step, and each kernel."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from steppe.executors import fuse_pooling as ours
from steppe.executors.client_conv import ClientConvolutions, client_conv_input_grad, client_conv_weight_grad
from tests.executors.test_client_conv import near, rand
from tests.executors.triton_interpreter import interpret, needs_triton

# input channels, output channels, side, kernel, padding
SHAPES = [(3, 16, 8, 5, 2), (16, 24, 6, 3, 1), (32, 17, 8, 5, 0)]


def case(shape, dtype=torch.float64):
    channels, results, side, kernel, padding = shape
    x = rand(2, 3, channels, side, side, dtype=dtype, seed=1)
    w, bias = rand(2, results, channels, kernel, kernel, dtype=dtype, seed=2), rand(2, results, dtype=dtype, seed=3)
    return x, w, bias, [padding, padding]


def wanted(x, w, bias, padding):
    """The pooled pixels, a gradient for them, and the gradients that PyTorch makes of that, client by client."""
    leaves = [t.clone().requires_grad_() for t in (x, w, bias)]
    layers = zip(*leaves, strict=True)
    y = torch.stack([F.max_pool2d(F.relu(F.conv2d(a, b, c, padding=padding)), 2) for a, b, c in layers])
    g = rand(*y.shape, seed=4).to(y.dtype)
    return y.detach(), g, *torch.autograd.grad(y, leaves, g)


def check(shape, dtype, tolerance, device="cpu", pool=ours.client_conv_pool, unpool=ours.client_unpool):
    """Compare the operators with PyTorch's gradients in float64, at the same (rounded) numbers."""
    x, w, bias, padding = case(shape, dtype)
    y, g, dx, dw, db = wanted(*(t.double() for t in (x, w, bias)), padding)
    best, place = pool(*(t.to(device) for t in (x, w, bias)), [1, 1], padding)
    near(best.cpu().double(), y, tolerance)
    g = g.to(dtype)
    both = unpool(g.to(device), place, True, True)
    for dy in both:
        dy = dy.cpu().double()
        near(dy.sum((1, 3, 4)), db, tolerance)
        near(client_conv_input_grad(dy, w.double(), list(x.shape[-2:]), [1, 1], padding), dx, tolerance)
        near(client_conv_weight_grad(dy, x.double(), list(w.shape[-2:]), [1, 1], padding), dw, tolerance)
    near(torch.where(place < ours.NOWHERE, g.to(device), 0).cpu().double().sum((1, 3, 4)), db, tolerance)
    for wanted_ in ((True, False), (False, True)):
        for new, old, there in zip(unpool(g.to(device), place, *wanted_), both, wanted_, strict=True):
            assert torch.equal(new, old) if there else not len(new)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operators_equal_pytorch_on_a_cpu(shape):
    check(shape, torch.float64, 1e-12)


def test_operators_say_truthfully_what_they_return():
    x, w, bias, padding = case(SHAPES[1])
    best, place = ours.client_conv_pool(x, w, bias, [1, 1], padding)
    torch.library.opcheck(ours.client_conv_pool, (x, w, bias, [1, 1], padding))
    torch.library.opcheck(ours.client_unpool, (best, place, True, True))
    torch.library.opcheck(ours.client_unpool, (best, place, True, False))


def test_a_nan_is_not_lost():
    x, w, bias, padding = case(SHAPES[1])
    x[0, 0, 0, 2, 2] = float("nan")
    best, place = ours.client_conv_pool(x, w, bias, [1, 1], padding)
    assert best[0, 0].isnan().any()
    assert not best[1].isnan().any()
    assert (place[0, 0][best[0, 0].isnan()] < ours.NOWHERE).all()


class Net(nn.Module):
    def __init__(self, tapped=False):
        super().__init__()
        self.first, self.second, self.tapped = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3), tapped

    def forward(self, x):
        inner = F.relu(self.first(x))
        y = F.max_pool2d(F.relu(self.second(F.max_pool2d(inner, 2))), 2).square().sum()
        return y + inner.mean() if self.tapped else y


def trace(net):
    """The graph of the gradients of three clients, and its inputs."""
    names = dict(net.named_parameters())
    weights = {name: rand(3, *p.shape, seed=len(name)) / 4 for name, p in names.items()}

    def gradients(w, x):
        def one(w, x):
            with ClientConvolutions(("cpu",)):
                return grad(lambda w: functional_call(net, w, (x,)))(w)

        return tuple(vmap(one)(w, x).values())

    given = (weights, rand(3, 2, 3, 12, 12, seed=9))
    with torch.no_grad():
        return make_fx(gradients)(*given), given


def test_the_graph_of_a_step_is_fused_and_computes_the_same():
    graph, given = trace(Net())
    before = graph(*given)
    assert ours.fuse_pooling(graph.graph) == 2
    graph.graph.lint()
    graph.recompile()
    for new, old in zip(graph(*given), before, strict=True):
        near(new, old, 1e-12)
    names = " ".join(str(node.target) for node in graph.graph.nodes)
    for name in ("client_conv_pool", "client_unpool"):
        assert name in names
    for name in ("max_pool", "threshold"):
        assert name not in names


def test_activations_that_something_else_reads_are_left_alone():
    graph, given = trace(Net(tapped=True))
    before = graph(*given)
    assert ours.fuse_pooling(graph.graph) == 1  # the second convolution only
    graph.recompile()
    for new, old in zip(graph(*given), before, strict=True):
        near(new, old, 1e-12)


INTERPRETED = """
from tests.executors.test_fuse_pooling import SHAPES, check

for shape in SHAPES:
    check(shape, torch.float32, 1e-5, pool=ours.triton_conv_pool, unpool=ours.triton_unpool)
"""


@pytest.mark.slow
@needs_triton
def test_kernels_equal_pytorch_in_the_interpreter():
    interpret(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, (32, 64, 16, 5, 2)], ids=str)
def test_kernels_on_a_gpu(shape, dtype):
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        check(shape, dtype, 1e-5 if dtype == torch.float32 else 3e-2, "cuda")
