"""Group norm of all clients in one operator, with a residual connection and ReLU, against PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from steppe.executors import client_norm as ours
from steppe.executors import fuse_norm
from steppe.executors.client_conv import ClientConvolutions
from steppe.executors.switches import SWITCHES
from tests.executors.test_client_conv import near, nodes, rand
from tests.executors.triton_interpreter import interpret, needs_triton

# channels, groups, height, width
SHAPES = [(8, 2, 5, 4), (12, 3, 3, 3), (6, 1, 1, 1), (15, 3, 7, 5), (5, 5, 3, 1), (64, 2, 16, 16)]


@pytest.fixture
def enabled(monkeypatch):
    monkeypatch.setattr(SWITCHES, "client_norm", True)


def case(shape, dtype=torch.float64):
    channels, groups, *size = shape
    x, residual = (rand(2, 3, channels, *size, dtype=dtype, seed=i) for i in (1, 2))
    weight, bias = (rand(2, channels, dtype=dtype, seed=i) for i in (3, 4))
    return x + 1, residual, weight, bias, groups


def wanted(x, residual, weight, bias, groups, relu):
    """The result, a gradient for it, and the gradients that PyTorch makes of that, client by client."""
    given = [x, weight, bias] + ([] if residual is None else [residual])
    leaves = [t.clone().requires_grad_() for t in given]
    rows = []
    for each in zip(*leaves, strict=True):
        y = F.group_norm(each[0], groups, each[1], each[2], 1e-5)
        y = y + each[3] if residual is not None else y
        rows.append(F.relu(y) if relu else y)
    y = torch.stack(rows)
    g = rand(*y.shape, seed=5).to(y.dtype)
    return y.detach(), g, *torch.autograd.grad(y, leaves, g)


def scatter(t):
    """The same numbers, every second of a larger tensor whose axes are in another order."""
    return torch.stack([t, t + 1], -1).transpose(0, 1).contiguous().transpose(0, 1)[..., 0]


def check(shape, dtype, tolerance, device="cpu", forward=None, backward=None, odd=False):
    """Compare the operators with PyTorch in float64, at the same (rounded) numbers; `odd`: not contiguous in memory."""
    forward, backward = forward or ours.client_norm, backward or ours.client_norm_grad
    x, residual, weight, bias, groups = case(shape, dtype)
    for added, relu in ((None, False), (None, True), (residual, True)):
        right = wanted(*(None if t is None else t.double() for t in (x, added, weight, bias)), groups, relu)
        there = [None if t is None else t.to(device) for t in (x, added, weight, bias)]
        there = [scatter(t) if odd and t is not None else t for t in there]
        y, mean, rstd = forward(*there, groups, 1e-5, relu)
        near(y.cpu().double(), right[0], tolerance)
        assert y.movedim(-3, -1).is_contiguous()
        g = scatter(right[1].to(device, dtype)) if odd else right[1].to(device, dtype)
        # ReLU's gate is decided by y, whose sign rounding may change near zero.
        gate = right[0].to(device, dtype) if relu else None
        dx, gated, sums = backward(g, gate, there[0], there[2], mean, rstd, added is not None)
        for mine, theirs in zip((dx, *sums.sum(2)), right[2:], strict=False):
            near(mine.cpu().double(), theirs, tolerance)
        if added is not None:
            near(gated.cpu().double(), right[5], tolerance)
        else:
            assert not len(gated)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_operators_equal_pytorch_on_a_cpu(shape, odd):
    check(shape, torch.float64, 1e-12, odd=odd)


def test_no_example_is_a_batch_too():
    x, _, weight, bias, groups = case(SHAPES[0])
    y, mean, rstd = ours.client_norm(x[:, :0], None, weight, bias, groups, 1e-5, True)
    dx, _, sums = ours.client_norm_grad(y, y, x[:, :0], weight, mean, rstd, False)
    assert y.shape == dx.shape == x[:, :0].shape
    assert not sums.sum(2).any()


def test_operators_say_truthfully_what_they_return():
    x, residual, weight, bias, groups = case(SHAPES[0])
    tests = ("test_schema", "test_faketensor")
    for added, relu in ((None, False), (residual, True)):
        torch.library.opcheck(ours.client_norm, (x, added, weight, bias, groups, 1e-5, relu), test_utils=tests)
    y, mean, rstd = ours.client_norm(x, residual, weight, bias, groups, 1e-5, True)
    for gate, shall in ((None, False), (y, True)):
        torch.library.opcheck(ours.client_norm_grad, (x, gate, x, weight, mean, rstd, shall), test_utils=tests)


def value(x, weight, bias):
    with ClientConvolutions(("cpu",)):
        return F.group_norm(x, 2, weight, bias).pow(3).sum()


def plain(x, weight, bias):
    return F.group_norm(x.contiguous().flatten().view(x.shape), 2, weight, bias).pow(3).sum()


@pytest.mark.usefixtures("enabled")
def test_vmapped_gradients_equal_pytorch():
    x, _, weight, bias, _ = case(SHAPES[0])
    all_ = vmap(grad(value, argnums=(0, 1, 2)))
    for mine, theirs in zip(all_(x, weight, bias), wanted_gradients(x, weight, bias), strict=True):
        near(mine, theirs)
    assert {"steppe::client_norm", "steppe::client_norm_grad"} <= set(nodes(all_, x, weight, bias))
    partly = vmap(grad(value, argnums=(0, 1, 2)), in_dims=(0, None, None))(x, weight[0], bias[0])
    same = [t[:1].expand_as(t) for t in (weight, bias)]
    for mine, theirs in zip(partly, wanted_gradients(x, *same), strict=True):
        near(mine, theirs)
    nested = vmap(all_)(*(torch.stack([t, t.sin()]) for t in (x, weight, bias)))
    near(nested[0][1], wanted_gradients(x.sin(), weight.sin(), bias.sin())[0])


def wanted_gradients(x, weight, bias):
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    return torch.autograd.grad(sum(plain(*each) for each in zip(*leaves, strict=True)), leaves)


@pytest.mark.usefixtures("enabled")
def test_second_derivatives():
    args = [rand(2, 4, 2, 2).requires_grad_(), rand(4, seed=1).requires_grad_(), rand(4, seed=2).requires_grad_()]
    assert torch.autograd.gradgradcheck(lambda *t: ours.normalise_groups(t[0], 2, t[1], t[2], 1e-5), args)


def test_switched_off_it_is_pytorch():
    x, _, weight, bias, _ = case(SHAPES[0])
    assert "steppe::client_norm" not in nodes(vmap(value), x, weight, bias)


class Block(nn.Module):
    """A residual block, whose shortcut is the input or a normalised convolution of it."""

    def __init__(self, shortcut):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.shortcut = nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)) if shortcut else nn.Sequential()

    def forward(self, x):
        inner = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(inner)) + self.shortcut(x))


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("tapped", [False, True])
def test_a_network_is_fused_and_computes_the_same(tapped):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Block(False), Block(True)).double()
    own = {k: torch.stack([p.detach(), p.detach().sin(), 1.1 * p.detach()]) for k, p in net.named_parameters()}
    x = rand(3, 2, 3, 4, 4)
    seen = []
    net[1].norm1.register_forward_hook(lambda _, __, out: seen.append(out))

    def loss(p, x):
        seen.clear()
        y = functional_call(net, p, (x,)).square().sum()
        return y + seen[0].pow(3).mean() if tapped else y  # something else reads what comes before ReLU

    def ours_(p, x):
        with ClientConvolutions(("cpu",)):
            return grad(loss)(p, x)

    with torch.no_grad():
        graph = make_fx(vmap(ours_))(own, x)
    assert fuse_norm.fuse_norm(graph.graph) == (3 if tapped else 4)
    graph.graph.lint()
    graph.recompile()
    names = [str(n.target) for n in graph.graph.nodes]
    assert names.count("aten.relu.default") == names.count("aten.threshold_backward.default") == int(tapped)
    assert names.count("steppe.client_norm_grad.default") == 5
    found = graph(own, x)
    for i in range(3):
        for name, theirs in grad(loss)({k: p[i] for k, p in own.items()}, x[i]).items():
            near(found[name][i], theirs)


INTERPRETED = """
from steppe.executors import client_norm_kernels as kernels
from tests.executors.test_client_norm import SHAPES, check

for most in (4096, 64):  # one block for an example, and several
    kernels.MOST = most
    for shape in SHAPES if most == 4096 else SHAPES[:1]:
        check(shape, torch.float32, 2e-5, forward=kernels.triton_norm, backward=kernels.triton_norm_grad)
check(SHAPES[0], torch.float16, 1e-2, forward=kernels.triton_norm, backward=kernels.triton_norm_grad)
check(SHAPES[1], torch.float32, 2e-5, forward=kernels.triton_norm, backward=kernels.triton_norm_grad, odd=True)
"""


@pytest.mark.slow
@needs_triton
def test_kernels_equal_pytorch_in_the_interpreter():
    interpret(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, (512, 2, 1, 1), (64, 2, 32, 32)], ids=str)
def test_kernels_on_a_gpu(shape, dtype):
    check(shape, dtype, 2e-5 if dtype == torch.float32 else 4e-2, "cuda")
