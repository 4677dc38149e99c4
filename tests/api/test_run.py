"""Users bring their own: module, loss, metric, data, part, optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import steppe
from steppe.core.errors import SteppeError
from steppe.parts.adamw import AdamW
from steppe.parts.sgd import SGD
from tests.scene import Net, blobs, seeded

FEW: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 3, "epochs": 1, "batch": 8, "partition": "iid",
                       "workers": 0}  # fmt: skip


# --- frozen parameters


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize(("optimiser", "algorithm", "vectors"), [("sgd", "scaffold", 2), ("adamw", "fedavg", 1)])
def test_frozen_parameters_stay_even_under_decay(executor: str, optimiser: str, algorithm: str, vectors: int) -> None:
    model = seeded()
    model.first.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = steppe.run(algorithm, model, blobs(), weight_decay=0.5, executor=executor, optimiser=optimiser, **FEW)
    after = result.model.state_dict()
    assert torch.equal(after["first.weight"], before["first.weight"])
    assert torch.equal(after["first.bias"], before["first.bias"])
    assert not torch.equal(after["last.weight"], before["last.weight"])
    trained = sum(p.numel() for p in model.last.parameters())
    assert result.experiment.cost.bytes_up == vectors * 4 * trained  # SCAFFOLD sends two vectors of what is trained
    assert not any(p.requires_grad for p in model.first.parameters())


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(SteppeError, match="no trainable parameter"):
        steppe.run("fedavg", seeded().requires_grad_(False), blobs(), **FEW)


# --- own module, loss, metric, data


def test_regression() -> None:
    x = torch.randn(120, 4)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0])
    result = steppe.run("fedavg", nn.Linear(4, 1), (x[:100], y[:100], x[100:], y[100:]),
                        **{**FEW, "rounds": 15, "lr": 0.1, "epochs": 3})  # fmt: skip
    assert result.history[-1]["loss"] < 0.01 < result.history[0]["loss"]
    assert result.score == result.history[-1]["loss"] == result.history[-1]["mse"]  # its metric is its loss
    assert result.summary["best"] == min(r["mse"] for r in result.history)
    with pytest.raises(SteppeError, match="is mse, so it has no accuracy"):
        _ = result.accuracy
    with torch.no_grad():
        assert F.mse_loss(result.model(x[100:]).squeeze(1), y[100:]).item() == pytest.approx(result.score, rel=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_own_loss_and_metric(dtype: str) -> None:
    def huber(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.huber_loss(outputs, targets, reduction="none")

    def within(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).abs() < 0.5).to(outputs.dtype)

    x = torch.randn(60, 4)
    data = steppe.from_arrays(x[:50], x[:50, :2], x[50:], x[50:, :2])
    result = steppe.run("fedsam", nn.Linear(4, 2), data, loss=huber, metric=within, dtype=dtype,
                        **{**FEW, "rounds": 20, "lr": 0.2})  # fmt: skip
    assert result.score > 0.9
    with torch.no_grad():
        outputs = result.model(x[50:].to(result.x.dtype))
        assert result.score == pytest.approx(float(within(outputs, x[50:, :2].to(result.x.dtype)).mean()))


def test_a_loss_must_be_one_value_a_sample() -> None:
    with pytest.raises(SteppeError, match="reduction='none'"):
        steppe.run("fedavg", seeded(), blobs(), loss=F.cross_entropy, **FEW)
    with pytest.raises(SteppeError, match=r"no loss 'cross_entropi'; did you mean 'cross_entropy'"):
        steppe.run("fedavg", seeded(), blobs(), loss="cross_entropi", **FEW)


class Reader(nn.Module):
    """The next token of a sequence; makes a tensor of its own on the way, as many models do."""

    def __init__(self, vocabulary: int = 5) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, 12), nn.Embedding(16, 12)
        self.mix, self.out = nn.GRU(12, 16, batch_first=True), nn.Linear(16, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.out(self.mix(h)[0])


def test_sequences_of_integers() -> None:
    """Inputs (n, time) and targets (n, time) are integers; the token after t is t + 1, modulo 5."""
    x = (torch.randint(0, 5, (90, 1)) + torch.arange(7)) % 5
    data = steppe.from_arrays(x[:70, :-1], x[:70, 1:], x[70:, :-1], x[70:, 1:])
    assert data.classes is None
    torch.manual_seed(0)
    result = steppe.run("fedavg", Reader(), data, optimiser="adamw", lr=0.02, executor="sequential",
                        **{k: v for k, v in FEW.items() if k not in ("partition", "rounds")}, rounds=6)  # fmt: skip
    assert result.config.partition == "iid"  # nobody had to say so: without labels there is no other
    assert result.accuracy > 0.95
    logits = result.model(x[70:, :-1])
    assert logits.shape == (20, 6, 5)
    assert result.accuracy == pytest.approx(float((logits.argmax(-1) == x[70:, 1:]).double().mean()))


def test_a_model_that_cannot_be_batched_is_told_and_trained() -> None:
    result = steppe.run("fedavg", Moody(), blobs(), executor="batched", **FEW)
    plain = steppe.run("fedavg", result.experiment.task.learner, blobs(), executor="sequential", **FEW)
    assert any("one after the other, because vmap cannot run this model" in note for note in result.notes)
    assert torch.equal(result.x, plain.x)


@dataclass(frozen=True)
class Branching(steppe.Part):
    name = "branching"

    def gradient(self, grad: steppe.Oracle, w: Tensor, s: steppe.LocalStep) -> Tensor:
        return grad(w) if float(w.sum()) > -1e9 else w


def test_a_part_that_cannot_be_batched_is_told_and_trained() -> None:
    result = steppe.run("fedsam", seeded(), blobs(), add=Branching(), executor="batched", **FEW)
    assert result.summary["executor"] == "sequential"
    (note,) = result.notes
    assert "because vmap cannot run the part branching (test_run.py, line" in note
    assert torch.equal(result.x, steppe.run("fedsam", seeded(), blobs(), executor="sequential", **FEW).x)


def test_sequences_cannot_be_divided_by_class() -> None:
    x = torch.zeros(20, 3, dtype=torch.int64)
    with pytest.raises(SteppeError, match="use iid"):
        steppe.run("fedavg", Reader(), (x, x, x, x), **{**FEW, "partition": "lda(0.1)"})


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_data_may_come_as_arrays_or_as_torch_data_sets(kind: Any) -> None:
    x, y, tx, ty = blobs()
    arrays = steppe.run("fedavg", seeded(), tuple(kind(v) for v in (x, y, tx, ty)), **FEW)
    pairs = steppe.run("fedavg", seeded(), (TensorDataset(x, y), TensorDataset(tx, ty)), **FEW)
    whole = steppe.run("fedavg", seeded(), steppe.from_arrays(x, y, tx, ty), **FEW)
    assert torch.equal(arrays.x, pairs.x)
    assert torch.equal(arrays.x, whole.x)


def test_other_data_is_refused() -> None:
    with pytest.raises(SteppeError, match="four arrays"):
        steppe.run("fedavg", seeded(), blobs()[:3], **FEW)


class Moody(nn.Module):
    """Looks at its numbers, so it cannot be traced without them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) if float(x.detach().abs().sum()) > 0 else self.last(x) * 2


