"""Convolutions with a weight a client, against F.conv2d: the wiring in float64, the kernels in Triton's interpreter."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import steppe
from steppe.executors import client_conv
from steppe.executors.client_conv import ClientConvolutions
from steppe.executors.switches import SWITCHES
from tests.executors.triton_interpreter import interpret, needs_triton

OURS = {"steppe::client_conv", "steppe::client_conv_input_grad", "steppe::client_conv_weight_grad"}
# input channels, output channels, height, width, kernel, stride, padding
SHAPES = [
    (3, 5, 9, 8, 5, 1, 2),
    (32, 20, 7, 7, 5, 1, 2),
    (20, 17, 9, 7, 3, 2, 1),
    (3, 16, 11, 11, 7, 2, 3),
    (16, 8, 5, 5, 1, 2, 0),
    (16, 33, 1, 1, 3, 1, 1),  # only one tap meets a pixel
    (16, 8, 2, 2, 3, 2, 1),  # the first tap meets none, and strides: the last stage of ResNet-18 on small images
    (3, 8, 1, 2, 3, 2, 1),
    (4, 4, 9, 9, 2, 3, 1),  # pixels that no tap reaches
    (17, 6, 8, 6, (3, 2), (2, 1), (1, 0)),
]


def rand(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def case(shape, clients=2, batch=3, dtype=torch.float64):
    channels, results, height, width, kernel, stride, padding = shape
    stride, padding, kernel = (client_conv._pair(v) for v in (stride, padding, kernel))
    x = rand(clients, batch, channels, height, width, dtype=dtype, seed=1)
    w = rand(clients, results, channels, *kernel, dtype=dtype, seed=2)
    return x, w, stride, padding


def wanted(x, w, stride, padding, rounded=None):
    """Output, a gradient for it, and the gradients that PyTorch makes of that, one client after the other."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = torch.stack([F.conv2d(a, b, None, stride, padding) for a, b in zip(x, w, strict=True)])
    g = rand(*y.shape, dtype=rounded or y.dtype, seed=3).to(y.dtype)
    return y.detach(), g, *torch.autograd.grad(y, (x, w), g)


def near(ours, theirs, tolerance=1e-10):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.abs().max() + 1))


def nodes(function, *args):
    with torch.no_grad():
        graph = make_fx(function)(*args)
    return [
        n.target.name().split(".")[0]
        for n in graph.graph.nodes
        if n.op == "call_function" and hasattr(n.target, "name")
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operators_equal_conv2d_on_a_cpu(shape):
    x, w, stride, padding = case(shape)
    y, g, dx, dw = wanted(x, w, stride, padding)
    ours = client_conv.client_conv(x, w, stride, padding)
    near(ours, y)
    assert ours.movedim(-3, -1).is_contiguous()
    near(client_conv.client_conv_input_grad(g, w, list(x.shape[-2:]), stride, padding), dx)
    near(client_conv.client_conv_weight_grad(g, x, list(w.shape[-2:]), stride, padding), dw)


def test_operators_say_truthfully_what_they_return():
    x, w, stride, padding = case(SHAPES[2])
    g = wanted(x, w, stride, padding)[1]
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(client_conv.client_conv, (x, w, stride, padding), test_utils=tests)
    size = list(x.shape[-2:])
    torch.library.opcheck(client_conv.client_conv_input_grad, (g, w, size, stride, padding), test_utils=tests)
    size = list(w.shape[-2:])
    torch.library.opcheck(client_conv.client_conv_weight_grad, (g, x, size, stride, padding), test_utils=tests)


@pytest.mark.parametrize("memory", ["plain", "channels last", "flat"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_vmapped_gradients_equal_conv2d(shape, memory):
    x, w, stride, padding = case(shape)
    _, g, dx, dw = wanted(x, w, stride, padding)
    if memory == "channels last":
        x, g = (t.movedim(2, -1).contiguous().movedim(-1, 2) for t in (x, g))
    if memory == "flat":  # the weight as a piece of each client's vector, (out, kh, kw, in)
        flat = torch.cat([rand(len(w), 3), w.movedim(2, -1).flatten(1), rand(len(w), 4)], 1)
        o, i, kh, kw = w.shape[1:]
        w = flat[:, 3:-4].unflatten(1, (o, kh, kw, i)).movedim(-1, 2)

    def value(x, w, g):
        with ClientConvolutions(("cpu",)):
            return (F.conv2d(x, w, None, stride, padding) * g).sum()

    mine = vmap(grad(value, argnums=(0, 1)))
    near(mine(x, w, g)[0], dx)
    near(mine(x, w, g)[1], dw)
    assert set(nodes(mine, x, w, g)) >= OURS


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 2)])
def test_partly_batched(dims):
    x, w, stride, padding = case(SHAPES[2])
    x, w = x[0] if dims[0] is None else x.movedim(0, dims[0]), w[0] if dims[1] is None else w.movedim(0, dims[1])

    def value(mode):
        def inner(x, w):
            with mode:
                return F.conv2d(x, w, None, stride, padding).square().sum()

        return vmap(grad(inner, argnums=(0, 1)), in_dims=dims)

    for ours, theirs in zip(value(ClientConvolutions(("cpu",)))(x, w), value(nullcontext())(x, w), strict=True):
        near(ours, theirs)


