"""Faults that no test noticed once: each test fails on a mutant of tools/named_mutants.py, or on a sampled one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steppe
from steppe.core.algorithm import Algorithm
from steppe.core.client import Reply, begin, step
from steppe.core.cost import cost
from steppe.core.keyed import as_seed, key
from steppe.core.part import Part
from steppe.core.scopes import Forward, LocalStep
from steppe.core.server import Server, aggregate, broadcast
from steppe.core.task import Task
from steppe.data import align_test_sets, find_augmentation, from_arrays
from steppe.data.dataset import choose_stratified
from steppe.data.federation import Federation
from steppe.data.partition import Partition, make
from steppe.data.plan import plan
from steppe.engine.early_stopping import Best
from steppe.evaluate import client_tests
from steppe.evaluate.personal import Client, evaluate_personal
from steppe.executors.batched import Batched
from steppe.executors.captured import Captured
from steppe.executors.sequential import Sequential
from steppe.flatness import density
from steppe.measures import for_figures
from steppe.measures.during_training import MEASURES, Schedule, choose_measures
from steppe.parts.distillation import Distillation
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.frozen_head import FrozenHead
from steppe.parts.nearest_neighbours import NearestNeighbours
from steppe.parts.proximal_ascent import ProximalAscent
from steppe.parts.relaxed_start import RelaxedStart
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm as make_algorithm
from tests.conformance import problem as conformance
from tests.flatness.small_problems import Matrix
from tests.flatness.small_problems import make as small_problem
from tests.scene import Net, blobs, launch, seeded

EXACT: dict[str, Any] = {"dtype": "float64", "momentum": 0.0, "weight_decay": 0.0}


class Forgetful(nn.Module):
    """A model with dropout, so that training and evaluation differ."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


def forgetful() -> nn.Module:
    return seeded(Forgetful)


# --- what is evaluated


def test_the_validation_loss_is_taken_on_what_was_held_out() -> None:
    result = launch(validation=0.2, rounds=2, algorithm="fedavg", **EXACT)
    data = result.experiment.federation.data
    model, last = result.model, result.history[-1]
    held_out = F.cross_entropy(model(data.validation_inputs.double()), data.validation_targets).item()
    test = F.cross_entropy(model(data.test_inputs.double()), data.test_targets).item()
    assert last["validation_loss"] == pytest.approx(held_out, abs=1e-12)
    assert last["loss"] == pytest.approx(test, abs=1e-12)
    assert abs(held_out - test) > 1e-6


def test_a_model_is_judged_without_dropout() -> None:
    result = launch(model=forgetful(), rounds=1, algorithm="fedavg", **EXACT)
    _, _, x, y = blobs()
    judged = result.model.eval()(x.double())
    assert result.history[-1]["loss"] == pytest.approx(F.cross_entropy(judged, y).item(), abs=1e-12)
    assert result.accuracy == pytest.approx((judged.argmax(1) == y).double().mean().item())


def test_neighbours_are_asked_without_dropout() -> None:
    """With weight 0 the neighbours have no say, and the model alone predicts."""
    task = Task(forgetful().double(), metric=steppe.Metric("first", lambda outputs, _: outputs[:, 0]))
    x, y, test_x, test_y = blobs()
    algorithm = steppe.Algorithm((NearestNeighbours(weight=0.0), SGD()))
    clients = [Client(x.double(), y, test_x.double(), test_y)]
    found = evaluate_personal(algorithm, task, task.x0, clients, lr=0.1, epochs=(0,))
    judged = task.module(task.x0).eval()(test_x.double()).softmax(1)
    assert found[0].mean == pytest.approx(judged[:, 0].mean().item(), abs=1e-12)


def test_the_last_ten_are_ten() -> None:
    result = launch(rounds=13, algorithm="fedavg", lr=0.02)
    curve = [record["accuracy"] for record in result.history]
    assert result.summary["mean_of_last_ten"] == pytest.approx(np.mean(curve[3:]))
    assert len({np.mean(curve[k:]) for k in (2, 3, 4)}) == 3  # nine or eleven would be seen


