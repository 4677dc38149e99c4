"""The captured executor beside its numbers (tests/conformance has those): lanes, dropout, and models that resist."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

import steppe
from steppe.config import resolve
from steppe.core.client import Sent
from steppe.data import find_augmentation
from steppe.engine import rounds
from steppe.engine.build import build_experiment
from steppe.engine.rounds import simulate
from steppe.executors import captured
from steppe.executors.batched import Batched
from steppe.executors.captured import Captured
from steppe.executors.sequential import Sequential
from steppe.executors.timetable import choose_width, make_timetable
from steppe.experiment import Experiment
from tests.executors.test_executors import one_round, unequal
from tests.scene import USUAL, NormNet, blobs, listening, seeded


def executor_of(built: Experiment, **options: Any) -> Captured:
    return Captured(built.algorithm, built.task, built.federation, **{"compiled": False, **options})


@pytest.mark.parametrize("width", [1, 2, 4, 6, None])
@pytest.mark.parametrize("ids", [[3], [0, 1, 2, 3, 4, 5], [5, 2]], ids=str)
def test_lanes_give_what_one_after_the_other_gives(ids: list[int], width: int | None) -> None:
    """Also a round of one client, whose row must not be the global model itself."""
    built = unequal("fedavg")
    alone, server = one_round(built, Sequential(built.algorithm, built.task, built.federation), ids)
    lanes, server_too = one_round(built, executor_of(built, width=width), ids)
    torch.testing.assert_close(lanes, alone, rtol=0, atol=1e-9)
    torch.testing.assert_close(server_too, server, rtol=0, atol=1e-9)
    assert float(lanes.drift.min()) > 0


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 6))
def test_every_client_takes_all_its_steps_in_order_and_lanes_end_together(steps: list[int], width: int) -> None:
    shifts, end = make_timetable(steps, width)
    assert end == max(max(steps), -(-sum(steps) // width))
    taken, holds = [0] * len(steps), dict[int, int]()  # lane: client
    times = [*shifts, end]
    for t, until in pairwise(times):
        for client, lane in shifts[t].leave:
            assert holds.pop(lane) == client
        for lane, client in shifts[t].enter:
            assert lane not in holds
            assert client not in holds.values()
            holds[lane] = client
        for lane in range(width):
            client, done, total = (row[lane] for row in shifts[t].lanes)
            assert (
                total == 0
                if lane not in holds
                else (client, done, total) == (holds[lane], taken[client], steps[client])
            )
        for client in holds.values():
            taken[client] += until - t
    assert taken == steps


def test_one_client_has_one_lane() -> None:
    assert choose_width([[7]]) == 1


def test_a_round_may_be_empty() -> None:
    """Sampling by independent draws sometimes draws nobody, also in the rounds by which the lanes are chosen."""
    assert choose_width([[], [50] * 3, []]) == 3
    assert choose_width([[], []]) == 1


def test_a_larger_round_than_any_before_finds_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with more steps, and one with more clients."""
    monkeypatch.setattr(captured, "LENGTH", 1)
    built = unequal("fedavg")
    x = built.task.x0
    sent = Sent(x, {}, {}, x.new_tensor(0.2), x.new_tensor(0.0))
    work, plain = executor_of(built, width=2), Sequential(built.algorithm, built.task, built.federation)
    for ids in ([1], [3], [0, 1], list(range(6)), [4, 2, 0]):
        states = [built.algorithm.client_state(x)] * len(ids)
        torch.testing.assert_close(work(sent, ids, states), plain(sent, ids, states), rtol=0, atol=1e-9)


def test_a_round_that_fills_its_place_reads_its_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps, a power of two, so that the plan is as long as what was allocated."""
    monkeypatch.setattr(captured, "LENGTH", 1)
    built = of(seeded(), partition="iid", batch=2, max_steps=4, dtype="float64")
    alone, _ = one_round(built, Sequential(built.algorithm, built.task, built.federation), [0, 1])
    lanes, _ = one_round(built, executor_of(built, width=2), [0, 1])
    torch.testing.assert_close(lanes, alone, rtol=0, atol=1e-9)


def test_images_are_augmented_alike_everywhere() -> None:
    """A batch's key is its client's and its step's: with lanes, all at once, or one after the other."""
    g = torch.Generator().manual_seed(0)
    images, labels = torch.randint(0, 256, (60, 1, 8, 8), dtype=torch.uint8, generator=g), torch.arange(60) % 3
    data = steppe.Data("noise", images, labels, images[:6], labels[:6], classes=3)
    options = {**USUAL, "algorithm": "fedavg", "augmentation": "svhn", "dtype": "float64"}
    built = build_experiment(resolve(options), None, nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), data)
    parts, ids = (built.algorithm, built.task, built.federation), [4, 0, 2, 1]
    alone, _ = one_round(built, Sequential(*parts), ids)
    plain, _ = one_round(_unaugmented(built), Sequential(*parts[:2], _unaugmented(built).federation), ids)
    assert not torch.allclose(plain.update, alone.update)
    for other in (Batched(*parts), Captured(*parts, width=2, compiled=False)):
        torch.testing.assert_close(one_round(built, other, ids)[0], alone, rtol=0, atol=1e-9)


def _unaugmented(built: Experiment) -> Experiment:
    return replace(built, federation=replace(built.federation, augmentation=find_augmentation("none")))


