"""Models of all kinds: what they return, what of them is trained, and what is shared."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import steppe
from steppe.core.errors import SteppeError
from tests.scene import Net, NormNet, blobs, seeded

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
    with pytest.raises(SteppeError, match="a dict with scores, in which no predictions were found: give predict="):
        steppe.run("fedavg", model, blobs(), **FEW)
    with pytest.raises(SteppeError, match="predict is 'scores', but must be a function"):
        steppe.run("fedavg", model, blobs(), predict="scores", **FEW)
    with pytest.raises(SteppeError, match="predict fails on the model's outputs, with KeyError: 'logits'"):
        steppe.run("fedavg", model, blobs(), predict=lambda outputs: outputs["logits"], **FEW)
    with pytest.raises(SteppeError, match="predict must take one argument, the model's outputs"):
        steppe.run("fedavg", model, blobs(), predict=lambda: 1, **FEW)
    with pytest.raises(SteppeError, match="predict returns a dict, but must return one tensor"):
        steppe.run("fedavg", model, blobs(), predict=lambda outputs: outputs, **FEW)


@pytest.mark.parametrize(("head", "sentence"), [
    (1, "head is 1, but must be the name of a module; known: "),
    (nn.Linear(1, 1), r"head is Linear\(.*, but must be the name of a module"),
    ("lost", "the model has no module 'lost'; did you mean 'last'"),
])  # fmt: skip
def test_a_head_is_a_name(head: Any, sentence: str) -> None:
    with pytest.raises(SteppeError, match=sentence):
        steppe.run("fedbabu", seeded(), blobs(), head=head, **FEW)
    with pytest.raises(SteppeError, match=sentence):
        steppe.client("fedbabu", seeded(), head=head)


def test_an_error_of_a_model_is_not_explained_by_types_that_are_right() -> None:
    ids = torch.arange(90).reshape(30, 3) % 5
    y = torch.arange(30) % 3
    with pytest.raises(SteppeError, match=r"unexpected keyword argument 'words'\.$"):
        steppe.run("fedavg", seeded(), ({"words": ids}, y, {"words": ids}, y), **FEW)


def test_an_analysis_needs_the_head_and_the_predict_of_the_run(tmp_path: Path) -> None:
    model, out = seeded(), tmp_path / "run"
    own: dict[str, Any] = {"head": "first", "predict": lambda outputs: outputs}
    steppe.run("fedavg", model, blobs(), out=out, **own, **FEW)
    for key in own:
        rest = {k: v for k, v in own.items() if k != key}
        with pytest.raises(SteppeError, match=rf"was trained with {key} = .*: in Python, call .*{key}=…"):
            steppe.analyze(out, "loss", model=model, data=blobs(), **rest)
    assert "loss" in steppe.analyze(out, "loss", model=model, data=blobs(), **own)


class Sized(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.last = nn.Linear(size, 3)


def test_a_class_is_built_or_refused_and_so_is_none() -> None:
    built = steppe.run("fedavg", Net, blobs(), seed=3, **FEW)  # built from the run's seed
    assert torch.equal(built.x, steppe.run("fedavg", seeded(seed=3), blobs(), seed=3, **FEW).x)
    with pytest.raises(SteppeError, match=r"the class Sized, which cannot be built without arguments .*Sized\(…\)"):
        steppe.run("fedavg", Sized, blobs(), **FEW)
    for wrong in (None, 3, Shown):
        with pytest.raises(SteppeError, match=r"give an nn\.Module or the name of a model"):
            steppe.run("fedavg", wrong, blobs(), **FEW)  # type: ignore[arg-type]
    assert steppe.run("fedavg", **{**FEW, "rounds": 0}).config.model == "cnn"  # no argument is no mistake


class Doubles(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Locked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Complex(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, dtype=torch.complex64)


class Bent(Net):
    """An output that contains its own gradient."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)
        return super().forward(x + slope)


class BentFunctionally(Net):
    def forward(self, x: Tensor) -> Tensor:
        def total(v: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(v))).sum()

        return super().forward(x + torch.func.grad(total)(x))


def without_numbers() -> nn.Module:
    with torch.device("meta"):
        return Net()


def made_for_inference() -> nn.Module:
    with torch.inference_mode():
        return Net()


def with_nan() -> nn.Module:
    model = seeded()
    next(model.parameters()).data[0] = torch.nan
    return model