def test_a_model_that_looks_at_its_numbers_has_a_cost_too() -> None:
    result = steppe.run("fedsam", Moody(), blobs(), executor="sequential", **FEW)
    assert result.experiment.cost.gradients == 2
    assert result.experiment.cost.bytes_up == 4 * 21


def test_models_that_do_not_fit() -> None:
    with pytest.raises(SteppeError, match="its last layer needs 3 outputs"):
        steppe.run("fedavg", nn.Linear(6, 2), blobs(), **FEW)
    with pytest.raises(SteppeError, match="cannot take inputs of shape"):
        steppe.run("fedavg", nn.Linear(5, 3), blobs(), **FEW)
    with pytest.raises(SteppeError, match="no module 'lost'; did you mean 'last'"):
        steppe.run("fedavg", seeded(), blobs(), head="lost", **FEW)


# --- own parts


@dataclass(frozen=True)
class Stale(steppe.Part):
    """Adds a share of the client's last update to its gradient: state on both sides, in a few lines."""

    name = "stale"
    down = ("mean",)
    share: float = 0.1

    def server_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(x)}

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": torch.zeros_like(x)}

    def gradient(self, grad: steppe.Oracle, w: Tensor, s: steppe.LocalStep) -> Tensor:
        return grad(w) - self.share * (s.state["last"] + s.down["mean"])

    def finish(self, delta: Tensor, s: steppe.ClientRound) -> Tensor:
        s.state["last"] = s.up["mean"] = delta
        return delta

    def server(self, delta: Tensor, s: steppe.Aggregation) -> Tensor:
        s.state["mean"] = s.up["mean"]
        return delta


