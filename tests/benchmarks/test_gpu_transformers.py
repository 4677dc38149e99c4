"""The benchmark of transformers, in a size that a CPU does in no time: what a row says, and what it leaves out."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from benchmarks import gpu_transformers, tables


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CLIENTS": 2, "STEPS": 2, "LENGTH": 8}.items():
        monkeypatch.setattr(gpu_transformers, name, value)


def measure(name: str) -> dict[str, Any]:
    gpu_transformers.compare_executors.cache_clear()
    return gpu_transformers.measure(name, "cpu", tiny=True, lanes=2)


def test_adapters_are_batched_and_the_row_says_so() -> None:
    row = measure("gpt-lora tf32")
    assert row["programs"]["ours"]["path"] == "batched"
    assert row["programs"]["ours, one by one"]["path"] == "one client after the other"
    assert row["looped"] == []
    assert row["parameters"] == 8 * (32 + 96) + 8 * (32 + 128)  # the adapters alone
    assert 0 < row["float64"]["difference"] < 1e-12
    assert row["ratio"] == row["best"]["ours"] / min(s for p, s in row["best"].items() if p.startswith("loop"))
    assert "batched: " in gpu_transformers.describe("gpt-lora tf32", row)
    versions = {"hardware": "a CPU", "torch": "2", "commit": None}
    _, text = tables.tables({"kind": "transformers", "versions": versions, "rows": {"gpt-lora tf32": row}})
    assert "| batched |" in text


def test_a_model_that_falls_back_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    make = gpu_transformers.make

    class Branching(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out if out.sum() > 0 else out + 0

    def branching(model: str, tiny: bool) -> Any:
        net, *rest = make(model, tiny)
        return Branching(net), *rest

    monkeypatch.setattr(gpu_transformers, "make", branching)
    path = measure("gpt tf32")["programs"]["ours"]["path"]
    assert path.startswith("one client after the other; clients are trained one after the other, because vmap cannot")


def test_operations_without_a_batching_rule_are_named() -> None:
    assert gpu_transformers.find_looped(lambda: vmap(lambda x: torch.histc(x, 4))(torch.rand(3, 5))) == ["aten::histc"]


def test_a_job_without_its_packages_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else object())
    row = measure("gpt2-peft bf16")
    assert row == {"skipped": "not installed: peft"}
    assert "skipped: not installed: peft" in gpu_transformers.describe("gpt2-peft bf16", row)


def test_a_model_of_transformers_with_adapters_of_peft_is_batched() -> None:
    pytest.importorskip("peft")
    row = measure("gpt2-peft tf32")
    assert row["programs"]["ours"]["path"] == "batched"
    assert row["float64"]["difference"] < 1e-12
