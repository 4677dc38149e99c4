"""Schedules over rounds and over local steps, and local optimisers by name, as parts, functions and of torch.optim."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import steppe
from steppe.core.errors import SteppeError
from steppe.parts.adamw import AdamW
from steppe.parts.rate_cycle import RateCycle
from tests.scene import blobs, seeded

FEW: dict[str, Any] = {"clients": 3, "per_round": 2, "rounds": 4, "epochs": 2, "batch": 8, "partition": "iid",
                       "lr": 0.4, "workers": 0, "dtype": "float64", "progress": False}  # fmt: skip


def test_a_function_of_the_round_is_asked_for_every_round_of_every_point() -> None:
    found = steppe.sweep("fedavg", {"rounds": [2, 33]}, seeded(), blobs(), lr_schedule=lambda t: 1 / (1 + t),
                         **{k: v for k, v in FEW.items() if k != "rounds"})  # fmt: skip
    for (run,), rounds in zip(found.runs.values(), (2, 33), strict=True):
        assert [r["lr"] for r in run.history] == pytest.approx([0.4 / (1 + t) for t in range(rounds)])
    with pytest.raises(SteppeError, match=r"the values of lr_schedule include .* no name to tell its runs apart"):
        steppe.sweep("fedavg", {"lr_schedule": [lambda t: 1.0]}, seeded(), blobs(), **FEW)


def launch(**options: Any) -> Any:
    return steppe.run("fedavg", seeded(), blobs(), **{**FEW, **options})


@pytest.mark.parametrize(("schedule", "wanted"), [
    ("steps(1,3;0.1)", [1, 0.1, 0.1, 0.01]),
    ("warmup(2)+linear(0.5)", [0.5, 1, 1, 0.75]),
    ("warmup(2)", [0.5, 1, 1, 1]),
    ("cosine(0.2)", [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]),
    ("exponential(0.5)", [1, 0.5, 0.25, 0.125]),
    ([1, 0.5], [1, 0.5, 0.5, 0.5]),
    ({2: 0.1}, [1, 1, 0.1, 0.1]),
    (lambda t: 1 / (1 + t), [1, 1 / 2, 1 / 3, 1 / 4]),
])  # fmt: skip
def test_schedules_over_rounds(schedule: Any, wanted: list[float]) -> None:
    assert [r["lr"] for r in launch(lr_schedule=schedule).history] == pytest.approx([0.4 * f for f in wanted])


def test_a_function_of_the_round_is_recorded_and_resumed(tmp_path: Path) -> None:
    rule = {"lr_schedule": lambda t: 0.5**t, "checkpoint_every": 1}
    whole = launch(out=tmp_path / "r", **rule)
    assert json.loads((tmp_path / "r" / "config.json").read_text())["lr_schedule"] == [0.5**t for t in range(5)]
    again = launch(out=tmp_path / "r", resume=True, **rule)
    assert torch.equal(whole.x, again.x)
    named = launch(lr_schedule="exponential(0.5)")
    assert torch.equal(whole.x, named.x)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_schedules_within_a_round_are_those_of_pytorch(shape: str) -> None:
    """One client, one round: plain PyTorch with a LambdaLR over the same batches."""
    x, y = blobs()[:2]
    result = launch(local_schedule=f"{shape}(0.1)", clients=1, per_round=1, rounds=1, epochs=5, batch=90, momentum=0.5,
                    weight_decay=0.0)  # fmt: skip
    model = seeded().double()
    optimiser = torch.optim.SGD(model.parameters(), 0.4, momentum=0.5)
    done = {"linear": lambda k: k / 5, "cosine": lambda k: (1 - math.cos(math.pi * k / 5)) / 2}[shape]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 1 - done(k) + done(k) * 0.1)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        optimiser.step()
        schedule.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value)
    assert torch.equal(launch(local_schedule="linear(0.1)").x, launch(add=[RateCycle(0.1)]).x)


def nesterov(g: Tensor, w: Tensor, memory: dict[str, Tensor], k: Tensor) -> Tensor:
    memory["m"] = 0.5 * memory["m"] + g
    return g + 0.5 * memory["m"]


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_an_optimiser_of_ones_own(executor: str, tmp_path: Path) -> None:
    x, y = blobs()[:2]
    one: dict[str, Any] = {"clients": 1, "per_round": 1, "rounds": 1, "epochs": 4, "batch": 90, "weight_decay": 0.1,
                           "executor": executor}  # fmt: skip
    result = launch(optimiser=nesterov, out=tmp_path / "r", **one)
    model = seeded().double()
    optimiser = torch.optim.SGD(model.parameters(), 0.4, momentum=0.5, nesterov=True, weight_decay=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        optimiser.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value)
    assert result.config.optimiser == f"own:{__name__}.nesterov"
    again = launch(optimiser=nesterov, out=tmp_path / "r", resume=True, **one)
    assert torch.equal(result.x, again.x)
    found = steppe.analyze(tmp_path / "r", "lambda1", model=seeded(), data=blobs(), optimiser=nesterov)
    assert "lambda1" in found


def test_optimisers_by_name_part_and_class_are_one() -> None:
    same = [launch(optimiser=how, lr=0.01, weight_decay=0.1).x for how in
            ("adamw:beta1=0.8", AdamW(beta1=0.8, decay=0.1),
             partial(torch.optim.AdamW, betas=(0.8, 0.999), weight_decay=0.1))]  # fmt: skip
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    sgd = partial(torch.optim.SGD, momentum=0.5)
    assert torch.equal(launch(momentum=0.5).x, launch(optimiser=sgd).x)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"lr_schedule": "cosin"}, "did you mean 'cosine'"),
    ({"lr_schedule": "steps(3,1;0.1)"}, "rounds that rise"),
    ({"lr_schedule": "cosine(0.1"}, "'cosine\\(0.1': write cosine"),
    ({"lr_schedule": []}, "no factor"),
    ({"lr_schedule": lambda t: None}, "lr_schedule fails"),
    ({"lr_schedule": lambda t: -1.0}, "lr_schedule has the factor -1.0, but a factor must be a number, at least 0"),
    ({"lr_schedule": {2: "x"}}, "lr_schedule has the factor 'x', but a factor must be a number"),
    ({"optimiser": lambda gradient, w, memory, k: gradient[:2]}, "its result must be a vector like the gradient"),
    ({"local_schedule": "cosine(3)"}, "at most 1"),
    ({"local_schedule": "steps(1;0.1)"}, "local_schedule"),
    ({"optimiser": "adam"}, "did you mean 'adamw'"),
    ({"optimiser": "adamw:beta=1"}, "no setting 'beta'"),
    ({"optimiser": torch.optim.LBFGS}, "write it as a function"),
    ({"optimiser": partial(torch.optim.SGD, nesterov=True)}, "nesterov of torch.optim.SGD has no counterpart"),
    ({"optimiser": partial(torch.optim.SGD, lr=1.0)}, "set the key lr"),
    ({"optimiser": lambda g: g}, r"rule\(gradient, w, memory, k\)"),
    ({"optimiser": lambda g, w, m, k: g.sum()}, "must be a vector"),
    ({"optimiser": lambda g, w, m, k: g.double()}, "must be a vector like the gradient, of its length and type"),
    ({"optimiser": 3}, "optimiser is 3"),
    ({"optimiser": "own:mine.rule"}, "pass it again from Python"),
])  # fmt: skip
def test_what_is_wrong_is_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SteppeError, match=sentence):
        launch(**options)


@pytest.mark.parametrize("optimiser", ["adamw", nesterov])
def test_a_momentum_without_effect_is_told(optimiser: Any) -> None:
    assert any("momentum = 0.9 has no effect" in note for note in launch(optimiser=optimiser, momentum=0.9).notes)
    assert not launch(optimiser="sgd:momentum=0.5", momentum=0.9).notes


def test_an_algorithm_that_reads_displacements_refuses_an_own_optimiser() -> None:
    with pytest.raises(SteppeError, match="use the optimiser sgd"):
        steppe.run("scaffold", seeded(), blobs(), optimiser=nesterov, **FEW)
