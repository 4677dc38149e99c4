"""Memory that is used again changes nothing; a model that cannot be sent stays here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steppe
from steppe.core.client import Live, Sent, begin, by_autograd, step
from steppe.core.errors import RunFailed
from steppe.core.validate import find_finite
from steppe.engine.rounds import simulate
from steppe.executors import sequential
from steppe.executors.executor import Answers
from steppe.parts.relaxed_start import RelaxedStart
from steppe.runs.client_store import MemoryStore
from tests.scene import launch


@dataclass(frozen=True)
class Keeps(steppe.Part):
    """Holds on to the parameters and to the direction of its first step, as a part may."""

    name = "keeps"
    outer = True

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"w": torch.zeros_like(x), "d": torch.zeros_like(x)}

    def gradient(self, grad: Any, w: Tensor, s: steppe.LocalStep) -> Tensor:
        d = grad(w)
        if s.index == 1:
            s.state["w"], s.state["d"] = w, d
        return d

    def finish(self, delta: Tensor, s: steppe.ClientRound) -> Tensor:
        return delta + s.state["w"] + s.state["d"]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsam", "scaffold", RelaxedStart(), Keeps()])
def test_overwriting_vectors_changes_no_bit(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = []

    def noting(*args: Any, spend: bool = False) -> Live:
        spent.append(spend)
        return step(*args, spend=spend)

    monkeypatch.setattr(sequential, "step", noting)
    result = launch(algorithm=algorithm, momentum=0.9)
    assert any(spent)
    assert not all(spent)  # the first step of a client stands on the model that everyone was sent
    monkeypatch.setattr(sequential, "step", lambda *args, spend=False: step(*args))
    assert torch.equal(launch(algorithm=algorithm, momentum=0.9).x, result.x)


def test_a_client_that_goes_on_where_it_stopped_leaves_its_last_state_alone() -> None:
    result = launch(algorithm="local", momentum=0.9, rounds=1)
    e = result.experiment
    state = e.algorithm.client_state(e.task.x0)
    before = [t.clone() for tensors in state.values() for t in tensors.values()]
    sent = Sent(e.task.x0, {}, {}, e.task.x0.new_tensor(0.1), e.task.x0.new_tensor(0.0))
    sequential.train(e.algorithm, e.task, e.federation, sent, 0, state)
    assert len(before) > 1
    assert all(map(torch.equal, before, [t for tensors in state.values() for t in tensors.values()]))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


def test_pooling_keeps_its_order_and_its_gradient() -> None:
    torch.manual_seed(0)
    model = Pooled().double()
    task = steppe.core.task.Task(model)
    x, y = torch.randn(5, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    orders = []

    def objective(w: Tensor) -> tuple[Tensor, None]:
        loss = F.cross_entropy(task.forward(w, x, {}).logits, y)
        todo = [loss.grad_fn]
        while todo:
            node = todo.pop()
            todo += [inner for inner, _ in node.next_functions if inner is not None]
            if "ReluBackward" in node.name() and node._saved_result.ndim == 4:
                node.register_prehook(lambda g: orders.append(g[0].is_contiguous(memory_format=torch.channels_last)))
        return loss, None

    gradient = by_autograd(objective, task.x0)[0]
    assert orders == [True]
    F.cross_entropy(model(x), y).backward()
    plain = task.layout.flatten({k: p.grad for k, p in model.named_parameters()})
    torch.testing.assert_close(gradient, plain, rtol=0, atol=1e-14)


def test_rows_that_are_finite() -> None:
    big = torch.finfo(torch.float32).max
    rows = torch.tensor([[1.0, 2.0], [big, big], [1.0, torch.nan], [torch.inf, -torch.inf], [-big, -big]])
    assert find_finite(rows).tolist() == [True, True, False, False, True]
    assert find_finite(rows[[0, 0]]).tolist() == [True, True]
    assert find_finite(rows[:, :1, None]).tolist() == [True, True, True, False, True]
    assert find_finite(rows[2, :1]).tolist() == [True]
    assert find_finite(rows[:0]).tolist() == []


class Spoils:
    """An executor from outside: a client's update is not a number, and its drift looks decent."""

    def __init__(self, inner: sequential.Sequential) -> None:
        self.inner, self.close, self.trusted = inner, inner.close, False

    def __call__(self, *round_: Any) -> Answers:
        answers = self.inner(*round_)
        answers.replies.update[1, 0] = torch.nan
        return answers


def test_only_our_own_executors_are_believed_about_lengths() -> None:
    built = launch(algorithm="fedavg", rounds=1).experiment
    ours = sequential.Sequential(built.algorithm, built.task, built.federation)
    with pytest.raises(RunFailed, match=r"round 1: the update of client \d is not finite"):
        simulate(built, executor=Spoils(ours))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_client_that_diverges_is_named(workers: int) -> None:
    with pytest.raises(RunFailed, match=r"round 1: the update of client \d.* is not finite"):
        launch(algorithm="fedavg", rounds=1, lr=1e9, weight_decay=1e9, executor="sequential", workers=workers)


@dataclass(frozen=True)
class Remembers(steppe.Part):
    """Keeps and uploads the very update that it was shown."""

    name = "remembers"

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": torch.zeros_like(x)}

    def finish(self, delta: Tensor, s: steppe.ClientRound) -> Tensor:
        s.up["before"], s.state["last"] = s.state["last"], delta
        return delta

    def server(self, delta: Tensor, s: steppe.Aggregation) -> Tensor:
        return delta + 0.1 * s.up["before"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_update_made_at_its_place_in_the_round_is_not_lost_with_it(workers: int) -> None:
    options: dict[str, Any] = {"momentum": 0.9, "rounds": 4, "dtype": "float64"}
    one = launch(algorithm=Remembers(), executor="sequential", workers=workers, **options)
    batched = launch(algorithm=Remembers(), executor="batched", **options)
    torch.testing.assert_close(one.x, batched.x, rtol=0, atol=1e-12)
    assert not torch.allclose(one.x, launch(algorithm="fedavg", **options).x)


def test_a_client_without_steps_holds_no_momentum() -> None:
    built = launch(algorithm="fedavg", momentum=0.9, rounds=1).experiment
    x = built.task.x0
    sent = Sent(x, {}, {}, x.new_tensor(0.1), x.new_tensor(0.0))
    live = begin(built.algorithm, built.task, sent, built.algorithm.client_state(x), x.new_tensor(0.0))
    m = live.parts["sgd"]["m"]
    assert m.untyped_storage().nbytes() == m.element_size()
    assert torch.equal(m, torch.zeros_like(x))


# --- a model that no other process can import

SCRIPT = """
import torch, steppe
class Mine(torch.nn.Linear): pass
g = torch.Generator().manual_seed(0)
x, y = torch.randn(120, 6, generator=g), torch.arange(120) % 3
r = steppe.run("fedavg", Mine(6, 3), (x[:90], y[:90], x[90:], y[90:]), clients=4, per_round=2, rounds=2,
               partition="iid", workers=2)
print(r.notes, len(r.history))
"""


@pytest.mark.slow
def test_a_model_typed_at_a_prompt_trains_in_other_processes() -> None:
    done = subprocess.run([sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] 2"  # no note says that clients are trained in this process


def test_states_from_a_checkpoint_lie_where_new_ones_do() -> None:
    """On a GPU those of later rounds come beside them, and a server may want all of them as one tensor."""
    store = MemoryStore(lambda: {"part": {"state": torch.zeros(3, device="meta")}})
    store.restore({"4/part/state": torch.ones(3)})
    assert store.list_known() == [4]
    assert store.rows[4]["part"]["state"].device.type == "meta"