@pytest.mark.parametrize(("make", "sentence"), [
    (Doubles, "changes its inputs in place"),
    (Detached, "The loss has no gradient"),
    (lambda: nn.LazyLinear(3), "weight has no shape yet"),
    (without_numbers, "is on the meta device"),
    (made_for_inference, "made in torch.inference_mode"),
    (with_nan, "not finite, before any training"),
    (Locked, "cannot be copied, because it holds an open file"),
    (Complex, r"first\.weight is complex: train its real and imaginary parts"),
    (lambda: nn.Sequential(nn.Embedding(9, 3, sparse=True)), "sparse gradients.*build it with sparse=False"),
    (lambda: nn.Sequential(nn.Embedding(9, 3, max_norm=1.0)), "in every pass.*leave max_norm out"),
    (lambda: seeded(Bent), r"differentiates inside forward must do so with torch\.func\.grad"),
    (lambda: nn.DataParallel(seeded()), r"give the module inside it, model\.module"),
])  # fmt: skip
def test_models_that_cannot_be_trained_are_a_sentence(make: Any, sentence: str) -> None:
    data = blobs()
    before = data[0].clone()
    with pytest.raises(SteppeError, match=sentence):
        steppe.run("fedavg", make(), data, **FEW)
    assert torch.equal(data[0], before)


def test_analyze_says_what_of_a_model_is_another(tmp_path: Path) -> None:
    base, other = Adapted(), Adapted()
    steppe.run("fedavg", base, blobs(), out=tmp_path / "run", **FEW)
    with pytest.raises(SteppeError, match="with another model than the one that you pass: its frozen parameters"):
        steppe.analyze(tmp_path / "run", "loss", model=other, data=blobs())
    steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "net", **FEW)
    with pytest.raises(SteppeError, match="with another model than the one that you pass"):
        steppe.analyze(tmp_path / "net", "loss", model=Wrapped(lambda y, x: -y), data=blobs())
    x, y, *tests = blobs()
    with pytest.raises(SteppeError, match="with other data than those that you pass"):
        steppe.analyze(tmp_path / "net", "loss", model=seeded(), data=(x + 1, y, *tests))


class Centred(Net):
    """A norm over the batch of one's own, which no type betrays."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.tanh(x - x.mean(0) if self.training else x))


class Tracked(Net):
    """A running mean of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x, mean = self.first(x), self.mean
        if self.training:
            self.mean = 0.9 * mean + 0.1 * x.detach().mean(0)
        return self.last(torch.tanh(x - mean))


class Counted(Net):
    """Scales gradients by how often a batch has a token."""

    def __init__(self) -> None:
        super().__init__(inputs=8)
        self.words = nn.Embedding(5, 8, scale_grad_by_freq=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.words(x.long().clamp(0, 4)).mean(1))


@pytest.mark.parametrize(("kind", "why"), [
    (Centred, "its outputs would depend on the padding of batches"),
    (Tracked, "its buffer mean would depend on the padding of batches"),
    (Counted, "scale_grad_by_freq would count the tokens of padding"),
])  # fmt: skip
def test_a_model_that_mixes_the_samples_of_a_batch_is_not_padded(kind: type[nn.Module], why: str) -> None:
    plain = steppe.run("fedavg", seeded(kind), blobs(), **FEW)
    result = steppe.run("fedavg", seeded(kind), blobs(), executor="batched", **FEW)
    assert torch.equal(result.x, plain.x)
    assert any(why in note for note in result.notes)
    dropout = nn.Sequential(seeded(), nn.Dropout(0.5))
    assert steppe.run("fedavg", dropout, blobs(), executor="batched", **FEW).summary["executor"] == "batched"


