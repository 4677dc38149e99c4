"""The round loop at its edges: nothing to do, one client, updates that are not finite, schedules, weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import steppe
from steppe import config as configuration
from steppe.core.errors import RunFailed, SteppeError
from steppe.core.server import Server, aggregate, broadcast
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.executors.sequential import Sequential
from tests.scene import blobs, launch, records, seeded


def test_no_rounds(tmp_path: Path) -> None:
    result = launch(tmp_path / "run", rounds=0)
    assert result.history == []
    assert (result.summary["rounds"], result.summary["evaluations"]) == (0, 0)
    assert torch.equal(result.x, result.experiment.task.x0)
    assert steppe.load(tmp_path / "run", seeded(seed=9)).state_dict()["last.bias"].equal(seeded().last.bias)


def test_the_learning_rate_is_recorded_as_the_number_that_was_meant() -> None:
    result = launch(lr=0.1, lr_decay=0.998, rounds=3)
    assert [r["lr"] for r in result.history] == [0.1, 0.0998, 0.0996004]


def test_so_small_a_run_starts_no_workers() -> None:
    assert isinstance(choose_executor(launch(rounds=0, workers="auto").experiment), Sequential)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsam", "feddyn"])
def test_no_epochs_leave_the_model_alone(algorithm: str, executor: str) -> None:
    result = launch(algorithm=algorithm, epochs=0, executor=executor, rounds=2)
    assert torch.equal(result.x, result.experiment.task.x0)
    assert result.history[0]["drift"] == 0


def test_one_client_is_plain_training() -> None:
    result = launch(algorithm="fedavg", clients=1, per_round=1, partition="iid", rounds=1, dtype="float64",
                    momentum=0.9, weight_decay=0.01)  # fmt: skip
    model, federation = seeded().double(), result.experiment.federation
    optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.01)
    batches = federation.plan([0], 0, result.experiment.algorithm.local_steps, 1)
    for k in range(batches.steps[0]):
        index = batches.index[0, k][batches.mask[0, k]]
        optimiser.zero_grad()
        x, y = federation.data.train_inputs[index].double(), federation.data.train_targets[index]
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    for mine, theirs in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_everyone_every_round() -> None:
    result = launch(per_round=6)
    assert [r["clients"] for r in result.history] == [6] * 5
    with pytest.raises(SteppeError, match="per_round is 7, but there are only 6 clients"):
        launch(per_round=7)


# --- updates that are not finite


@dataclass(frozen=True)
class Poison(steppe.Part):
    """The client with the fewest steps uploads NaN in its second round, and counts its rounds."""

    name = "poison"
    steps: float = 0.0

    def client_state(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"rounds": torch.zeros(1, dtype=x.dtype)}

    def finish(self, delta: torch.Tensor, s: steppe.ClientRound) -> torch.Tensor:
        s.state["rounds"] = s.state["rounds"] + 1
        bad = (s.steps == self.steps) & (s.state["rounds"] == 2)
        return torch.where(bad, torch.nan, delta)


def _poisoned(**options: Any) -> Any:
    clean = launch(algorithm="fedavg", rounds=1, per_round=6)
    federation = clean.experiment.federation
    steps = [federation.steps(i, lambda e, b: e * b) for i in range(6)]
    worst = steps.index(min(steps))
    assert steps.count(min(steps)) == 1  # so that exactly one client is meant
    return worst, launch(algorithm=Poison(steps=float(min(steps))), per_round=6, **options)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_a_bad_update_stops_the_run_and_is_named(executor: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"round 2: the update of client \d is not finite") as caught:
        _poisoned(executor=executor, out=tmp_path / "run")
    assert caught.value.exit_code == 3
    assert [r["round"] for r in records(tmp_path / "run")] == [1]
    assert not (tmp_path / "run/result.json").exists()


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_a_bad_update_can_be_dropped(executor: str, tmp_path: Path) -> None:
    worst, result = _poisoned(executor=executor, nonfinite="drop", rounds=2, out=tmp_path / "run")
    assert [[f["client"] for f in r.get("refused", [])] for r in result.history] == [[], [worst]]
    assert result.history[1]["clients"] == 5
    assert bool(result.x.isfinite().all())
    from steppe.engine.resources import make_store
    from steppe.runs import checkpoint

    store = make_store(result.experiment, tmp_path / "run")
    checkpoint.load(tmp_path / "run/checkpoints", store)
    kept = [float(row["poison"]["rounds"]) for row in store.gather(range(6))]
    assert kept == [1.0 if i == worst else 2.0 for i in range(6)]  # as if it had not taken part
    # The others are averaged as if they alone had been there: the same two rounds with a client left out by hand.
    again = launch(algorithm="fedavg", rounds=1, per_round=6, executor="sequential")
    server: Server = again.server
    built = again.experiment
    executor_ = choose_executor(built)
    others = [i for i in built.sample(1) if i != worst]
    lr = built.task.x0.new_tensor(built.lr(1))
    server, sent = broadcast(built.algorithm, built.task.layout, server, lr, lr.new_tensor(1.0))
    answers = executor_(sent, others, [built.algorithm.client_state(built.task.x0)] * 5)
    weights = built.task.x0.new_tensor(answers.sizes)
    after = aggregate(built.algorithm, built.task.layout, server, sent, answers.replies, weights, 6)
    torch.testing.assert_close(result.x, after.x, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class KeepsNothingGood(steppe.Part):
    """A fine update, and a state that would spoil the client's next round."""

    name = "spoilt"

    def client_state(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"h": torch.zeros_like(x)}

    def finish(self, delta: torch.Tensor, s: steppe.ClientRound) -> torch.Tensor:
        s.state["h"] = s.state["h"] / 0.0
        return delta


