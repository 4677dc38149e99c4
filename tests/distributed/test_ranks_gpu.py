"""Ranks with GPUs end where one process without any does: by NCCL with a card each, by gloo where they share one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import steppe
from tests.distributed.test_ranks import torchrun

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SETTINGS: dict[str, Any] = {"model": "mlp", "clients": 8, "per_round": 4, "epochs": 1, "batch": 40, "rounds": 4,
                            "dtype": "float64", "compile": False, "store": "memory"}  # fmt: skip


@pytest.mark.parametrize("shared", [False, True], ids=["a card each", "one card"])
@pytest.mark.parametrize("name", ["scaffold", "fedsmoo"])
def test_ranks_on_gpus_end_where_one_process_does(
    name: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAFFOLD and FedSMOO: client states that move between ranks, several vectors summed. In float64, to 1e-8."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    if shared:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    ranks = 2 if shared else min(2, torch.cuda.device_count())
    words = [w for k, v in {**SETTINGS, "device": "cuda"}.items() for w in ("--set", f"{k}={v}")]
    process = torchrun(ranks, "-m", "steppe", "run", name, *words, "--out", str(tmp_path / "there"), cwd=tmp_path,
                       stdout=subprocess.PIPE)  # fmt: skip
    said, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert ("NCCL INFO" in said + told) != shared
    steppe.run(name, out=tmp_path / "here", device="cpu", workers=0, **SETTINGS)
    there, here = (load_file(tmp_path / run / "model.safetensors") for run in ("there", "here"))
    assert there.keys() == here.keys()
    for k, v in here.items():
        assert torch.allclose(there[k], v, rtol=0, atol=1e-8 * max(1.0, float(v.abs().max()))), k