class Forgetful(nn.Module):
    """With dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


def of(model: nn.Module, **options: Any) -> Experiment:
    return build_experiment(
        resolve({**USUAL, "algorithm": "fedavg", **options}), None, model, steppe.from_arrays(*blobs())
    )


@pytest.mark.parametrize("kind", [Captured, Batched, Sequential])
def test_dropout_is_a_function_of_seed_round_and_clients(kind: type) -> None:
    """Whatever was drawn before, as when a run is resumed; and not the same in every round and client."""
    built = of(seeded(Forgetful), partition="iid")
    x = built.task.x0

    def fresh() -> Any:
        return executor_of(built) if kind is Captured else kind(built.algorithm, built.task, built.federation)

    def update(work: Any, round_: int) -> Tensor:
        sent = Sent(x, {}, {}, x.new_tensor(0.1), x.new_tensor(float(round_)))
        states = [built.algorithm.client_state(x)] * 2
        found: Tensor = work(sent, [0, 1], states).replies.update.clone()
        return found

    work = fresh()
    first, second = update(work, 0), update(work, 1)
    torch.manual_seed(123)
    assert torch.equal(update(fresh(), 1), second)  # its first round, with whatever that draws beforehand
    assert torch.equal(update(work, 0), first)
    assert not torch.equal(first, second)


class Stubborn(nn.Linear):
    """Runs under vmap, but cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        if get_proxy_mode() is not None:
            raise RuntimeError("no tracing here")
        return super().forward(x)


class OnGPU(Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment chooses its executor as if there were one; a graph is simply the work that it holds."""
    choose = rounds.choose_executor

    def executor(built: Experiment) -> Any:
        plain = built.task.x0
        built.task.x0 = plain.as_subclass(OnGPU)
        try:
            return choose(built)
        finally:
            built.task.x0 = plain

    monkeypatch.setattr(rounds, "choose_executor", executor)
    monkeypatch.setattr(captured, "capture_graph", lambda body: body)


def trained(model: nn.Module, **options: Any) -> tuple[steppe.Result, list[str]]:
    with listening() as said:
        return simulate(of(model, rounds=3, **options)), said


@pytest.mark.usefixtures("gpu")
def test_what_cannot_be_compiled_runs_and_says_so() -> None:
    """The sentence comes when the first round compiles: it must reach who listens, and stand in the result."""
    torch.manual_seed(0)
    model = Stubborn(6, 3)
    result, said = trained(model)
    (told,) = [text for text in said if "could not be compiled" in text]
    assert told == ("the local step could not be compiled (RuntimeError: no tracing here); it runs uncompiled: "
                    "set compile = false to spare the attempt")  # fmt: skip
    assert told in result.notes
    plain, silent = trained(model, executor="sequential")
    assert not any("compiled" in text for text in silent)
    torch.testing.assert_close(result.x, plain.x, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_what_cannot_be_captured_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(body: Any) -> None:
        body()  # a capture that gets this far has moved the clients
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured, "capture_graph", refused)
    model = Stubborn(6, 3)  # whose step, uncompiled, would be captured as well
    result, said = trained(model)
    (told,) = [text for text in said if "could not be captured" in text]
    assert "stream is capturing" in told
    assert told in result.notes
    torch.testing.assert_close(result.x, trained(model, executor="sequential")[0].x, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_lanes_are_chosen_for_the_federation_and_chunk_bounds_them() -> None:
    built = of(seeded(), partition="iid", per_round=6)
    assert rounds.choose_executor(built).width == 6
    assert rounds.choose_executor(of(seeded(), partition="iid", per_round=6, chunk=2)).width == 2


def test_chunk_bounds_the_clients_that_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    train = Batched._train

    def counted(self: Batched, sent: Sent, ids: list[int], states: Any) -> Any:
        at_once.append(len(ids))
        return train(self, sent, ids, states)

    monkeypatch.setattr(Batched, "_train", counted)
    simulate(of(seeded(), partition="iid", rounds=1, per_round=5, executor="batched", chunk=2))
    assert at_once == [2, 2, 1]


@pytest.mark.usefixtures("gpu")
def test_what_vmap_cannot_run_is_trained_one_after_the_other_and_said() -> None:
    for kind in (Looks, Leaves):
        _, said = trained(kind(6, 3))
        assert any("vmap cannot run this model" in text for text in said)
    _, said = trained(seeded(NormNet), partition="iid")
    assert any("batch statistics would include padding" in text for text in said)


class Looks(nn.Linear):
    """Decides by its numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else 2 * x)


class Leaves(nn.Linear):
    """Goes through NumPy, which takes no tensors without data."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.from_numpy(x.detach().numpy().copy()))


def test_a_graph_keeps_the_constants_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph has only their addresses, whose memory would otherwise be given to others."""
    waiting = SimpleNamespace(wait_stream=lambda _: None)
    graph = SimpleNamespace(replay=lambda: None)
    for name, fake in {"Stream": lambda: waiting, "current_stream": lambda: waiting, "CUDAGraph": lambda: graph,
                       "stream": lambda _: nullcontext(), "graph": lambda _: nullcontext()}.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)

    def make() -> tuple[Any, weakref.ref[Tensor]]:
        constant = torch.ones(3)

        def body() -> None:
            constant.sum()

        return captured.capture_graph(body), weakref.ref(constant)

    replay, constant = make()
    gc.collect()
    assert constant() is not None
    del replay
    gc.collect()
    assert constant() is None