def test_the_best_is_the_largest_accuracy_and_the_smallest_error() -> None:
    accuracies = launch(rounds=6, algorithm="fedavg", lr=0.05)
    curve = [record["accuracy"] for record in accuracies.history]
    assert accuracies.summary["best"] == max(curve) > min(curve)
    errors = numbers([3.0], "fedavg", clients=1, per_round=1, rounds=3, lr=0.1)  # away from the test set's 0
    curve = [record["mse"] for record in errors.history]
    assert errors.summary["best"] == min(curve) < max(curve)


def test_fine_tuning_goes_on_with_the_rate_after_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def personal(algorithm: Any, task: Any, x: Any, clients: Any, lr: float, *rest: Any, **more: Any) -> Any:
        rates.append(lr)
        return evaluate_personal(algorithm, task, x, clients, lr, *rest, **more)

    monkeypatch.setattr(client_tests, "evaluate_personal", personal)
    launch(rounds=3, algorithm="fedavg", lr=0.1, lr_schedule="exponential", lr_decay=0.5, personal=[1])
    assert rates == [pytest.approx(0.1 * 0.5**3)]


def test_early_stopping_keeps_the_first_of_equals() -> None:
    server = Server(torch.zeros(1), {}, {})
    best = Best()
    for round_, loss in enumerate([0.5, 0.5, 0.6], start=1):
        best.update({"round": round_, "validation_loss": loss}, server, None)
    assert (best.round, best.since) == (1, 2)
    assert best.is_over(2)
    assert not best.is_over(3)


# --- keyed randomness


