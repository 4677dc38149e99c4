"""Models of all kinds: what they return, what of them is trained, and what is shared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.core.errors import SteppeError
from tests.scene import Net, blobs, seeded

FEW: dict[str, Any] = {"clients": 3, "per_round": 2, "rounds": 2, "epochs": 1, "batch": 8, "partition": "iid",
                       "workers": 0, "progress": False}  # fmt: skip


# --- what a model returns


@dataclass
class Shown:
    logits: Tensor
    hidden: Any = None


class Named(NamedTuple):
    hidden: Tensor
    logits: Tensor


class Wrapped(Net):
    """The same predictions, in another wrapping."""

    def __init__(self, wrap: Any = None) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(super().forward(x), x)


def wrapped(wrap: Any) -> nn.Module:
    torch.manual_seed(3)
    return Wrapped(wrap)


WRAPS = {
    "tuple": lambda y, x: (y, x),
    "list": lambda y, x: [y],
    "dict": lambda y, x: {"loss": None, "logits": y},
    "dataclass": lambda y, x: Shown(y, x),
    "named": lambda y, x: Named(x, y),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_predictions_are_found_in_what_a_model_returns(kind: str, tmp_path: Path) -> None:
    plain = steppe.run("fedsam", seeded(), blobs(), **FEW)
    model = wrapped(WRAPS[kind])
    result = steppe.run("fedsam", model, blobs(), out=tmp_path / "run", **FEW)
    assert torch.equal(result.x, plain.x)
    assert result.history[-1]["loss"] == plain.history[-1]["loss"]
    assert result.experiment.cost == plain.experiment.cost
    measured = steppe.analyze(tmp_path / "run", "lambda1", model=model, data=blobs())
    assert measured["lambda1"]
    back = steppe.load(tmp_path / "run", model=wrapped(WRAPS[kind]))
    assert type(back.model(blobs()[0])) is type(model(blobs()[0]))


def test_predict_takes_them_out_of_the_rest(tmp_path: Path) -> None:
    plain = steppe.run("fedavg", seeded(), blobs(), **FEW)
    model = wrapped(lambda y, x: {"scores": -y})
    options = {"predict": lambda outputs: -outputs["scores"], **FEW}
    result = steppe.run("fedavg", model, blobs(), out=tmp_path / "run", **options)
    assert torch.equal(result.x, plain.x)
    again = {"model": model, "data": blobs()}
    assert "lambda1" in steppe.analyze(tmp_path / "run", "lambda1", predict=options["predict"], **again)
    with pytest.raises(SteppeError, match="a dict with scores, in which no predictions are found: give predict="):
        steppe.run("fedavg", model, blobs(), **FEW)
    with pytest.raises(SteppeError, match="predict is 'scores', but must be a function"):
        steppe.run("fedavg", model, blobs(), predict="scores", **FEW)
    with pytest.raises(SteppeError, match="predict returns a dict, but must return one tensor"):
        steppe.run("fedavg", model, blobs(), predict=lambda outputs: outputs, **FEW)


class Sized(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.last = nn.Linear(size, 3)


def test_a_class_is_built_or_refused_and_so_is_none() -> None:
    torch.manual_seed(3)
    built = steppe.run("fedavg", Net, blobs(), **FEW)
    assert torch.equal(built.x, steppe.run("fedavg", seeded(), blobs(), **FEW).x)
    with pytest.raises(SteppeError, match=r"the class Sized, which cannot be built without arguments .*Sized\(…\)"):
        steppe.run("fedavg", Sized, blobs(), **FEW)
    for wrong in (None, 3, Shown):
        with pytest.raises(SteppeError, match=r"give an nn\.Module or the name of a model"):
            steppe.run("fedavg", wrong, blobs(), **FEW)  # type: ignore[arg-type]
    assert steppe.run("fedavg", **{**FEW, "rounds": 0}).config.model == "cnn"  # no argument is no mistake
