"""The forward pass of an evaluation with fused pooling, against the model as it is."""

import pytest
import torch

from steppe.core.task import Task
from steppe.evaluate import score
from steppe.executors import captured_forward as ours
from steppe.executors.switches import SWITCHES
from steppe.models import build
from tests.executors.test_client_conv import near, rand


def make(name, shape=(3, 16, 16), device="cpu", dtype=torch.float64):
    torch.manual_seed(0)
    return Task(build(name, 4, shape)).to(device, dtype)


class Halved:
    """Prepares inputs as a federation does."""

    def plain(self, x):
        return x / 2


def test_the_traced_pass_is_fused_and_computes_the_same():
    task, x = make("cnn"), rand(5, 3, 16, 16)
    graph = ours.trace_forward(task, task.x0, x, abs, ("cpu",))
    assert sum(n.target is torch.ops.steppe.client_conv_pool.default for n in graph.graph.nodes) == 2
    assert "max_pool" not in graph.code
    for w in (task.x0, task.x0.cos() / 9):  # weights are an input of the graph, not a part of it
        near(graph(w, 2 * x), task.forward(w, abs(2 * x), {}, learning=False).logits, 1e-12)


@pytest.mark.parametrize("model", ["mlp", "resnet8-gn"])
def test_a_model_without_the_sequence_runs_as_it_is(model):
    task = make(model)
    assert ours.trace_forward(task, task.x0, rand(2, 3, 16, 16), abs, ("cpu",)) is None


def test_group_norm_is_fused_where_it_is_switched_on(monkeypatch):
    monkeypatch.setattr(SWITCHES, "client_norm", True)
    task, x = make("resnet8-gn"), rand(2, 3, 16, 16)
    graph = ours.trace_forward(task, task.x0, x, abs, ("cpu",))
    assert "relu" not in graph.code
    near(graph(task.x0 / 2, x), task.forward(task.x0 / 2, abs(x), {}, learning=False).logits, 1e-12)


def test_on_a_cpu_nothing_is_captured(monkeypatch):
    monkeypatch.setattr(SWITCHES, "captured_forward", True)
    task = make("cnn", dtype=torch.float32)
    assert ours.find_forward(task, task.x0, rand(2, 3, 16, 16, dtype=torch.float32), Halved().plain) is None


def test_only_full_batches_are_captured(monkeypatch):
    """The other batches of an evaluation have shapes of their own."""
    seen = []

    def find(task, w, x, prepare):
        seen.append(len(x))
        return lambda w, x: task.forward(w, prepare(x), {}, learning=False).logits

    images, targets = rand(1003, 3, 8, 8), torch.arange(1003) % 4
    small = make("cnn", (3, 8, 8))
    plain = score.score(small, small.x0, {}, images, targets, Halved().plain)
    monkeypatch.setattr(score, "find_forward", find)
    assert score.score(small, small.x0, {}, images, targets, Halved().plain) == plain
    assert seen == [1000]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_on_a_gpu(monkeypatch, compiled):
    monkeypatch.setattr(SWITCHES, "captured_forward", True)
    monkeypatch.setattr(SWITCHES, "compiled_forward", compiled)
    task = make("cnn", (3, 32, 32), "cuda", torch.float32)
    x, plain = rand(100, 3, 32, 32, dtype=torch.float32).cuda(), Halved().plain
    assert ours.find_forward(task, task.x0, x, lambda x: x) is None
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        forward = ours.find_forward(task, task.x0, x, plain)
        assert forward is ours.find_forward(task, task.x0, x, plain)
        for w in (task.x0, task.x0.cos() / 9):
            near(forward(w, x), task.forward(w, plain(x), {}, learning=False).logits, 1e-5)