def test_a_state_that_is_not_finite_is_caught_when_it_appears() -> None:
    with pytest.raises(RunFailed, match="round 1"):
        launch(algorithm=KeepsNothingGood())


def test_nobody_left_stops_the_run_even_when_updates_may_be_dropped() -> None:
    with pytest.raises(RunFailed, match="not finite, so no update is left: lower lr"):
        launch(algorithm="fedavg", lr=1e9, weight_decay=1e9, nonfinite="drop", epochs=5)


# --- schedules, sampling, weights


def _built(**options: Any) -> Any:
    given = {"clients": 6, "per_round": 3, "partition": "dirichlet(0.5)", "rounds": 10, "lr": 0.2, **options}
    return build_experiment(configuration.resolve(given), None, seeded(), steppe.from_arrays(*blobs()))


def test_learning_rate_schedules() -> None:
    rates = {
        "constant": lambda t: 0.2,
        "exponential": lambda t: 0.2 * 0.9**t,
        "cosine": lambda t: 0.1 * (1 + math.cos(math.pi * t / 10)),
    }
    for name, rate in rates.items():
        built = _built(lr_schedule=name, lr_decay=0.9)
        assert [built.lr(t) for t in range(10)] == pytest.approx([rate(t) for t in range(10)])
    result = launch(lr_schedule="exponential", lr_decay=0.5, rounds=3)
    assert [r["lr"] for r in result.history] == pytest.approx([0.1, 0.05, 0.025])


def test_a_cosine_run_cannot_be_made_longer(tmp_path: Path) -> None:
    launch(tmp_path / "run", rounds=3, lr_schedule="cosine")
    with pytest.raises(SteppeError, match="cosine schedule depends on that number"):
        launch(tmp_path / "run", resume=True, rounds=5, lr_schedule="cosine")


def test_sampling() -> None:
    fixed, coin = _built(), _built(sampling="bernoulli", clients=6, per_round=2)
    drawn = [fixed.sample(t) for t in range(50)]
    assert all(len(set(ids)) == 3 for ids in drawn)
    assert {i for ids in drawn for i in ids} == set(range(6))
    counts = [len(coin.sample(t)) for t in range(400)]
    assert min(counts) >= 1
    assert max(counts) > 3
    assert 1.8 < sum(counts) / 400 < 2.5  # 2 on average, a little more because nobody is never drawn
    assert [_built(sampling_seed=1).sample(t) for t in range(5)] != drawn[:5]
    assert [_built(seed=7).sample(t) for t in range(5)] == drawn[:5]


def test_weights() -> None:
    """By samples, or every client alike: one round of FedAvg is that mean of the clients' models."""
    for weighting in ("samples", "uniform"):
        done = launch(algorithm="fedavg", weighting=weighting, rounds=1)
        built = done.experiment
        ids, sizes = built.sample(0), built.federation.sizes
        lr = built.task.x0.new_tensor(built.lr(0))
        server = Server(built.task.x0, {p.name: {} for p in built.algorithm.parts}, {})
        sent = broadcast(built.algorithm, built.task.layout, server, lr, 0 * lr)[1]
        states = [built.algorithm.client_state(built.task.x0) for _ in ids]
        each = choose_executor(built)(sent, ids, states).replies.update
        share = torch.tensor([float(sizes[i]) if weighting == "samples" else 1.0 for i in ids])
        expected = built.task.x0 + (share / share.sum()) @ each
        torch.testing.assert_close(done.x, expected)


def test_evaluation_every_few_rounds_and_at_the_end() -> None:
    result = launch(rounds=7, evaluate_every=3)
    assert [r["round"] for r in result.history if "accuracy" in r] == [3, 6, 7]


def test_the_folder_says_what_was_run(tmp_path: Path) -> None:
    import csv
    import json

    out = tmp_path / "run"
    launch(out, rounds=3)
    versions = json.loads((out / "versions.json").read_text())
    assert {"steppe", "torch", "python", "commit", "hardware"} <= set(versions)
    about = json.loads((out / "about.json").read_text())
    assert about["cost"]["up"] == 2
    assert [p["part"] for p in about["parts"]] == ["control_variates", "sgd"]
    with (out / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = records(out)
    assert [float(r["accuracy"]) for r in rows] == [r["accuracy"] for r in lines]
    assert float(rows[2]["server_norms.control_variates.c"]) == lines[2]["server_norms"]["control_variates.c"] > 0
    assert steppe.data.Partition.load(out / "partition.json").hash == about["partition"]["hash"]
    assert not list(out.glob("*.new"))
