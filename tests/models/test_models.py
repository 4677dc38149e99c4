"""Parameter counts of the papers, the head and the taps, and batching over parameter sets."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from steppe.core.errors import SteppeError
from steppe.executors.client_conv import ClientConvolutions
from steppe.models import MODELS, build, describe
from steppe.models.resnet import Convolution3
from steppe.models.vit import Attention, FusedAttention, cardinal, diagonal, shifted

TEXT = {"lstm", "lstm-fedavg", "gpt"}  # tests/data/test_shakespeare.py
SHAPES = {name: (3, 64, 64) if name == "convnet-tiny" else (3, 32, 32) for name in MODELS if name not in TEXT}
EVERY = pytest.mark.parametrize("name", SHAPES)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "shape", "parameters"),
    [
        ("cnn", 10, (3, 32, 32), 2_156_490),
        ("cnn", 10, (3, 28, 28), 1_664_970),
        ("cnn", 10, (1, 28, 28), 1_664_970),  # the grey channel is repeated
        ("cnn", 9, (3, 28, 28), 1_664_457),
        ("cnn", 8, (1, 28, 28), 1_663_944),
        ("cnn", 10, (1, 8, 8), 188_810),  # one channel stays one channel
        ("mlp", 10, (1, 28, 28), 199_210),
        ("mlp", 10, (64,), 55_210),
        ("lenet", 10, (3, 32, 32), 797_962),
        ("lenet", 100, (3, 32, 32), 815_332),
        ("convnet-tiny", 200, (3, 64, 64), 2_447_688),
        ("vgg11", 10, (3, 32, 32), 9_750_922),
        ("vgg11", 10, (3, 28, 28), 9_750_922),
        ("vgg11-linear", 10, (3, 32, 32), 9_225_610),
        ("resnet18-gn", 10, (3, 32, 32), 11_181_642),
        ("resnet18-gn", 100, (3, 32, 32), 11_227_812),
        ("resnet18-bs", 10, (3, 32, 32), 11_173_962),
        ("resnet18-cifar-gn", 10, (3, 32, 32), 11_173_962),
        ("resnet18-bn", 10, (3, 32, 32), 11_173_962),
        ("resnet8-gn", 100, (3, 32, 32), 1_258_404),
        ("slvit", 10, (3, 32, 32), 6_176_275),
        ("slvit", 10, (1, 28, 28), 6_132_625),
        ("slvit-original", 10, (3, 32, 32), 2_729_878),
        ("vit-small", 10, (3, 32, 32), 1_825_930),
        ("vit", 100, (3, 32, 32), 5_380_132),
    ],
)
def test_parameter_counts_and_output(name: str, classes: int, shape: tuple[int, ...], parameters: int):
    model = build(name, classes, shape)
    assert count(model) == parameters
    assert model(torch.randn(2, *shape)).shape == (2, classes)


def test_resnet18_gn_is_the_network_of_fedsmoo():
    model = build("resnet18-gn", 10, (3, 32, 32))
    assert len(list(model.parameters())) == 62
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy.deepcopy(model).to("meta")(torch.zeros(1, 3, 32, 32, device="meta"))  # a CPU skips products with padding
    assert round(counter.get_total_flops() / 2e6, 1) == 37.0  # a multiply and an add are two operations
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)


@pytest.mark.parametrize(("stride", "height", "width"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)])
def test_a_convolution_to_one_pixel_is_a_product_with_the_taps_that_see_the_image(stride: int, height: int, width: int):
    torch.manual_seed(0)
    layer, x = Convolution3(3, 5, stride).double(), torch.randn(4, 3, height, width, dtype=torch.double)
    both = (x.requires_grad_(), layer.weight)
    with FlopCounterMode(display=False) as counter:
        found = layer(x)
    assert counter.get_total_flops() == 2 * 4 * 5 * 3 * height * width
    expected = nn.Conv2d.forward(layer, x)
    torch.testing.assert_close(found, expected)
    along = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(found, both, along), torch.autograd.grad(expected, both, along))


@EVERY
def test_head_is_the_last_word_and_taps_are_called_once_in_order(name: str):
    model, x = build(name, 7, SHAPES[name]), torch.randn(2, *SHAPES[name])
    seen: list[torch.Tensor] = []
    calls: list[str] = []
    model.get_submodule(model.head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert model.taps
    for tap in model.taps:
        module = model.get_submodule(tap)
        assert isinstance(module, nn.ReLU | nn.GELU)
        assert not getattr(module, "inplace", False)
        module.register_forward_hook(lambda *_, tap=tap: calls.append(tap))
    logits = model(x)
    assert calls == list(model.taps)
    (features,) = seen
    assert features.ndim == 2
    assert torch.equal(model.get_submodule(model.head)(features), logits)
    assert torch.equal(model.features(x), features)


def test_number_of_taps():
    expected = {"cnn": 3, "mlp": 2, "lenet": 4, "convnet-tiny": 5, "vgg11": 10, "resnet18-gn": 17, "slvit": 9}
    assert {name: len(build(name, 10, SHAPES[name]).taps) for name in expected} == expected


def test_taps_are_taken_before_pooling():
    model, shapes = build("lenet", 10, (3, 32, 32)), []
    for tap in model.taps:
        model.get_submodule(tap).register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[1:])))
    model(torch.zeros(1, 3, 32, 32))
    assert shapes == [(64, 28, 28), (64, 10, 10), (384,), (192,)]


@EVERY
def test_only_running_statistics_are_buffers(name: str):
    assert bool(list(build(name, 10, SHAPES[name]).buffers())) == (name == "resnet18-bn")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=[pytest.mark.slow] * (name in ("resnet18-bs", "vgg11-linear")), id=name)
        for name, shape in SHAPES.items()
        if name != "resnet18-bn"
    ]
    + [("cnn", (1, 28, 28)), pytest.param("vgg11", (1, 28, 28), marks=pytest.mark.slow), ("slvit", (1, 28, 28))],
)
def test_vmap_equals_a_loop(name: str, shape: tuple[int, ...]):
    torch.manual_seed(0)
    models = [build(name, 5, shape).double() for _ in range(2)]
    x, y = torch.randn(2, 2, *shape, dtype=torch.float64), torch.tensor([[0, 1], [2, 3]])

    def loss(parameters, x, y):
        with ClientConvolutions():  # as the executors do, for attention
            return F.cross_entropy(functional_call(models[0], parameters, (x,)), y)

    stacked = {
        key: torch.stack([p.detach(), q.detach()])
        for (key, p), (_, q) in zip(models[0].named_parameters(), models[1].named_parameters(), strict=True)
    }
    batched = vmap(grad(loss))(stacked, x, y)
    for i, model in enumerate(models):
        alone = torch.autograd.grad(F.cross_entropy(model(x[i]), y[i]), list(model.parameters()))
        for (key, _), g in zip(model.named_parameters(), alone, strict=True):
            torch.testing.assert_close(batched[key][i], g, rtol=0, atol=1e-9, msg=f"{name}: {key}")


@EVERY
def test_channels_last_changes_nothing(name: str):
    model, x = build(name, 10, SHAPES[name]).double(), torch.randn(2, *SHAPES[name], dtype=torch.float64)
    plain = model(x)
    again = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(again, plain, rtol=0, atol=1e-9)


def test_vgg_initialisation():
    convolutions = [m for m in build("vgg11", 10, (3, 32, 32)).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 8
    assert all(not m.bias.any() for m in convolutions)
    last = convolutions[-1].weight
    assert last.std().item() == pytest.approx(math.sqrt(2 / (9 * 512)), rel=0.01)


def test_shifted_copies_move_one_pixel_and_zeros_move_in():
    x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    _, right, left, down, up = shifted(x, cardinal(1))[0]
    assert right.tolist() == [[0, 1, 2], [0, 4, 5], [0, 7, 8]]
    assert left.tolist() == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    assert down.tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert up.tolist() == [[4, 5, 6], [7, 8, 9], [0, 0, 0]]
    assert shifted(x, diagonal(1))[0, 1].tolist() == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]


def test_tokens_are_patches_with_the_channels_innermost():
    model = build("vit-small", 10, (2, 16, 16))
    seen: list[torch.Tensor] = []
    model.tokens.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.arange(512.0).reshape(1, 2, 16, 16)
    model(x)
    assert seen[0].shape == (1, 64, 8)
    patch = x[0, :, 2:4, 4:6]  # row 1, column 2 of the 8×8 grid
    assert torch.equal(seen[0][0, 10], patch.permute(1, 2, 0).flatten())


@pytest.mark.parametrize(("name", "d"), [("slvit", 64), ("slvit-original", 16)])
def test_local_attention_starts_at_the_usual_scale_and_never_looks_at_itself(name: str, d: int):
    attention = build(name, 10, (3, 32, 32)).layers[0].attention
    dots = torch.randn(2, 12, 6, 6)
    weights = attention.scores(dots).softmax(-1)
    assert not weights.diagonal(dim1=-2, dim2=-1).any()
    off = (dots / math.sqrt(d)).masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf)
    torch.testing.assert_close(weights, off.softmax(-1))


def test_fused_attention_is_attention():
    plain, fused, x = Attention(6, 2, 4).double(), FusedAttention(6, 2, 4).double(), torch.randn(2, 5, 6).double()
    fused.load_state_dict(plain.state_dict())
    torch.testing.assert_close(fused(x), plain(x), rtol=0, atol=1e-12)


def test_grey_images_are_repeated_where_the_papers_do():
    x = torch.randn(2, 1, 28, 28)
    for name in ("cnn", "slvit"):
        torch.manual_seed(1)
        grey = build(name, 10, (1, 28, 28))
        torch.manual_seed(1)
        colour = build(name, 10, (3, 28, 28))
        torch.testing.assert_close(grey(x), colour(x.repeat(1, 3, 1, 1)))


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(SteppeError, match=r"no model named 'resnet18_gm'.*resnet18-gn"):
        build("resnet18_gm", 10, (3, 32, 32))


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        *((name, (64,), "takes images") for name in SHAPES if name != "mlp"),
        ("cnn", (3, 30, 30), "multiple of 4, not 30×30"),
        ("cnn", (1, 4, 4), "at least 8"),
        ("lenet", (1, 8, 8), "at least 16"),
        ("convnet-tiny", (3, 4, 4), "at least 8"),
        ("vgg11", (3, 48, 48), "multiple of 32"),
        ("resnet18-gn", (3, 4, 4), "at least 8"),
        ("slvit", (3, 32, 64), "square"),
        ("slvit", (3, 68, 68), "multiple of 16"),
        ("slvit-original", (3, 36, 36), "multiple of 8"),
        ("vit-small", (3, 28, 28), "multiple of 8"),
        ("vit", (3, 30, 30), "multiple of 4"),
        ("vit", (3, 100, 100), "multiple of 16"),
        ("mlp", (), "non-empty"),
        ("mlp", (0,), "non-empty"),
    ],
)
def test_a_shape_the_model_cannot_take_is_refused_in_words(name: str, shape: tuple[int, ...], words: str):
    with pytest.raises(SteppeError, match=words):
        build(name, 10, shape)


def test_no_classes_no_model():
    with pytest.raises(SteppeError, match="at least one class"):
        build("cnn", 0, (3, 32, 32))


@EVERY
def test_every_model_has_one_line_of_help(name: str):
    assert describe(name).endswith(".")