def test_a_buffer_that_a_pass_replaces_is_kept(tmp_path: Path) -> None:
    """As in PyTorch, where `self.mean = …` and `self.mean.mul_(…)` change a buffer alike."""
    once = {**FEW, "clients": 1, "per_round": 1, "rounds": 1, "batch": 45, "lr": 0.3, "weight_decay": 0.0}
    result = steppe.run("fedavg", seeded(Tracked), blobs(), dtype="float64", out=tmp_path / "run", **once)
    model, (x, y, *_) = seeded(Tracked).double().train(), blobs()
    optimiser = torch.optim.SGD(model.parameters(), 0.3)
    federation = result.experiment.federation
    for index in federation.plan([0], 0, lambda epochs, batches: epochs * batches, 1).index[0]:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[index].double()), y[index]).backward()
        optimiser.step()
    trained = result.model.state_dict()
    assert float(trained["mean"].abs().max()) > 0
    torch.testing.assert_close(trained, model.state_dict(), rtol=0, atol=1e-12)
    assert "buffers (mean): averaged with the models' weights" in result.notes
    back = steppe.load(tmp_path / "run", model=seeded(Tracked))
    torch.testing.assert_close(back.model.state_dict()["mean"], trained["mean"])

    class Growing(Tracked):
        def forward(self, x: Tensor) -> Tensor:
            self.mean = torch.zeros(len(x))
            return self.last(torch.tanh(self.first(x)))

    with pytest.raises(SteppeError, match=r"buffer mean has the shape \(\d+,\) after a pass and \(16,\) before: keep"):
        steppe.run("fedavg", Growing(), blobs(), **FEW)


def test_a_loss_that_mixes_the_samples_of_a_batch_is_not_padded() -> None:
    def relative(outputs: Tensor, targets: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return each / each.detach().sum()

    plain = steppe.run("fedavg", seeded(), blobs(), loss=relative, **FEW)
    result = steppe.run("fedavg", seeded(), blobs(), loss=relative, executor="batched", **FEW)
    assert torch.equal(result.x, plain.x)
    assert any("its loss would depend on the padding" in note for note in result.notes)


def test_a_model_may_differentiate_with_torch_func() -> None:
    plain = steppe.run("fedsam", seeded(BentFunctionally), blobs(), **{**FEW, "dtype": "float64"})
    batched = steppe.run("fedsam", seeded(BentFunctionally), blobs(), executor="batched", **{**FEW, "dtype": "float64"})
    torch.testing.assert_close(batched.x, plain.x, rtol=0, atol=1e-12)


# --- frozen parameters


class Adapted(nn.Module):
    """A frozen base with an adapter of rank two beside its first layer, and a head: LoRA without a library."""

    def __init__(self, width: int = 64, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(width, width)).to(dtype)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, width, bias=False)
        self.last = nn.Linear(width, 3)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.base(x.to(self.base[0].weight.dtype))
        return self.last(torch.relu(inner + self.up(self.down(x))).to(self.last.weight.dtype))


def adapted(dtype: torch.dtype = torch.float32, seed: int = 0) -> Adapted:
    torch.manual_seed(seed)
    return Adapted(dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_base_is_shared_kept_in_its_type_and_saved_by_reference(dtype: torch.dtype, tmp_path: Path) -> None:
    model = adapted(dtype)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = steppe.run("fedsam", model, blobs(), out=tmp_path / "run", lr=0.1, **FEW)
    task, matrix = result.experiment.task, "base.0.weight"
    assert task.layout.names == ["down.weight", "up.weight", "last.weight", "last.bias"]
    for module in (task.learner, task.judge, result.model):
        assert module.get_parameter(matrix).data_ptr() == model.get_parameter(matrix).data_ptr()
        assert module.get_parameter(matrix).dtype == dtype
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())  # the user's module is as it was
    assert {k: v.dtype for k, v in result.model.state_dict().items()} == {k: v.dtype for k, v in before.items()}
    assert result.experiment.cost.bytes_up == 4 * task.layout.size
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert sorted(kept) == sorted(task.layout.names)
    about = steppe.load(tmp_path / "run", adapted(dtype)).about["model"]["base"]
    assert about["parameters"] == sum(p.numel() for p in model.base.parameters())

    back = steppe.load(tmp_path / "run", model=adapted(dtype))
    x = blobs()[2]
    assert torch.equal(back.model(x), result.model(x))
    assert torch.equal(back.state_dict()[matrix], before[matrix])
    again = steppe.run("fedsam", adapted(dtype), blobs(), out=tmp_path / "run", resume=True, lr=0.1,
                       **{**FEW, "rounds": 3})  # fmt: skip
    whole = steppe.run("fedsam", adapted(dtype), blobs(), lr=0.1, **{**FEW, "rounds": 3})
    assert torch.equal(again.x, whole.x)
    assert steppe.analyze(tmp_path / "run", "lambda1", model=adapted(dtype), data=blobs())["lambda1"]

    other = adapted(dtype, seed=1)
    with pytest.raises(SteppeError, match="frozen parameters of this module are not those on which"):
        steppe.load(tmp_path / "run", model=other)
    with pytest.raises(SteppeError, match="frozen parameters are not the run's"):
        steppe.run("fedsam", other, blobs(), out=tmp_path / "run", resume=True, lr=0.1, **{**FEW, "rounds": 4})
    with pytest.raises(SteppeError, match="its frozen parameters are not"):
        steppe.analyze(tmp_path / "run", "trace", model=other, data=blobs())