class Bare(steppe.Part):
    """Not a dataclass, and it need not be one."""

    name = "bare"

    def gradient(self, grad: steppe.Oracle, w: Tensor, s: steppe.LocalStep) -> Tensor:
        return 0.5 * grad(w)


def test_an_own_part_alone_in_a_tuple_and_as_an_algorithm(tmp_path: Path) -> None:
    options = {**FEW, "momentum": 0.9, "weight_decay": 0.0}
    alone = steppe.run(Stale(0.2), seeded(), blobs(), out=tmp_path / "run", **options)
    for same in ((Stale(0.2),), [Stale(0.2)], steppe.Algorithm((Stale(0.2), SGD(0.9)))):
        assert torch.equal(steppe.run(same, seeded(), blobs(), **options).x, alone.x)
    nothing = steppe.run(Stale(0.0), seeded(), blobs(), **options)
    plain = steppe.run("fedavg", seeded(), blobs(), **options)
    assert torch.equal(nothing.x, plain.x)
    assert not torch.equal(alone.x, plain.x)
    cost = alone.experiment.cost
    assert (cost.down, cost.up, cost.kept, cost.gradients) == (2, 2, 1, 1)  # found out, never declared
    assert steppe.load(tmp_path / "run", Net()).about["parts"][0] == {
        "part": "stale",
        "type": "tests.api.test_run.Stale",
        "share": 0.2,
    }
    batched = steppe.run(Stale(0.2), seeded(), blobs(), executor="batched", dtype="float64", **options)
    exact = steppe.run(Stale(0.2), seeded(), blobs(), executor="sequential", dtype="float64", **options)
    torch.testing.assert_close(batched.x, exact.x, rtol=0, atol=1e-9)


def test_a_part_need_not_be_a_dataclass(tmp_path: Path) -> None:
    half = steppe.run(Bare(), seeded(), blobs(), out=tmp_path / "run", weight_decay=0.0, lr=0.1, dtype="float64", **FEW)
    slow = steppe.run("fedavg", seeded(), blobs(), weight_decay=0.0, lr=0.05, dtype="float64", **FEW)
    torch.testing.assert_close(half.x, slow.x, rtol=0, atol=1e-12)


def test_what_is_no_part_is_refused() -> None:
    class Nameless(steppe.Part):
        pass

    with pytest.raises(SteppeError, match="Nameless needs a name"):
        steppe.run(Nameless(), seeded(), blobs(), **FEW)
    with pytest.raises(SteppeError, match="two parts are named 'stale'"):
        steppe.run((Stale(), Stale()), seeded(), blobs(), **FEW)


# --- optimisers


