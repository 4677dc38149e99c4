"""Several inputs per sample: a tuple is passed as model(*x), a dict as model(**x), in everything a run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.config import resolve
from steppe.core.client import Sent
from steppe.core.errors import SteppeError
from steppe.engine.build import build_experiment
from steppe.executors.captured import Captured
from steppe.executors.sequential import Sequential

FEW: dict[str, Any] = {"clients": 4, "per_round": 3, "rounds": 2, "epochs": 1, "batch": 8, "partition": "iid",
                       "dtype": "float64"}  # fmt: skip


class Reader(nn.Module):
    """The mean embedding of the tokens that are not masked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.relu, self.last = nn.Embedding(12, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        kept = attention_mask[..., None].to(self.words.weight.dtype)
        return self.last(self.relu((self.words(ids) * kept).sum(1) / kept.sum(1)))


class Looker(nn.Module):
    """An image and numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv2d(1, 2, 3), nn.Linear(2 * 36 + 5, 3)

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        return self.last(torch.cat([self.conv(image).flatten(1), numbers], 1))


def text(samples: int = 90, test: int = 30) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor], Tensor]:
    """Tokens and masks; the class is in the first token."""
    g = torch.Generator().manual_seed(0)
    n = samples + test
    ids, lengths = torch.randint(12, (n, 6), generator=g), torch.randint(1, 7, (n,), generator=g)
    both = {"ids": ids, "attention_mask": (torch.arange(6) < lengths[:, None]).long()}
    y = ids[:, 0] % 3
    return (
        {k: v[:samples] for k, v in both.items()},
        y[:samples],
        {k: v[samples:] for k, v in both.items()},
        y[samples:],
    )


def pictures(samples: int = 60) -> tuple[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor], Tensor]:
    g = torch.Generator().manual_seed(0)
    image = torch.randint(256, (samples, 8, 8), generator=g).to(torch.uint8)
    numbers, y = torch.randn(samples, 5, generator=g), torch.arange(samples) % 3
    return (image[:45], numbers[:45]), y[:45], (image[45:], numbers[45:]), y[45:]


@pytest.mark.parametrize("algorithm", ["fedsam", "fedsol"])
def test_named_inputs_train_alike_in_every_executor(algorithm: str) -> None:
    ways: list[dict[str, Any]] = [{"workers": 0}, {"executor": "batched"}]
    ways += [{"workers": 2}] * (algorithm == "fedsam")  # to other processes, inputs go alike with every algorithm
    results = [steppe.run(algorithm, Reader(), text(), **FEW, **how) for how in ways]
    vectors = [torch.cat([p.flatten() for p in r.model.parameters()]) for r in results]
    torch.testing.assert_close(vectors[0], vectors[1], rtol=1e-9, atol=1e-12)
    assert all(torch.equal(vectors[0], v) for v in vectors[2:])
    test_x, test_y = text()[2:]
    with torch.no_grad():
        right = (results[0].model(**test_x).argmax(1) == test_y).double().mean()
    assert results[0].history[-1]["accuracy"] == float(right)
    assert results[0].experiment.cost.flops > 0


def test_positional_inputs_with_an_augmented_image() -> None:
    results = [steppe.run("fedavg", Looker(), pictures(), augmentation="med", **FEW, **how)
               for how in ({"workers": 0}, {"executor": "batched"})]  # fmt: skip
    vectors = [torch.cat([p.flatten() for p in r.model.parameters()]) for r in results]
    torch.testing.assert_close(vectors[0], vectors[1], rtol=1e-9, atol=1e-12)
    plain = steppe.run("fedavg", Looker(), pictures(), workers=0, **FEW)
    assert plain.history[-1]["loss"] != results[0].history[-1]["loss"]


def test_validation_measures_and_personal_models(tmp_path: Path) -> None:
    data = steppe.from_arrays(*text())
    assert data.hash != steppe.from_arrays({**text()[0], "ids": text()[0]["ids"] + 1}, *text()[1:]).hash
    result = steppe.run(
        "fedavg", Reader(), data, out=tmp_path / "run", validation=0.2, personal=[0, 1], workers=0, **FEW
    )
    assert result.history[-1]["validation_loss"] > 0
    assert set(result.summary["personal"]) == {"0", "1"}
    measured = steppe.analyze(tmp_path / "run", ["lambda1", "loss"], model=Reader(), data=data, samples=40)
    assert measured["lambda1"]["lambda1"] > 0
    assert measured["loss"]["n"] == 40


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (text(), "mlp", "several inputs per sample"),
        (({"ids": torch.zeros(4, 2), "mask": torch.zeros(3, 2)}, torch.zeros(4), torch.zeros(1), torch.zeros(1)),
         Reader(), "3 train inputs.mask but 4 targets"),
        ((text()[0], text()[1], {"ids": text()[2]["ids"]}, text()[3]), Reader(), "test inputs of shape ids"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(data: Any, model: Any, message: str) -> None:
    with pytest.raises(SteppeError, match=message):
        steppe.run("fedavg", model, data, workers=0, **FEW)


def test_augmentation_without_an_image_is_refused() -> None:
    with pytest.raises(SteppeError, match="needs uint8 images"):
        steppe.run("fedavg", Reader(), text(), augmentation="med", workers=0, **FEW)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_captured_step_takes_named_inputs(compiled: bool) -> None:
    """As on a GPU, but without a graph; it also traces."""
    built = build_experiment(resolve({**FEW, "algorithm": "fedsam"}), None, Reader(), steppe.from_arrays(*text()))
    x = built.task.x0
    sent = Sent(x, {}, {}, x.new_tensor(0.1), x.new_tensor(0.0))
    states = [built.algorithm.client_state(x)] * 3
    parts = built.algorithm, built.task, built.federation
    captured = Captured(*parts, width=2, compiled=compiled)
    found = captured(sent, [0, 1, 3], states).replies.update.clone()
    torch.testing.assert_close(found, Sequential(*parts)(sent, [0, 1, 3], states).replies.update, rtol=1e-9, atol=1e-12)
    assert captured.notes == []
