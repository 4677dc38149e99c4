"""Per-FedAvg, FedBABU, kNN-Per, local training, and how clients are judged after tuning."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import CLIENTS, data, perceptron, same, train

from steppe.core.algorithm import Algorithm
from steppe.core.cost import cost
from steppe.core.errors import CompositionError, SettingError
from steppe.engine.quadratics import Problem, trace
from steppe.evaluate.personal import Client, average_clients, evaluate_personal, fine_tune, make_tuner, shuffle_batches
from steppe.parts.frozen_head import FrozenHead
from steppe.parts.look_ahead import LookAhead
from steppe.parts.nearest_neighbours import NearestNeighbours
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

QUADRATIC = json.loads((Path(__file__).parent.parent / "vectors" / "quadratic.json").read_text())
CASES = [c for c in QUADRATIC["cases"] if c["algorithm"] == "perfedavg"]
MOMENTUM = SGD(0.9, 0.01)


def tensor(v):
    return torch.tensor(v, dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------- Per-FedAvg
@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_t6(case):
    problem = {**QUADRATIC["problems"][case["problem"]], **case["change"]}
    out = trace("perfedavg", Problem(**problem), case["settings"])["rounds"]
    same(tensor([r["x"] for r in out]), tensor(case["x"]))
    same(tensor([out[0]["local"][i] for i in "01"]), tensor([case["locals"][0][i] for i in "01"]))


def test_the_inner_rate_is_the_rounds_and_the_outer_one_is_fixed():
    problem = {**QUADRATIC["problems"]["sol"], "rounds": [[0, 1]] * 3, "lr_decay": 0.5, "momentum": 0.0}
    out = trace("perfedavg", Problem(**problem), {"outer_lr": 0.05})["rounds"]
    w = tensor(out[1]["x"])
    A, b = tensor(problem["clients"][0]["A"]), tensor(problem["clients"][0]["b"])
    for _ in range(2):
        ahead = w - 0.1 * 0.25 * (A @ (w - b) + 0.01 * w)
        w = w - 0.05 * (A @ (ahead - b) + 0.01 * w)
    same(tensor(out[2]["local"]["0"]), w)


@pytest.mark.parametrize("variant", ["clean", "official"])
def test_perfedavg_with_inner_rate_zero_is_sgd_on_the_second_batch(variant):
    algorithm = make_algorithm("perfedavg", SGD(0.0, 0.01), {"inner_lr": 0.0, "outer_lr": 0.1, "variant": variant})
    task, everything = perceptron(), data(batches_per_step=2)
    w = task.x0
    for k in range(3):
        batch = {n: t[0, 2 * k + 1] for n, t in everything.items()}
        leaf = w.detach().requires_grad_()
        loss = task.loss(task.forward(leaf, batch["x"], {}).logits, batch)
        w = w - 0.1 * (torch.autograd.grad(loss, leaf)[0] + 0.01 * w)
    same(train(algorithm, task, rounds=1, weights=(1, 0, 0))[0], w)


@pytest.mark.parametrize("variant", ["clean", "official"])
def test_perfedavg_under_vmap(variant):
    algorithm = make_algorithm("perfedavg", MOMENTUM, {"outer_lr": 0.05, "variant": variant})
    same(train(algorithm, batched=True), train(algorithm))


def test_order_of_perfedavgs_parts():
    assert [p.name for p in make_algorithm("perfedavg", MOMENTUM).parts] == ["look_ahead", "sgd", "fixed_rate"]
    official = make_algorithm("perfedavg", MOMENTUM, {"variant": "official"})
    assert [p.name for p in official.parts] == ["sgd", "look_ahead", "fixed_rate"]
    with pytest.raises(CompositionError, match="more than once"):  # only the shared one means to repeat the momentum
        Algorithm((MOMENTUM, LookAhead()))


def test_perfedavgs_steps_and_cost():
    algorithm = make_algorithm("perfedavg", SGD())
    assert [algorithm.local_steps(5, b) for b in (1, 5, 6, 12)] == [5, 5, 10, 15]
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    c = cost(algorithm, task, batch)
    assert (c.down, c.up, c.kept, c.gradients, c.forwards) == (1, 1, 0, 2, 0)


# ------------------------------------------------------------------------------------------------ FedBABU, local
def test_fedbabu_never_touches_the_head():
    task = perceptron()
    algorithm = make_algorithm("fedbabu", SGD(0.9, 0.1))
    x, _, _, _ = train(algorithm, task)
    head = task.layout.mask("head")
    assert torch.equal(x[head], task.x0[head])
    assert not torch.equal(x[~head], task.x0[~head])
    same(train(algorithm, batched=True), train(algorithm))
    c = cost(algorithm, task, {n: t[0, 0] for n, t in data().items()})
    body = task.layout.size_of("body") / task.layout.size
    assert (c.down, c.up, c.kept, c.gradients) == (body, body, 0, 1)


def test_local_goes_on_where_it_stopped_with_its_momentum():
    algorithm = make_algorithm("local", MOMENTUM)
    task, everything = perceptron(), data()
    x, _, states, _ = train(algorithm, rounds=2)
    assert torch.equal(x, task.x0)
    w, m = task.x0, torch.zeros_like(task.x0)
    for k in (0, 1, 2, 0, 1, 2):
        batch = {n: t[0, k] for n, t in everything.items()}
        leaf = w.detach().requires_grad_()
        g = torch.autograd.grad(task.loss(task.forward(leaf, batch["x"], {}).logits, batch), leaf)[0]
        m = 0.9 * m + g + 0.01 * w
        w = w - 0.1 * m
    same(states["own_model"]["w"][0], w)
    same(states["sgd"]["m"][0], m)
    same(train(algorithm, batched=True), train(algorithm))


def test_local_sends_nothing():
    task, batch = perceptron(), {n: t[0, 0] for n, t in data().items()}
    c = cost(make_algorithm("local", SGD()), task, batch)
    assert (c.down, c.up, c.kept, c.gradients) == (0, 0, 1, 1)


# ------------------------------------------------------------------------------------------------------- kNN-Per
def test_knnper_trains_like_fedavg():
    same(train(make_algorithm("knnper", MOMENTUM))[0], train(make_algorithm("fedavg", MOMENTUM))[0], 0)


@pytest.mark.parametrize("of", ["probabilities", "logits"])
def test_knn_by_hand(of):
    g = torch.Generator().manual_seed(0)
    memory, labels = torch.randn(20, 6, generator=g).double(), torch.randint(4, (20,), generator=g)
    features, logits = torch.randn(7, 6, generator=g).double(), torch.randn(7, 4, generator=g).double()
    got = NearestNeighbours(k=5, weight=0.3, scale=2.0, of=of).predict(logits, features, memory, labels)
    for f, z, row in zip(features, logits, got, strict=True):
        gaps = [(float((f - m).square().sum()), int(y)) for m, y in zip(memory, labels, strict=True)]
        votes = torch.zeros(4).double()
        for gap, y in sorted(gaps)[:5]:
            votes[y] += tensor(-gap / 12).exp()
        model = z.softmax(-1) if of == "probabilities" else z
        same(row, 0.3 * votes / votes.sum() + 0.7 * model)


def test_knn_far_away_and_with_few_examples():
    part = NearestNeighbours(weight=1.0)
    memory, labels = torch.tensor([[1e3, 0.0], [1.1e3, 0.0]]), torch.tensor([2, 0])
    got = part.predict(torch.zeros(1, 3), torch.zeros(1, 2), memory, labels)
    assert got.argmax(-1).tolist() == [2]
    assert bool(got.isfinite().all())
    with pytest.raises(SettingError, match="weight"):
        NearestNeighbours(weight=1.5)


# ------------------------------------------------------------------------------------------------------ fine-tuning
def clients(n=23, test=40):
    out = []
    for i in range(CLIENTS):
        g = torch.Generator().manual_seed(i)
        centres = 2 * torch.randn(4, 5, generator=g).double()
        y = torch.randint(4, (n + test,), generator=g)
        x = centres[y] + 0.3 * torch.randn(n + test, 5, generator=g).double()
        out.append(Client(x[:n], y[:n], x[n:], y[n:]))
    return out


def by_hand(task, w, client, epochs, lr, size=10, seed=0, index=0, decay=1.0, freeze=None):
    """torch.optim, as anyone would write it."""
    model = task.module(w).train()
    optimiser = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=0.01)
    stream = shuffle_batches(client.inputs, client.targets, size, seed, index, lambda v, _: v)
    for _ in range(epochs):
        for _ in range(-(-len(client.targets) // size)):
            batch = next(stream)
            optimiser.zero_grad()
            F.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimiser.step()
        optimiser.param_groups[0]["lr"] *= decay
    right = (model(client.test_inputs).argmax(-1) == client.test_targets).double().mean()
    return task.layout.flatten({k: p.detach() for k, p in model.named_parameters()}), float(right)


def test_shuffled_batches():
    client = clients()[0]
    stream = shuffle_batches(client.inputs, client.targets, 10, 0, 0, lambda v, _: v)
    epochs = [[next(stream) for _ in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(b["y"]) for b in epoch] == [10, 10, 3]
        assert sorted(torch.cat([b["x"] for b in epoch])[:, 0].tolist()) == sorted(client.inputs[:, 0].tolist())
    assert not torch.equal(epochs[0][0]["x"], epochs[1][0]["x"])


@pytest.mark.parametrize("name", ["fedavg", "fedsol", "fedsam", "scaffold", "fedbabu"])
def test_fine_tuning_is_plain_sgd_with_fresh_momentum(name):
    task, everyone = perceptron(), clients()
    got = evaluate_personal(make_algorithm(name, MOMENTUM), task, task.x0, everyone, lr=0.05, batch_size=10)
    for epochs in (1, 5):
        want = [by_hand(task, task.x0, c, epochs, 0.05, index=i)[1] for i, c in enumerate(everyone)]
        assert got[epochs].each == pytest.approx(want)
    assert got[5].mean > got[1].mean


def test_fine_tune_gives_the_models_on_the_way():
    task, client = perceptron(), clients()[0]
    stream = shuffle_batches(client.inputs, client.targets, 10, 0, 0, lambda v, _: v)
    algorithm = make_tuner(make_algorithm("fedsol", MOMENTUM))
    (start, _), (one, _), (two, _) = fine_tune(algorithm, task, task.x0, stream, [0, 3, 6], lambda _: 0.05)
    assert torch.equal(start, task.x0)
    same(one, by_hand(task, task.x0, client, 1, 0.05)[0])
    same(two, by_hand(task, task.x0, client, 2, 0.05)[0])


def test_local_only_from_the_start():
    """Many epochs, the rate decaying with each, the momentum going on."""
    task, everyone = perceptron(), clients()
    got = evaluate_personal(make_algorithm("fedavg", MOMENTUM), task, task.x0, everyone, 0.05, (20,), 10, lr_decay=0.9)
    want = [by_hand(task, task.x0, c, 20, 0.05, index=i, decay=0.9)[1] for i, c in enumerate(everyone)]
    assert got[20].each == pytest.approx(want)


def test_local_judges_the_clients_own_models():
    task, everyone = perceptron(), clients()
    models = torch.stack([by_hand(task, task.x0, c, 5, 0.05, index=i)[0] for i, c in enumerate(everyone)])
    got = evaluate_personal(make_algorithm("local", MOMENTUM), task, models, everyone, lr=0.05)
    assert list(got) == [0]
    assert got[0].each == pytest.approx(
        [by_hand(task, w, c, 0, 0.05)[1] for w, c in zip(models, everyone, strict=True)]
    )


def test_fedbabu_unfreezes_the_head():
    task, client = perceptron(), clients()[0]
    algorithm = make_tuner(make_algorithm("fedbabu", MOMENTUM))
    assert not any(isinstance(p, FrozenHead) for p in algorithm.parts)
    stream = shuffle_batches(client.inputs, client.targets, 10, 0, 0, lambda v, _: v)
    ((w, _),) = fine_tune(algorithm, task, task.x0, stream, [3], lambda _: 0.05)
    assert bool((w != task.x0)[task.layout.mask("head")].any())


@pytest.mark.parametrize("variant", ["clean", "official"])
def test_perfedavg_tunes_by_its_own_steps(variant):
    """e·⌈B/E⌉ meta-steps of two batches: with 3 batches and 2 epochs a round, 2 for e = 1."""
    task, everyone = perceptron(), clients()
    algorithm = make_algorithm("perfedavg", MOMENTUM, {"outer_lr": 0.05, "variant": variant})
    taken = []
    evaluate_personal(algorithm, task, task.x0, everyone[:1], 0.1, (1, 5), 10, round_epochs=2,
                      augment=lambda v, _: taken.append(len(v)) or v)  # fmt: skip
    assert len(taken) == 2 * 2 * 5
    tuned = make_tuner(algorithm)
    assert [p.name for p in tuned.parts] == [p.name for p in algorithm.parts]


def test_knnper_mixes_in_the_neighbours():
    task, everyone = perceptron(), clients()
    alone = evaluate_personal(
        make_algorithm("knnper", MOMENTUM, {"weight": 0.0}), task, task.x0, everyone, 0.05, (0, 1)
    )
    plain = evaluate_personal(make_algorithm("fedavg", MOMENTUM), task, task.x0, everyone, 0.05, (0, 1))
    assert alone == plain
    mixed = evaluate_personal(make_algorithm("knnper", MOMENTUM, {"weight": 1.0}), task, task.x0, everyone, 0.05, (0,))
    client, body = everyone[0], frozenset({"features"})
    memory, query = (task.forward(task.x0, v, {}, body).features for v in (client.inputs, client.test_inputs))
    votes = NearestNeighbours(weight=1.0).predict(torch.zeros(40, 4).double(), query, memory, client.targets)
    assert mixed[0].each[0] == pytest.approx(float((votes.argmax(-1) == client.test_targets).double().mean()))


def test_the_same_key_gives_the_same_numbers():
    task, everyone = perceptron(), clients()
    a, b = (
        evaluate_personal(make_algorithm("fedavg", MOMENTUM), task, task.x0, everyone, 0.05, (1,), 10, seed=s)
        for s in (0, 0)
    )
    assert a == b


def test_spread_is_over_the_population():
    assert average_clients([0.0, 1.0]) == (0.5, 0.5, (0.0, 1.0))