@pytest.mark.parametrize("clip", [None, 0.3])
def test_adamw_takes_the_steps_of_torch(clip: float | None) -> None:
    once = {**FEW, "clients": 1, "per_round": 1, "rounds": 1, "epochs": 2, "dtype": "float64"}
    result = steppe.run("fedavg", seeded(), blobs(), optimiser="adamw", lr=0.01, weight_decay=0.1, clip=clip, **once)
    model, federation = seeded().double(), result.experiment.federation
    optimiser = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)
    batches = federation.plan([0], 0, result.experiment.algorithm.local_steps, 1)
    for k in range(batches.steps[0]):
        index = batches.index[0, k][batches.mask[0, k]]
        optimiser.zero_grad()
        x, y = federation.data.train_inputs[index].double(), federation.data.train_targets[index]
        F.cross_entropy(model(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    for mine, theirs in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_a_complete_algorithm_brings_its_own_optimiser() -> None:
    mine = steppe.run(steppe.Algorithm((AdamW(decay=0.1),)), seeded(), blobs(), lr=0.01, **FEW)
    named = steppe.run("fedavg", seeded(), blobs(), optimiser="adamw", weight_decay=0.1, lr=0.01, **FEW)
    assert torch.equal(mine.x, named.x)


# --- settings


def test_settings_of_the_algorithm_stand_beside_those_of_the_run() -> None:
    one = steppe.run("fedsam", seeded(), blobs(), rho=0.3, **FEW)
    other = steppe.run("fedsam", seeded(), blobs(), settings={"rho": 0.3}, **FEW)
    assert torch.equal(one.x, other.x)
    with pytest.raises(SteppeError, match="there is no key 'rhoo'; did you mean 'rho'"):
        steppe.run("fedsam", seeded(), blobs(), rhoo=0.3, **FEW)
    with pytest.raises(SteppeError, match="is -1, but must be between 0 and"):
        steppe.run("fedsam", seeded(), blobs(), rho=-1, **FEW)


def test_no_setting_of_an_algorithm_hides_a_key_of_the_run() -> None:
    from steppe.algorithms import CATALOGUE
    from steppe.config import Config
    from steppe.registry import list_settings

    for name, entry in CATALOGUE.items():
        assert not set(list_settings(entry)) & set(Config.model_fields), name


# --- reading a run back


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_load_gives_the_same_predictions(dtype: str, tmp_path: Path) -> None:
    result = steppe.run("fedsam", "mlp", out=tmp_path / "run", dtype=dtype, max_steps=3, **FEW)
    back = steppe.load(tmp_path / "run")
    federation = result.experiment.federation
    x = federation.plain(federation.data.test_inputs)
    with torch.no_grad():
        assert torch.equal(back.model(x), result.model(x))
        right = back.model(x).argmax(1) == federation.data.test_targets
    assert float(right.double().mean()) == pytest.approx(result.accuracy)
    assert back.summary == result.summary
    assert back.history == result.history
    assert not back.model.training
    plain = back.state_dict()
    assert {k: v.shape for k, v in plain.items()} == {k: v.shape for k, v in back.model.state_dict().items()}


def test_load_of_an_own_module(tmp_path: Path) -> None:
    result = steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", **FEW)
    records = steppe.load(tmp_path / "run")  # records and weights need no module
    assert (records.history, records.summary, records.score) == (result.history, result.summary, result.score)
    assert len(records.frame()) == len(result.history)
    assert all(torch.equal(v, result.state_dict()[k]) for k, v in records.state_dict().items())
    with pytest.raises(SteppeError, match=r"call steppe\.load\('.*run', model=YourModule\(\)\)"):
        _ = records.model
    x = blobs()[2]
    with torch.no_grad():
        assert torch.equal(steppe.load(tmp_path / "run", model=Net()).model(x), result.model(x))
    with pytest.raises(SteppeError, match="do not fit this module"):
        steppe.load(tmp_path / "run", model=nn.Linear(6, 3))


def test_a_folder_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SteppeError, match=r"is not the folder of a run: it has no config\.json"):
        steppe.load(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(SteppeError, match=r"model\.pt is not the folder of a run"):
        steppe.load(tmp_path / "model.pt")

    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", watch=stop, **FEW)
    unfinished = steppe.load(tmp_path / "run", model=Net())
    assert unfinished.summary is None
    assert len(unfinished.history) == 1
    with pytest.raises(
        SteppeError, match=r"let the run finish \(in Python, steppe\.run\(…, out='.*run', resume=True\)"
    ):
        _ = unfinished.model
    steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", resume=True, **FEW)
    assert "run has no checkpoint yet, so the run starts at round 1" in capsys.readouterr().err
    steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", resume=True, **{**FEW, "rounds": 4})
    assert "run continues after round 3 of 4" in capsys.readouterr().err
    steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", resume=True, **{**FEW, "rounds": 4})
    assert "run has finished all 4 rounds already" in capsys.readouterr().err
    path = tmp_path / "run/model.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SteppeError, match=r"model\.safetensors is damaged"):
        steppe.load(tmp_path / "run", model=Net())
    path.unlink()
    with pytest.raises(SteppeError, match="has no model yet"):
        steppe.load(tmp_path / "run", model=Net())


def test_the_users_own_module_is_left_alone() -> None:
    model = seeded()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = steppe.run("fedavg", model, blobs(), **FEW)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not torch.equal(result.model.last.weight, model.last.weight)