def test_an_unbatched_weight_folds_the_clients_into_the_batch():
    x, w, stride, padding = case(SHAPES[2])

    def teacher(x):
        with ClientConvolutions(("cpu",)):
            return F.conv2d(x, w[0], None, stride, padding)

    near(vmap(teacher)(x)[1], F.conv2d(x[1], w[0], None, stride, padding))
    seen = nodes(vmap(teacher), x)
    assert not OURS & set(seen)
    assert seen.count("aten::convolution") == 1


def test_without_vmap_it_is_conv2d():
    x, w, stride, padding = case(SHAPES[2])
    with ClientConvolutions(("cpu",)):
        ours = F.conv2d(x[0], w[0], rand(17), stride=tuple(stride), padding=tuple(padding))
    near(ours, F.conv2d(x[0], w[0], rand(17), stride, padding))
    assert torch.autograd.gradgradcheck(
        lambda x, w: client_conv._Conv.apply(x, w, [2, 1], [1, 0]),
        (rand(1, 2, 4, 3).requires_grad_(), rand(2, 2, 3, 2).requires_grad_()),
    )


def test_second_derivatives_and_nested_vmap():
    x, w = rand(2, 3, 2, 2, 4, 3), rand(2, 3, 3, 2, 3, 2, seed=4)
    args = (x[0].requires_grad_(), w[0].requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x, w: client_conv._Conv.apply(x, w, [2, 1], [1, 0]), args)

    def value(x, w):
        with ClientConvolutions(("cpu",)):
            return F.conv2d(x, w, None, (2, 1), (1, 0)).pow(3).sum()

    def plain(x, w):
        return F.conv2d(x, w, None, (2, 1), (1, 0)).pow(3).sum()

    for argnum in (0, 1):
        near(vmap(vmap(grad(value, argnum)))(x, w), vmap(vmap(grad(plain, argnum)))(x, w))
        outside = grad(lambda *a: vmap(value)(*a).sum(), argnum)(x[0], w[0])
        near(outside, vmap(grad(plain, argnum))(x[0], w[0]))


