"""Batch norm: policies for running statistics, SAM's two passes, and what is a constant."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steppe
from steppe.core.errors import SteppeError
from tests.scene import NormNet, blobs, launch, seeded

CALM: dict[str, Any] = {"partition": "iid", "clients": 3, "per_round": 3, "batch": 10, "algorithm": "fedavg",
                        "rounds": 2, "momentum": 0.0, "weight_decay": 0.0, "dtype": "float64"}  # fmt: skip


def by_hand(result: Any, client: int, round_: int, model: nn.Module, rho: float = 0.0, lr: float = 0.1) -> nn.Module:
    """A client's round in plain PyTorch: SGD, or SAM with the statistics of its second pass thrown away."""
    federation = result.experiment.federation
    batches = federation.plan([client], round_, lambda epochs, n: epochs * n, 1)
    model = copy.deepcopy(model).double().train()
    for k in range(batches.steps[0]):
        index = batches.index[0, k][batches.mask[0, k]]
        x, y = federation.data.train_inputs[index].double(), federation.data.train_targets[index]
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if rho:
            kept = {name: b.clone() for name, b in model.named_buffers()}
            grads = [p.grad.clone() for p in model.parameters()]
            norm = torch.cat([g.flatten() for g in grads]).norm()
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads, strict=True):
                    p.add_(rho * g / norm)
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads, strict=True):
                    p.sub_(rho * g / norm)
                for name, b in model.named_buffers():
                    b.copy_(kept[name])
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(lr * p.grad)
    return model


@pytest.mark.parametrize(("algorithm", "settings"), [("fedavg", {}), ("fedsam", {"rho": 0.3})])
def test_one_round_equals_a_loop_in_plain_pytorch(algorithm: str, settings: dict[str, Any]) -> None:
    """Statistics are averaged like weights, committed once a step also by SAM; the counter is left as it was."""
    start = seeded(NormNet)
    result = launch(model=copy.deepcopy(start), **{**CALM, "algorithm": algorithm, "rounds": 1, **settings})
    locals_ = [by_hand(result, i, 0, start, settings.get("rho", 0.0)) for i in range(3)]
    sizes = result.experiment.federation.sizes
    for name, value in result.model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value == 0
            assert value.dtype == torch.int64
            continue
        mean = sum(n * m.state_dict()[name] for n, m in zip(sizes, locals_, strict=True)) / sum(sizes)
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-12)


def test_statistics_that_stay_with_the_client() -> None:
    start = seeded(NormNet)
    result = launch(model=copy.deepcopy(start), **{**CALM, "buffers": "local"})
    # The server never learns any statistics of theirs: its own stay as the model brought them.
    assert torch.equal(result.server.buffers["norm.running_mean"], torch.zeros(8, dtype=torch.float64))
    first = [by_hand(result, i, 0, start) for i in range(3)]
    sizes = torch.tensor(result.experiment.federation.sizes).double()
    shares = sizes / sizes.sum()
    middle = copy.deepcopy(start).double()
    with torch.no_grad():
        for p, *theirs in zip(middle.parameters(), *(m.parameters() for m in first), strict=True):
            p.copy_(torch.tensordot(shares, torch.stack(theirs), 1))
    second = []
    for i in range(3):
        own = copy.deepcopy(middle)
        own.norm.load_state_dict({**own.norm.state_dict(), "running_mean": first[i].norm.running_mean,
                                  "running_var": first[i].norm.running_var})  # fmt: skip
        second.append(by_hand(result, i, 1, own, lr=0.1 * 0.99))
    last = torch.tensordot(shares, torch.stack([m.last.weight.detach() for m in second]), 1)
    torch.testing.assert_close(result.model.last.weight.detach(), last, rtol=0, atol=1e-12)
    # The model that leaves the run gets measured statistics, or it could not predict.
    assert not torch.equal(result.model.norm.running_mean, torch.zeros(8, dtype=torch.float64))
    assert any("each client keeps its own" in note for note in result.notes)


def test_recalibrated_statistics_are_the_exact_mean_over_batches() -> None:
    result = launch(model=seeded(NormNet), **{**CALM, "buffers": "recalibrate"})
    federation = result.experiment.federation
    from steppe.core.keyed import key, permutation

    order = permutation(key(0, 4), len(federation.data.train_inputs))
    model = result.model
    with torch.no_grad():
        h = model.first(federation.data.train_inputs[order].double())  # fewer than 200 samples: one batch
    torch.testing.assert_close(model.norm.running_mean, h.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.norm.running_var, h.var(0), rtol=0, atol=1e-12)


def test_recalibration_over_several_batches() -> None:
    from steppe.core.task import Task
    from steppe.evaluate.score import recalibrate

    model = seeded(NormNet).double()
    task = Task(model)
    batches = [torch.randn(20, 6, dtype=torch.float64) + i for i in range(4)]
    found = recalibrate(task, task.x0, task.buffers, batches)
    with torch.no_grad():
        hidden = [model.first(b) for b in batches]
    mean, var = torch.stack([h.mean(0) for h in hidden]).mean(0), torch.stack([h.var(0) for h in hidden]).mean(0)
    torch.testing.assert_close(found["norm.running_mean"], mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(found["norm.running_var"], var, rtol=0, atol=1e-12)


def test_a_policy_may_refuse() -> None:
    with pytest.raises(SteppeError, match="group norm"):
        launch(model=seeded(NormNet), **{**CALM, "buffers": "refuse"})
    launch(model=seeded(), **{**CALM, "buffers": "refuse"})  # nothing to refuse here


def test_batch_statistics_are_never_batched_over_clients_and_that_is_said() -> None:
    told = launch(model=seeded(NormNet), **{**CALM, "executor": "batched"})
    assert any("one after the other" in note for note in told.notes)
    plain = launch(model=seeded(NormNet), **{**CALM, "executor": "sequential"})
    assert torch.equal(told.x, plain.x)


def test_a_last_batch_of_one_sample_is_refused_before_the_start() -> None:
    with pytest.raises(SteppeError, match="last batch of client 0 has one sample"):
        launch(model=seeded(NormNet), **{**CALM, "clients": 1, "per_round": 1, "batch": 89})


class Positions(nn.Module):
    """Buffers that are no statistics: a table, and a mask with −∞."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 0.3, 6))
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]))
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.last(x + self.table) + self.mask)[:, :3]


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_constant_buffers_are_neither_averaged_nor_asked_to_be_finite(executor: str) -> None:
    options = {**CALM, "dtype": "float32", "buffers": "refuse", "rounds": 3, "executor": executor}
    result = launch(model=Positions(), **options)
    assert torch.equal(result.model.table, torch.linspace(0, 0.3, 6))
    assert result.model.mask[3] == -torch.inf
    assert result.notes == []


def test_loading_a_run_brings_the_statistics_back(tmp_path: Any) -> None:
    result = launch(tmp_path / "run", model=seeded(NormNet), **CALM)
    back = steppe.load(tmp_path / "run", NormNet())
    x = blobs()[2].double()
    with torch.no_grad():
        assert torch.equal(back.model(x), result.model(x))
