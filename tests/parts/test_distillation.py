"""FedNTD, FedSoL's KL and MOON as losses: T8, limits, what is kept."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import data, local_step, number, one_step, perceptron, same, train

from steppe.core.algorithm import Algorithm
from steppe.core.cost import cost
from steppe.core.errors import SettingError
from steppe.core.task import Outputs, Task
from steppe.models import build
from steppe.parts.contrast import Contrast
from steppe.parts.distillation import Distillation
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

T8 = json.loads((Path(__file__).parent.parent / "vectors" / "softmax.json").read_text())["T8"]
MOMENTUM = SGD(0.9, 0.01)


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


def scope(y, mask=None):
    batch = {"y": y} if mask is None else {"y": y, "mask": mask}
    return local_step(perceptron().layout, number(0), batch=batch)


def divergence(part, logits, teacher, y, mask=None):
    s = scope(y, mask)
    s.seen = part.observe(lambda _: Outputs(teacher, None, (), {}), s)
    return part.penalty(number(0), Outputs(logits, None, (), {}), s)


@pytest.mark.parametrize(
    ("part", "want"),
    [
        (Distillation(tau=3.0), "kl_tau3"),
        (Distillation(1.0, 1.0, not_true=True), "ntd_tau1"),
        (Distillation(9.0, 3.0, not_true=True), "ntd_tau3"),
    ],
)
def test_t8(part, want):
    value = divergence(part, tensor(T8["logits"]), tensor(T8["teacher"]), torch.tensor(T8["y"]))
    same(value, tensor(T8[want]))


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_t8_moon(tau):
    s = scope(torch.tensor(T8["y"]))
    s.seen = {"global": tensor(T8["features_global"]), "previous": tensor(T8["features_previous"])}
    out = Outputs(tensor(T8["logits"]), tensor(T8["features"]), (), {})
    same(Contrast(1.0, tau).penalty(number(0), out, s), tensor(T8[f"moon_tau{tau:g}"]))


def dropped(z, y):
    keep = y[:, None] != torch.arange(z.shape[-1])
    return z[keep].view(len(y), -1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_not_true_distillation_drops_the_class_exactly(dtype):
    g = torch.Generator().manual_seed(0)
    z, teacher = (30 * torch.randn(8, 5, generator=g).to(dtype) for _ in range(2))
    y = torch.randint(5, (8,), generator=g)
    z.requires_grad_()
    tau = 1.0 if dtype == torch.bfloat16 else 0.3
    value = divergence(Distillation(1.0, tau, not_true=True), z, teacher, y)
    (gradient,) = torch.autograd.grad(value, z)
    p, q = (F.log_softmax(dropped(v, y) / tau, -1) for v in (z, teacher))
    plain = F.kl_div(p, q, reduction="batchmean", log_target=True)
    (want,) = torch.autograd.grad(plain, z)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(value, plain, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient, want, rtol=tolerance, atol=tolerance)
    assert not gradient[torch.arange(8), y].any()


@pytest.mark.parametrize("not_true", [False, True])
def test_a_student_equal_to_its_teacher_has_no_gradient_at_all(not_true):
    z = 3 * torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    value = divergence(Distillation(not_true=not_true), z, z.detach(), torch.arange(64) % 10)
    assert float(value.detach()) == 0
    assert not torch.autograd.grad(value, z)[0].any()


def test_padding_does_not_count():
    z, teacher, y = tensor(T8["logits"]), tensor(T8["teacher"]), torch.tensor(T8["y"])
    padded = divergence(
        Distillation(), torch.cat([z, z * torch.nan]), teacher.repeat(2, 1), y.repeat(2), torch.arange(4) < 2
    )
    same(padded, tensor(T8["kl_tau3"]))


def test_sequences():
    """(batch, time, classes): the mean over both."""
    z, teacher, y = tensor(T8["logits"]), tensor(T8["teacher"]), torch.tensor(T8["y"])
    part = Distillation(1.0, 1.0, not_true=True)
    same(divergence(part, z[None], teacher[None], y[None]), tensor(T8["ntd_tau1"]))


@pytest.mark.parametrize(("name", "settings"), [("fedntd", {"beta": 0.0}), ("moon", {"mu": 0.0})])
def test_weight_zero_is_fedavg(name, settings):
    same(train(make_algorithm(name, MOMENTUM, settings))[0], train(Algorithm((MOMENTUM,)))[0], 0)


@pytest.mark.parametrize("name", ["fedntd", "moon"])
def test_under_vmap(name):
    algorithm = make_algorithm(name, MOMENTUM)
    same(train(algorithm, batched=True), train(algorithm))


def test_the_temperature_of_fedntd_is_squared():
    (part,) = make_algorithm("fedntd", SGD(), {"beta": 2.0, "tau": 3.0}).parts[:-1]
    assert (part.weight, part.tau, part.not_true) == (18.0, 3.0, True)


def test_moon_keeps_the_clients_own_last_model():
    task, plain = perceptron(), Algorithm((Contrast(), SGD()))
    assert torch.equal(plain.client_state(task.x0)["contrast"]["previous"], task.x0)
    batch = {n: t[0, 0] for n, t in data().items()}
    w = one_step(plain, task, task.x0, task.x0, batch, lr=0.1)
    kept = train(plain, rounds=1)[2]["contrast"]["previous"]
    assert not torch.equal(kept[0], kept[1])
    moved = task.x0 + 0.1 * torch.sin(torch.arange(task.layout.size))
    other = one_step(plain, task, task.x0, task.x0, batch, lr=0.1, state={"contrast": {"previous": moved}, "sgd": {}})
    assert not torch.equal(w, other)  # where it comes from matters


@pytest.mark.parametrize(("name", "kept", "forwards", "flops"), [("fedntd", 0, 1, 4 / 3), ("moon", 1, 2, 5 / 3)])
def test_costs(name, kept, forwards, flops):
    batch = {"x": torch.zeros(50, 3, 32, 32), "y": torch.zeros(50, dtype=torch.int64)}
    task = Task(build("cnn", 10, (3, 32, 32)))
    c = cost(make_algorithm(name, SGD()), task, batch)
    assert (c.down, c.up, c.kept, c.gradients, c.forwards) == (1, 1, kept, 1, forwards)
    assert c.flops / cost(make_algorithm("fedavg", SGD()), task, batch).flops == pytest.approx(flops, rel=0.05)


def test_teachers_are_shared():
    """Two parts that ask the same teacher pay for it once."""
    parts = (Distillation(), *make_algorithm("fedsol", SGD()).parts)
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    assert cost(Algorithm(parts), task, batch).forwards == 1


def test_refusals():
    with pytest.raises(SettingError, match="tau"):
        Distillation(tau=0.0)
    with pytest.raises(SettingError, match="mu"):
        Contrast(mu=-1.0)
