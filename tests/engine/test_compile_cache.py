"""Compiled code in a file: another process with empty caches finds it.

On a CPU, PyTorch keeps the code of a graph but not the objects of g++, so that little time is saved; kernels for a GPU
are kept as binaries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from steppe.core.errors import SteppeError
from steppe.engine import compile_cache
from steppe.engine.compile_cache import load_cache, save_cache

CPU = torch.device("cpu")
COMPILE = """
import json, sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from steppe.engine.compile_cache import load_cache, save_cache
from steppe.executors.captured import compile_step


def find_counts():
    c = counters["inductor"]
    return c["fxgraph_cache_hit"], c["fxgraph_cache_miss"]


a, b = torch.arange(12.0).view(3, 4), torch.ones(4, 4)
if sys.argv[1] == "load":
    assert load_cache(Path(sys.argv[2]), torch.device("cpu")) == ""


def step(a, b):
    for k in range(8):
        a = torch.softmax(torch.relu(a @ b).cumsum(0), 1) + a.sin() * k
    return a


hits, misses = find_counts()
f = compile_step(step, a, b)
if sys.argv[1] == "save":
    save_cache(Path(sys.argv[2]), torch.device("cpu"))
found = find_counts()
print(json.dumps({"hits": found[0] - hits, "misses": found[1] - misses, "value": f(a, b).tolist()}))
"""


def _compile(what: str, file: Path, caches: Path) -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
    done = subprocess.run([sys.executable, "-c", COMPILE, what, str(file)], env=environment, text=True, check=True,
                          capture_output=True)  # fmt: skip
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.mark.slow
def test_another_process_with_empty_caches_finds_the_compiled_graph(tmp_path: Path) -> None:
    first = _compile("save", tmp_path / "warm.bin", tmp_path / "one")
    second = _compile("load", tmp_path / "warm.bin", tmp_path / "two")
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)
    assert second["value"] == first["value"]


def test_files_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "warm.bin"
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: None)
    with pytest.raises(SteppeError, match="Nothing was compiled"):
        save_cache(path, CPU)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"code\nmore", None))
    loaded: list[bytes] = []
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", loaded.append)
    assert save_cache(path, CPU) == 9
    assert load_cache(path, CPU) == ""
    assert loaded == [b"code\nmore"]
    here = compile_cache.describe_kind(CPU)
    monkeypatch.setattr(compile_cache, "describe_kind", lambda device: {**here, "torch": "9.9"})
    assert load_cache(path, CPU).endswith(f"compiles again: torch {here['torch']}, here 9.9")
    assert len(loaded) == 1
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SteppeError, match="damaged"):
        load_cache(path, CPU)
    path.write_bytes(b"something else")
    with pytest.raises(SteppeError, match="not a file of steppe warm"):
        load_cache(path, CPU)
    with pytest.raises(SteppeError, match="cannot be read"):
        load_cache(tmp_path / "none", CPU)
