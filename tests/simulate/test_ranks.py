"""Several ranks end where one process does, whoever trains whom."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from steppe.simulate.ranks import placed
from tests.conformance.problem import entries, label
from tests.simulate.parity import ended

ROOT = Path(__file__).parents[2]
# Along rounding noise by design: sums in another order take another direction. In fixed order it must hold for them too.
NOISY = [label(e) for e in entries() if e[1].get("first_step") == "official"]
TOLERANCE = 1e-9  # in float64, relative to the largest number of a vector


def torchrun(ranks: int, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, **options)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parity")
    process = torchrun(3, "-m", "tests.simulate.parity", str(out), cwd=ROOT)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    return out


@cache
def loaded(path: Path) -> dict[str, Tensor]:
    return load_file(path)


@cache
def alone(name: str) -> dict[str, Tensor]:
    entry = next(e for e in entries() if label(e) == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return ended(entry, "sum")


def of(path: Path, name: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{name}: "): v for k, v in loaded(path).items() if k.startswith(f"{name}: ")}


@pytest.mark.parametrize("name", [label(e) for e in entries()])
def test_ranks_end_where_one_process_does(name: str, launched: Path) -> None:
    expected = alone(name)
    for ranks in (1, 2, 3):
        exact = of(launched / f"{ranks}-ordered.safetensors", name)
        assert exact.keys() == expected.keys()
        assert all(torch.equal(exact[k], v) for k, v in expected.items()), f"{ranks} ranks, in order"
        if name in NOISY:
            continue
        summed = of(launched / f"{ranks}-sum.safetensors", name)
        assert summed.keys() == expected.keys()
        for k, v in expected.items():
            atol = TOLERANCE * max(1.0, float(v.abs().max()))
            assert torch.allclose(summed[k], v, rtol=0, atol=atol), f"{ranks} ranks: {k}"


def test_work_is_spread_longest_first() -> None:
    work = [3, 9, 1, 4, 4, 7, 2]
    owners = placed(work, 3, [None] * len(work))
    loads = [sum(w for w, o in zip(work, owners, strict=True) if o == r) for r in range(3)]
    assert sorted(loads) == [10, 10, 10]
    assert placed([5, 5, 5], 3, [2, 2, 0])[:1] == [2]  # at equal load, where its state is
    assert set(placed([1], 3, [None])) == {0}
