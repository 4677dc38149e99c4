"""Devices without float64, such as Apple's GPUs: nothing there is computed in it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import steppe
from steppe.config import resolve
from steppe.core import keyed, widest_float
from steppe.engine.build import build_experiment
from steppe.engine.rounds import simulate

SOURCE = Path(steppe.__file__).parent
ON_CPU = {"noise.py"}  # draws on the CPU, whatever the device


class Forbidding(TorchDispatchMode):
    """Refuses float64, as such a device does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        assert not [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.dtype == torch.float64], func
        return out


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this CPU stand for such a device."""
    monkeypatch.setattr(widest_float, "WITHOUT_FLOAT64", {"cpu"})


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("add", [[], ["krum:bad=1"], ["norm_bound:limit=1.0"]], ids=["plain", "krum", "norm_bound"])
def test_rounds_and_evaluation_use_no_float64(add: list[str]) -> None:
    few = {"model": "mlp", "rounds": 1, "clients": 6, "per_round": 5, "max_steps": 1, "workers": 0, "add": add,
           "algorithm": "fedsam", "augmentation": "mnist"}  # fmt: skip
    built = build_experiment(resolve(few))  # data are read on the CPU
    with Forbidding():
        result = simulate(built)
    assert 0 <= result.accuracy <= 1


@pytest.mark.usefixtures("narrow")
def test_draws_in_float32_are_below_one_and_those_of_float64_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    k = keyed.key(torch.arange(2000))
    narrow = keyed.uniform(k, 5)
    assert narrow.dtype == torch.float32
    assert float(narrow.max()) < 1
    monkeypatch.setattr(widest_float, "WITHOUT_FLOAT64", set())
    wide = keyed.uniform(k, 5)
    assert wide.dtype == torch.float64
    assert float((wide - narrow).min()) >= 0
    assert float((wide - narrow).max()) < 2**-24


@pytest.mark.usefixtures("narrow")
def test_a_run_in_float64_is_refused_there() -> None:
    with pytest.raises(steppe.SteppeError, match="float64, which cpu devices do not have: use float32"):
        steppe.run("fedavg", "mlp", rounds=1, dtype="float64", progress=False)


def test_no_line_makes_float64_on_a_device() -> None:
    """`widen` and `find_widest` do; `.cpu().double()` and tensors made of Python numbers are on the CPU."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or path.name in ON_CPU:
                continue
            text, names = ast.unparse(node), {word.arg for word in node.keywords}
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            wide = [a for a in (*node.args, *(w.value for w in node.keywords)) if ast.unparse(a) == "torch.float64"]
            made = called in ("tensor", "zeros", "arange", "linspace") and not names & {"device"}
            if (called == "double" and ".cpu().double()" not in text and "bincount" not in text) or (wide and not made):
                found.append(f"{path.name}: {text}")
    assert [line for line in found if "Federation(" not in line] == []  # the quadratics, on the CPU by definition