def test_what_is_not_plain_is_left_to_pytorch(monkeypatch):
    x, w = rand(2, 3, 4, 6, 6), rand(2, 4, 4, 3, 3, seed=4)

    def with_mode(*devices, **options):
        def one(x, w):
            with ClientConvolutions(devices):
                return F.conv2d(x, w[:, : 4 // options.get("groups", 1)], **options)

        near(vmap(one)(x, w), torch.stack([one(a, b) for a, b in zip(x, w, strict=True)]))
        return OURS & set(nodes(vmap(one), x, w))

    assert with_mode("cpu", padding=1)
    assert not with_mode("cuda", padding=1)
    assert not with_mode("cpu", padding="same")
    assert not with_mode("cpu", dilation=2)
    assert not with_mode("cpu", groups=2)
    monkeypatch.setattr(SWITCHES, "client_conv", False)
    assert not with_mode("cpu", padding=1)


def test_group_norm_under_vmap_on_a_cpu():
    x, w = rand(2, 3, 4, 5, 5), rand(2, 4)

    def one(x, w):
        with ClientConvolutions():
            return F.group_norm(x.contiguous(memory_format=torch.channels_last), 2, w)

    x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    near(
        vmap(lambda x, w: _normed(x, w))(x, w), torch.stack([F.group_norm(a, 2, b) for a, b in zip(x, w, strict=True)])
    )


def _normed(x, w):
    with ClientConvolutions():
        return F.group_norm(x, 2, w)


def test_a_network_trains_alike_with_and_without():
    """A whole model: convolutions, group norm, pooling and a teacher whose weights all clients share."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 1), torch.nn.Flatten(), torch.nn.Linear(16, 3),
    ).double()  # fmt: skip
    shared = {k: p.detach() for k, p in model.named_parameters()}
    own = {k: torch.stack([p, 1.1 * p, p.sin()]) for k, p in shared.items()}
    x = rand(3, 2, 3, 8, 8)

    def value(p, x):
        taught = functional_call(model, shared, (x,))
        return (functional_call(model, p, (x,)) - 0.5 * taught).square().sum()

    def ours(p, x):
        with ClientConvolutions(("cpu",)):
            return grad(value)(p, x)

    mine = vmap(ours)(own, x)
    for i in range(3):
        for k, theirs in grad(value)({k: p[i] for k, p in own.items()}, x[i]).items():
            near(mine[k][i], theirs)


def test_batched_executor_runs_group_norm_with_a_teacher():
    """Group norm after a convolution with a teacher's weights: what vmap on a CPU refused."""
    settings = {"clients": 4, "per_round": 2, "rounds": 1, "max_steps": 2, "batch": 4, "dtype": "float64"}
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = steppe.Data("noise", images, torch.arange(40) % 4, images[:8], torch.arange(8) % 4, classes=4)
    runs = [
        steppe.run("fedntd", "resnet8-gn", data, executor=e, device="cpu", **settings)
        for e in ("batched", "sequential")
    ]
    near(runs[0].x, runs[1].x, 1e-9)


@pytest.mark.slow
def test_traced_and_compiled():
    x, w, stride, padding = case(SHAPES[1], dtype=torch.float32)

    def step(x, w):
        def value(w):
            with ClientConvolutions(("cpu",)):
                return F.relu(F.conv2d(x, w, None, stride, padding)).square().sum()

        return w - 0.1 * grad(value)(w)

    with torch.no_grad():
        graph = make_fx(vmap(step))(x, w)
        compiled = torch.compile(graph, dynamic=False)
        near(compiled(x, w), vmap(step)(x, w), 1e-5)
    assert sum(n.target is torch.ops.steppe.client_conv_weight_grad.default for n in graph.graph.nodes) == 1


INTERPRETED = """
from tests.executors.test_client_conv import SHAPES, case, near, wanted

def check(shape, dtype, tolerance, blocks=None):
    x, w, stride, padding = case(shape, batch=2, dtype=dtype)
    y, g, dx, dw = wanted(x, w, stride, padding)
    near(ours.triton_conv(x, w, stride, padding, blocks), y, tolerance)
    near(ours.triton_input_grad(g, w, list(x.shape[-2:]), stride, padding, blocks), dx, tolerance)
    for turned in (False, True):
        near(ours.triton_weight_grad(g, x, list(w.shape[-2:]), stride, padding, blocks, turned), dw, tolerance)

for shape in SHAPES:
    check(shape, torch.float32, 1e-5)
check(SHAPES[2], torch.float16, 1e-2)
check(SHAPES[2], torch.float32, 1e-5, ours.Blocks(16, 16, 16, 4, 3))  # several tiles and partial sums
check(SHAPES[0], torch.float32, 1e-5, ours.Blocks(16, 16, 16, 4, 3))
"""


@pytest.mark.slow
@needs_triton
def test_kernels_equal_conv2d_in_the_interpreter():
    interpret(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_on_a_gpu(shape, dtype):
    x, w, stride, padding = case(shape)
    x, w = x.to(dtype).double(), w.to(dtype).double()  # the same numbers for both
    y, g, dx, dw = wanted(x, w, stride, padding, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    x, w, g = (t.to("cuda", dtype) for t in (x, w, g))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        near(client_conv.client_conv(x, w, stride, padding).cpu().double(), y, tolerance)
        near(
            client_conv.client_conv_input_grad(g, w, list(x.shape[-2:]), stride, padding).cpu().double(), dx, tolerance
        )
        near(
            client_conv.client_conv_weight_grad(g, x, list(w.shape[-2:]), stride, padding).cpu().double(), dw, tolerance
        )