def test_a_narrow_base_computes_as_in_torch() -> None:
    """One step of one client against autograd, with the base in bfloat16 and everything that is trained in float32."""
    once = {**FEW, "clients": 1, "per_round": 1, "rounds": 1, "batch": 90, "lr": 0.5, "weight_decay": 0.0}
    result = steppe.run("fedavg", adapted(torch.bfloat16), blobs(), **once)
    batched = steppe.run("fedavg", adapted(torch.bfloat16), blobs(), executor="batched", **once)
    torch.testing.assert_close(batched.x, result.x, rtol=0, atol=2e-2)
    assert batched.notes == []
    model, (x, y, *_) = adapted(torch.bfloat16), blobs()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
    nn.functional.cross_entropy(outputs.float(), y).backward()
    wanted = torch.cat([(p - 0.5 * p.grad).flatten() for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(result.x, wanted.detach(), rtol=0, atol=2e-3)
    exact = steppe.run("fedavg", adapted(torch.bfloat16), blobs(), dtype="float64", **once)
    assert exact.experiment.task.constants["base.0.weight"].dtype == torch.float64  # asked for


MEMORY = """
    import resource, torch, steppe
    from torch import nn
    torch.set_num_threads(1)

    class Base(nn.Module):
        def __init__(self, width=2048, layers=12):
            super().__init__()
            self.base = nn.Sequential(*[nn.Linear(width, width, dtype=torch.bfloat16) for _ in range(layers)])
            self.base.requires_grad_(False)
            self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)

        def forward(self, x):
            return self.last(self.base(self.first(x)))

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    y = torch.arange(24) % 3
    data = (torch.randn(24, 6), y, torch.randn(6, 6), y[:6])
    options = dict(clients=2, per_round=2, rounds=1, epochs=1, batch=4, partition="iid", progress=False)
    steppe.run("scaffold", Base(width=64, layers=1), data, out={small!r}, workers={workers}, **options)  # for imports
    before = peak()
    model = Base()
    base = sum(p.nbytes for p in model.base.parameters()) / 2**20
    built = peak()
    steppe.run("scaffold", model, data, out={large!r}, workers={workers}, **options)
    print(base, built - before, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_peak_memory_of_a_frozen_base(workers: int, tmp_path: Path) -> None:
    places = {"small": str(tmp_path / "small"), "large": str(tmp_path / "large"), "workers": workers}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY.format(**places))], capture_output=True,
                          text=True, timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    base, built, peak = map(float, done.stdout.split())
    assert base > 90
    assert peak <= 1.3 * base, f"the base has {base:.0f} MiB; it was built with {built:.0f} and trained with {peak:.0f}"
    assert (tmp_path / "large" / "model.safetensors").stat().st_size < 2**20 / 8


# --- passes: pieces, checkpointing, tied and normalised weights


class Recomputed(Net):
    """Runs its first layer again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        def first(v: Tensor) -> Tensor:
            return torch.tanh(self.first(v))

        inner = checkpoint(first, x, use_reentrant=False) if self.training else first(x)
        return self.last(torch.relu(inner))


class Steady(Net):
    """Recomputes what has no parameters of a vector, so that this is not seen in its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(checkpoint(torch.tanh, self.first(x), use_reentrant=False)))


class Reentrant(Net):
    """The old kind of checkpointing, which writes gradients into parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.last, torch.tanh(self.first(x)), use_reentrant=True)


class Plain(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(torch.tanh(self.first(x))))


EXACT: dict[str, Any] = {**FEW, "dtype": "float64", "lr": 0.3, "batch": 20}


def test_activation_checkpointing_finds_the_parameters_of_its_pass() -> None:
    plain = steppe.run("fedsam", seeded(Plain), blobs(), **EXACT)
    result = steppe.run("fedsam", seeded(Recomputed), blobs(), executor="batched", **EXACT)
    torch.testing.assert_close(result.x, plain.x, rtol=0, atol=1e-12)
    assert any("recomputes activations; without gradient checkpointing" in note for note in result.notes)
    with pytest.raises(SteppeError, match="choose use_reentrant=False"):
        steppe.run("fedsam", seeded(Reentrant), blobs(), **EXACT)


@pytest.mark.parametrize("algorithm", ["fedsam", "fedntd", "fedsol"])
def test_a_batch_in_pieces_has_the_same_gradient(algorithm: str) -> None:
    whole = steppe.run(algorithm, seeded(Plain), blobs(), **EXACT)
    pieces = steppe.run(algorithm, seeded(Plain), blobs(), accumulate=3, executor="batched", **EXACT)
    torch.testing.assert_close(pieces.x, whole.x, rtol=0, atol=1e-12)
    assert any("accumulate splits its passes" in note for note in pieces.notes)
    assert pieces.experiment.cost == whole.experiment.cost


def test_checkpointing_under_vmap_says_what_to_change() -> None:
    result = steppe.run("fedavg", Steady(), blobs(), executor="batched", **FEW)
    (note,) = result.notes
    assert "without activation checkpointing it could be batched" in note
    assert note.partition("cannot run this model (")[2].startswith("test_own_model.py, line ")


def test_pieces_of_no_use_are_refused() -> None:
    with pytest.raises(SteppeError, match="batch norm would see each piece alone"):
        steppe.run("fedavg", seeded(NormNet), blobs(), accumulate=2, **EXACT)
    with pytest.raises(SteppeError, match="accumulate"):
        steppe.run("fedavg", seeded(), blobs(), accumulate=0, **EXACT)


class Shared(nn.Module):
    """One matrix, used in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.back, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
        self.back.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.back(torch.tanh(self.first(x))))


def normalised(kind: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))


MODULES: dict[str, Any] = {
    "tied": lambda: seeded(Shared),
    "weight norm": lambda: normalised(nn.utils.parametrizations.weight_norm),
    "orthogonal": lambda: normalised(nn.utils.parametrizations.orthogonal),
    "weight norm by hooks": lambda: normalised(nn.utils.weight_norm),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", MODULES)
def test_tied_and_parametrized_weights_take_the_steps_of_torch(kind: str, tmp_path: Path) -> None:
    once = {**EXACT, "clients": 1, "per_round": 1, "rounds": 1, "batch": 90, "weight_decay": 0.0}
    model = MODULES[kind]().double()
    result = steppe.run("fedavg", model, blobs(), out=tmp_path / "run", **once)
    (x, y, *_), optimiser = blobs(), torch.optim.SGD(model.parameters(), 0.3)
    x = x.double()
    assert len(result.x) == sum(p.numel() for p in model.parameters())  # a tied matrix is there once
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
    with torch.no_grad():
        torch.testing.assert_close(result.model(x), model(x), rtol=0, atol=1e-9)
        back = steppe.load(tmp_path / "run", model=MODULES[kind]())
        torch.testing.assert_close(back.model(x), model(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("last", "steps"), [("drop", 2), ("join", 2)])
def test_a_last_batch_of_one_under_batch_norm(last: str, steps: int) -> None:
    options = {**FEW, "partition": "iid", "batch": 8, "clients": 3, "per_round": 3, "rounds": 1}
    tests = steppe.from_arrays(*blobs(51))  # 17 samples per client
    with pytest.raises(SteppeError, match="set last_batch = join or drop"):
        steppe.run("fedavg", seeded(NormNet), tests, **options)
    result = steppe.run("fedavg", seeded(NormNet), tests, last_batch=last, **options)
    assert result.history[0]["steps"] == 3 * steps
    seen = result.experiment.federation.plan([0], 0, lambda epochs, batches: epochs * batches, 1)
    assert seen.mask.sum(-1).tolist() == [[8, 9] if last == "join" else [8, 8]]
    plain = steppe.run("scaffold", seeded(), tests, last_batch=last, **{**options, "dtype": "float64"})
    batched = steppe.run("scaffold", seeded(), tests, last_batch=last, executor="batched",
                         **{**options, "dtype": "float64"})  # fmt: skip
    torch.testing.assert_close(batched.x, plain.x, rtol=0, atol=1e-12)
    with pytest.raises(SteppeError, match="Client 0 has one sample"):
        steppe.run("fedavg", seeded(NormNet), blobs(3), last_batch=last, **options)
    with pytest.raises(SteppeError, match="last_batch"):
        steppe.run("fedavg", seeded(), tests, last_batch="leave", **options)