def planned(round_: int = 0, client: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two epochs of five batches: the order of each epoch (2, 40), and the batches' keys (10,)."""
    made = plan(torch.arange(40)[None], [40], [client], [10], round_, seed, 8)
    return made.index[0].reshape(2, 40), made.keys[0]


def test_every_epoch_round_client_and_seed_has_its_own_order() -> None:
    base, _ = planned()
    orders = [*base, *(planned(**{name: 1})[0][0] for name in ("round_", "client", "seed"))]
    assert all(order.sort().values.tolist() == list(range(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 5


def test_every_batch_round_client_and_seed_has_its_own_augmentation() -> None:
    keys = torch.cat([planned(r, c, s)[1] for r in (0, 1) for c in (0, 1) for s in (0, 1)])
    assert len(keys.unique()) == 80


def one_round(executor: Any, model: nn.Module, round_: int = 0, seed: int = 0) -> Tensor:
    """The updates of two clients that take one step on twelve copies of one sample, whose order does not matter."""
    x, y, test_x, test_y = blobs(12)
    x, y, same = x[:1].repeat(12, 1), y[:1].repeat(12), np.arange(12)
    data = from_arrays(x, y, test_x, test_y, classes=3)
    federation = Federation(
        data, Partition((same, same), "by hand", 0), 12, 1, find_augmentation("none"), seed, torch.float64
    )
    task, algorithm = Task(model.double()), make_algorithm("fedavg", SGD())
    server = Server(task.x0, algorithm.server_state(task.x0), {})
    lr, now = task.x0.new_tensor(0.1), task.x0.new_tensor(float(round_))
    _, sent = broadcast(algorithm, task.layout, server, lr, now)
    work = executor(algorithm, task, federation)
    update: Tensor = work(sent, [0, 1], [algorithm.client_state(task.x0)] * 2).replies.update.clone()
    return update


EXECUTORS = [Sequential, Batched, partial(Batched, chunk=1), partial(Captured, width=2, compiled=False)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_client_round_and_seed_has_its_own_dropout(executor: Any) -> None:
    plain = one_round(executor, seeded())
    torch.testing.assert_close(plain[0], plain[1], rtol=0, atol=1e-12)  # but for dropout they do the same
    updates = torch.cat([one_round(executor, forgetful(), r, s) for r, s in ((0, 0), (1, 0), (0, 1))])
    assert len(updates.round(decimals=9).unique(dim=0)) == 6
    again = one_round(executor, forgetful())
    assert torch.equal(again, updates[:2])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_seed_of_dropout_never_changes(executor: Any) -> None:
    """Its key has a purpose of its own, 3, and is part of what a recorded seed means."""
    one_round(executor, forgetful(), round_=1, seed=2)
    assert torch.initial_seed() in {as_seed(key(2, 1, client, 3)) for client in (0, 1)}


# --- a client's round


@dataclass(frozen=True)
class Pupil(Part):
    """Notes what a teacher, the global model, says about each batch."""

    name = "pupil"
    needs = frozenset({"logits"})
    noted: ClassVar[list[tuple[Tensor, Tensor]]] = []

    def observe(self, forward: Forward, s: LocalStep) -> dict[str, Tensor]:
        logits = forward(s.x).logits
        if not logits.is_meta:  # where costs are traced
            self.noted.append((s.batch["x"], logits))
        return {}


def test_teachers_speak_without_dropout() -> None:
    Pupil.noted.clear()
    launch(model=forgetful(), rounds=1, algorithm=Pupil(), **EXACT)
    teacher = forgetful().double().eval()
    assert Pupil.noted
    for x, logits in Pupil.noted:
        torch.testing.assert_close(logits, teacher(x), rtol=0, atol=1e-12)


def test_the_training_loss_of_sam_is_that_of_its_first_pass() -> None:
    result = launch(rounds=1, epochs=1, batch=90, clients=2, per_round=2, algorithm="fedsam", rho=0.5, **EXACT)
    x, y, *_ = blobs()
    model = seeded(Net).double()
    losses = [F.cross_entropy(model(x[mine].double()), y[mine]).item()
              for mine in result.experiment.federation.partition.clients]  # fmt: skip
    assert result.history[0]["train_loss"] == pytest.approx(np.mean(losses), abs=1e-12)


def test_a_frozen_head_is_not_perturbed() -> None:
    """FedSoL's ascent along the head alone stays at 0 if the head is frozen."""
    climbing = Algorithm((ProximalAscent(0.5, Distillation(), on="head", radius="fixed"), FrozenHead(), SGD()))
    x, plain = (conformance.run(a)[0].x for a in (climbing, Algorithm((FrozenHead(), SGD()))))
    torch.testing.assert_close(x, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_fedsol_climbs_unless_the_gradient_is_rounding_noise(dtype: torch.dtype, floor: float) -> None:
    part, task = ProximalAscent(0.5, Distillation(), radius="fixed"), Task(seeded().to(dtype))
    s: Any = SimpleNamespace(layout=task.layout, x=task.x0, index=task.x0.new_tensor(1.0))
    direction = torch.zeros_like(task.x0)
    for length, climbs in ((2 * floor, True), (0.5 * floor, False)):
        direction[3] = length
        expected = 0.5 * length / (length + 1e-12) if climbs else 0.0
        assert part.ascent(direction, task.x0, s).norm().item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_adamw_is_that_of_pytorch(clip: float | None) -> None:
    """Several steps of one client on all its samples; the clip bounds the gradient, and the decay is decoupled."""
    options: dict[str, Any] = {"clients": 1, "per_round": 1, "rounds": 1, "epochs": 4, "batch": 90, "partition": "iid"}
    result = launch(algorithm="fedavg", optimiser="adamw", lr=0.02, weight_decay=0.1, clip=clip, dtype="float64",
                    **options)  # fmt: skip
    x, y, *_ = blobs()
    model = seeded().double()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    for name, value in result.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-10)


# --- the server's turn


def test_running_statistics_are_averaged_by_the_clients_weights() -> None:
    task, algorithm = Task(seeded()), make_algorithm("fedavg", SGD())
    server = Server(task.x0, algorithm.server_state(task.x0), {"mean": torch.zeros(2)})
    lr = task.x0.new_tensor(0.1)
    server, sent = broadcast(algorithm, task.layout, server, lr, 0 * lr)
    rows = torch.zeros(2, task.layout.size)
    statistics = {"mean": torch.tensor([[1.0, 0.0], [5.0, 4.0]])}
    replies = Reply(rows, {p.name: {} for p in algorithm.parts}, statistics, torch.zeros(2), torch.zeros(2), {})
    after = aggregate(algorithm, task.layout, server, sent, replies, torch.tensor([3.0, 1.0]), 2, [0, 1])
    assert after.buffers["mean"].tolist() == [2.0, 1.0]


class Number(nn.Module):
    """Predicts one number, whatever it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x))


def numbers(targets: list[float], *parts: Part | str, **options: Any) -> Any:
    """A run whose loss is the mean of (w − y)², so that every step can be worked out by hand."""
    y = torch.tensor(targets)
    data = (torch.zeros(len(y), 1), y, torch.zeros(1, 1), torch.zeros(1))
    algorithm = parts[0] if isinstance(parts[0], str) else parts
    given = {"workers": 0, "partition": "iid", "clip": None, "lr_schedule": "constant", **EXACT, **options}
    return steppe.run(algorithm, Number(), data, **given)


@pytest.mark.parametrize("order", ["textbook", "official"])
def test_feddyn_measures_from_a_moved_start(order: Any) -> None:
    alpha, beta, lr, y = 0.7, 0.4, 0.1, 3.0
    parts = RelaxedStart(beta), DynamicRegularisation(alpha, order=order)
    result = numbers([y], *parts, clients=1, per_round=1, epochs=3, rounds=4, lr=lr)
    x = h = last = 0.0
    for _ in range(4):
        w = start = x + beta * (x - last)
        for _ in range(3):
            w -= lr * (2 * (w - y) - h + alpha * (w - start))
        h -= alpha * (w - start)
        x += w - start - h / alpha
        last = w
    assert result.x.item() == pytest.approx(x, abs=1e-10)
    assert result.server.state["dynamic_regularisation"]["h"].item() == pytest.approx(h, abs=1e-10)


def test_fednovas_correction_grows_by_the_share_of_all_samples(tmp_path: Any) -> None:
    split = Partition(tuple(np.arange(a, b) for a, b in ((0, 1), (1, 4), (4, 10))), "by hand", 0)
    split.save(tmp_path / "split.json")
    options = {"clients": 3, "per_round": 1, "epochs": 1, "batch": 10, "rounds": 1, "lr": 0.1, "variant": "ccvr"}
    result = numbers([float(v) for v in range(10)], "fednova", partition=str(tmp_path / "split.json"), **options)
    (client,) = result.experiment.sample(0)
    gradient = -2 * np.mean(split.clients[client])  # of one step from 0 on all its samples: the targets are 0 … 9
    share = len(split.clients[client]) / 10
    d = result.server.state["normalised_averaging"]["d"].item()
    assert d == pytest.approx(share * gradient, abs=1e-10)


# --- data


def test_aligned_test_sets_truncate_in_single_precision() -> None:
    """29 of 100 samples are 28 of 100 test samples in double precision, but 29 in single precision, as released."""
    labels = np.repeat([0, 1], [29, 71])
    split = Partition((np.arange(100),), "iid", 0)
    (own,) = align_test_sets(split, labels, np.repeat([0, 1], 100), size=100, seed=0)
    assert int(100 * (29 / 100)) == 28
    assert (own < 100).sum() == int(np.float32(100) * (np.float32(29) / np.float32(100)))


def test_a_stratified_sample_gives_what_is_left_to_the_largest_remainders() -> None:
    """4 of 10: shares of 2, 1.2 and 0.8 become 2, 1 and 1."""
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    assert torch.bincount(labels[choose_stratified(labels, 4, 0)]).tolist() == [2, 1, 1]


def test_a_minimum_between_two_numbers_is_the_larger() -> None:
    split = make("dirichlet(0.05, 2.5)", np.arange(60) % 4, clients=10)
    assert split.sizes.min() == 3


# --- measures


def test_the_band_of_a_density_is_a_standard_error() -> None:
    A = torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = density(Matrix(A + A.T), probes=9, steps=5, points=50)
    gaps = (found.grid[None, :, None] - found.nodes[:, None, :]) / found.sigma
    curves = (found.weights[:, None] * torch.exp(-0.5 * gaps**2)).sum(-1) / (found.sigma * (2 * np.pi) ** 0.5)
    torch.testing.assert_close(found.density, curves.mean(0))
    torch.testing.assert_close(found.error, curves.std(0) / 3)
    assert found.error.max() > 0.01 * found.density.max()  # the probes do differ


def test_a_plane_through_models_reaches_a_quarter_beyond_them() -> None:
    loss, w, _ = small_problem("mlp", n=4)
    across = torch.randn(2, len(w), dtype=w.dtype, generator=torch.Generator().manual_seed(0))
    models = [w, w + across[0], w - 0.5 * across[0] + across[1]]  # the third lies on the other side of the first
    found = for_figures._draw_through(SimpleNamespace(points=3, loss=loss), models, ["a", "b", "c"])  # type: ignore[arg-type]
    places = np.array(list(found.marks.values()))
    low, high = places.min(0), places.max(0)
    assert low[0] < 0 < high[0]
    for axis, a, b in zip(found.axes, low, high, strict=True):
        assert axis[[0, -1]] == pytest.approx([a - (b - a) / 4, b + (b - a) / 4])


@dataclass(frozen=True)
class Keeper(Part):
    """Keeps the point at which the last step began, without a copy."""

    name = "keeper"

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"point": torch.zeros_like(x)}

    def gradient(self, inner: Any, w: Tensor, s: LocalStep) -> Tensor:
        g = inner(w)
        s.state["point"] = w
        return g


def test_a_step_in_place_spares_what_a_part_holds() -> None:
    """Two steps of plain SGD: the kept point is that after the first."""
    algorithm, task = Algorithm((SGD(), Keeper())), Task(seeded().double())
    x, y, *_ = blobs()
    batch = {"x": torch.as_tensor(x).double()[:12], "y": torch.as_tensor(y)[:12]}
    server = Server(task.x0, algorithm.server_state(task.x0), {})
    one = task.x0.new_tensor(1.0)
    _, sent = broadcast(algorithm, task.layout, server, 0.1 * one, 0 * one)

    def play(spend: bool) -> tuple[Tensor, Tensor]:
        live = begin(algorithm, task, sent, algorithm.client_state(task.x0), 2 * one)
        points = []
        for k in range(2):
            points.append(live.w.clone())
            live = step(algorithm, task, sent, live._replace(w=live.w.clone()), (batch,), k * one, 2 * one, spend=spend)
        return live.parts["keeper"]["point"], points[1]

    for spend in (False, True):
        kept, before = play(spend)
        assert torch.equal(kept, before)


def test_the_bytes_of_a_client_are_those_of_its_vectors() -> None:
    """SCAFFOLD sends two vectors each way and keeps one, in numbers of four bytes."""
    task = Task(seeded())
    x, y, *_ = blobs()
    batch = {"x": torch.as_tensor(x).float()[:2], "y": torch.as_tensor(y)[:2]}
    found = cost(make_algorithm("scaffold", SGD()), task, batch)
    size = len(task.x0)
    assert (found.bytes_down, found.bytes_up, found.bytes_kept) == (8 * size, 8 * size, 4 * size)


def test_a_round_without_answers_measures_no_clients() -> None:
    names = [name for name, m in MEASURES.items() if m.kind == "clients"][:1]
    built = SimpleNamespace(config=SimpleNamespace(measure=["gradient_norm", f"{names[0]}:2"]))
    due = Schedule(built)  # type: ignore[arg-type]
    assert due.list_due(0) == ["gradient_norm", *names]
    assert due.list_due(0, anybody=False) == due.list_due(1) == ["gradient_norm"]


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(steppe.SteppeError, match="did you mean 'lambda1'"):
        choose_measures(["lamda1"])


def test_a_stratified_sample_takes_other_places_in_every_class() -> None:
    """Classes of equal size have orders of their own."""
    taken = choose_stratified(torch.arange(3).repeat_interleave(20), 15, seed=0)
    places = taken.view(3, 5) - 20 * torch.arange(3)[:, None]
    assert len(places.unique(dim=0)) == 3
