"""`steppe new` writes what works, and the conformance suite finds what does not."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import steppe as library
from steppe import testing
from steppe.core import keyed
from steppe.core.errors import SteppeError
from steppe.testing import conforms
from tests.cli.conftest import Steppe

SMALL = ["--model", "mlp", "--partition", "iid", "--clients", "4", "--per-round", "2", "--epochs", "1", "--batch",
         "200", "--workers", "0", "--rounds", "1"]  # fmt: skip


@pytest.mark.parametrize(("kind", "words"), [
    ("part", ["fedsam", "--add", "new_part.py:NewPart:rho=0.2"]),
    ("algorithm", ["new_algorithm.py:new_algorithm", "--rho", "0.2"]),
])  # fmt: skip
def test_what_is_written_runs_and_passes_its_test(
    steppe: Steppe, monkeypatch: Any, kind: str, words: list[str]
) -> None:
    name = f"new_{kind}"
    said = steppe("new", kind, name)
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == f"wrote {name}.py and test_{name}.py"
    said = steppe("run", *words, *SMALL)
    assert said.code == 0, said.err
    monkeypatch.syspath_prepend(Path.cwd())
    try:
        import_module(f"test_{name}").test_it_conforms()
    finally:
        sys.modules.pop(name, None), sys.modules.pop(f"test_{name}", None)
    text = Path(f"{name}.py").read_text()
    assert not any(len(line) > 120 for line in text.splitlines())
    said = steppe("new", kind, name)
    assert (said.code, f"{name}.py already exists" in said.err) == (2, True)
    assert Path(f"{name}.py").read_text() == text


@pytest.mark.parametrize(("words", "sentence"), [
    (["prat", "x"], "steppe new cannot write 'prat'; did you mean 'part'"),
    (["part", "look-back"], "'look-back' cannot be the name of a Python file"),
    (["part", "class"], "'class' cannot be the name of a Python file"),
    (["part", "../x"], "cannot be the name of a Python file"),
])  # fmt: skip
def test_wrong_words(steppe: Steppe, words: list[str], sentence: str) -> None:
    said = steppe("new", *words)
    assert said.code == 2
    assert sentence in said.err
    assert not list(Path().iterdir())


def test_a_name_in_capitals_and_a_folder(steppe: Steppe) -> None:
    assert steppe("new", "algorithm", "Mine", "--out", "ideas").code == 0
    assert "class MinePart(steppe.Part)" in Path("ideas/Mine.py").read_text()
    compile(Path("ideas/Mine.py").read_text(), "Mine.py", "exec")


# --- the suite itself


@dataclass(frozen=True)
class Wrong(library.Part):
    name = "wrong"
    how: str = ""

    def gradient(self, grad: library.Oracle, w: Tensor, s: library.LocalStep) -> Tensor:
        if self.how == "branches":
            return grad(w) if float(w.sum()) > -1e9 else w
        if self.how == "draws":
            return grad(w) + 0.1 * torch.randn_like(w)
        if self.how == "asks":
            return grad(w) + grad(s.x)
        if self.how == "reads":
            return grad(w) + s.state["gone"]
        if self.how == "writes in a step":
            s.state["gone"] = w
        if self.how == "explodes":
            return grad(w) / 0.0
        if self.how == "remembers":
            MEMORY.append(0)
            return grad(w) * (1 + len(MEMORY) % 3)
        return 2 * grad(w)

    def finish(self, delta: Tensor, s: library.ClientRound) -> Tensor:
        if self.how == "writes at the end":
            s.state["gone"] = delta
        if self.how == "counts":  # also the clients whose replies do not arrive
            MEMORY.append(0)
            return delta * (1 + len(MEMORY))
        return delta

    def server(self, delta: Tensor, s: library.Aggregation) -> Tensor:
        if self.how == "writes on the server":
            s.state["gone"] = delta
        return delta


MEMORY: list[int] = []


@pytest.mark.parametrize(("how", "sentence"), [
    ("branches", "fails when clients are batched under vmap: use no .item()"),
    ("draws", r"gives other numbers when clients are batched: .* random numbers \(torch\.rand"),
    ("asks", "says asks = 1, but its gradient asks 2 times per step: write asks = 2"),
    ("reads", "Wrong.gradient reads 'gone', which does not exist: declare it in client_state"),
    ("writes in a step", r"writes s\.state\['gone'\] on a client, where it is lost: declare it in client_state"),
    ("writes at the end", r"writes s\.state\['gone'\] on a client, where it is lost: declare it in client_state"),
    ("writes on the server", r"writes s\.state\['gone'\] on the server: declare it in server_state"),
    ("remembers", "gives other numbers when clients are batched|does not resume to the same bits"),
])  # fmt: skip
def test_what_is_wrong_is_said(how: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        conforms(Wrong(how))


def test_a_trace_of_an_absent_client_is_found() -> None:
    built = library.run(
        Wrong("counts"), testing._Net(), testing._make_blobs(), progress=False, **testing.KEYS
    ).experiment
    with pytest.raises(AssertionError, match="a client that does not reply leaves a trace"):
        testing._check_absence(built)


def test_neutral_is_checked_and_divergence_is_told() -> None:
    with pytest.raises(AssertionError, match="should be neutral, but moves the model away from FedAvg's"):
        conforms(Wrong("fine"), neutral=Wrong("doubles"))
    with pytest.raises(SteppeError, match="is not finite"):
        conforms(Wrong("explodes"))


@pytest.mark.parametrize("name", ["scaffold", "fedsmoo", "fedlesam", "moon"])
def test_ours_conform(name: str) -> None:
    conforms(name)


@dataclass(frozen=True)
class Jitter(library.Part):
    """As in docs/how-to/own-idea.md."""

    name = "jitter"
    size: float = 0.01
    seed: int | None = None

    def gradient(self, grad: library.Oracle, w: Tensor, s: library.LocalStep) -> Tensor:
        assert self.seed is not None
        key = keyed.key(self.seed, s.round.long(), s.index.long())
        return grad(w + self.size * (2 * keyed.uniform(key, w.numel()) - 1).to(w.dtype))


def test_a_part_may_draw_by_key() -> None:
    conforms(Jitter(), neutral=Jitter(0.0))
    one, two = (library.run(Jitter(), testing._Net(), testing._make_blobs(), progress=False, seed=k, **testing.KEYS).
                experiment.algorithm.parts[0] for k in (1, 2))  # fmt: skip
    assert (one.seed, two.seed) == (1, 2)  # type: ignore[attr-defined]  # the run's
