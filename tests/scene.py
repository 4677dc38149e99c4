"""A federation small enough to be run a hundred times, and what must not change when a run is interrupted."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import steppe
from steppe.core.wire import flatten_states
from steppe.engine import resources
from steppe.engine.progress import handle_logs
from steppe.engine.result import Result
from steppe.runs import checkpoint


class Net(nn.Module):
    """Two layers; in a module of its own, so that worker processes can import it."""

    def __init__(self, inputs: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class NormNet(nn.Module):
    """The same with batch norm, whose counter is an integer buffer."""

    def __init__(self, inputs: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def seeded(kind: type[nn.Module] = Net, seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def blobs(samples: int = 90, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three overlapping classes in six dimensions."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(samples + 30) % 3
    x = torch.randn(samples + 30, 6, generator=g) + torch.nn.functional.one_hot(y, 6) * 1.5
    return x[:samples], y[:samples], x[samples:], y[samples:]


USUAL: dict[str, Any] = {
    "clients": 6, "per_round": 3, "rounds": 5, "epochs": 2, "batch": 8, "partition": "dirichlet(0.5)", "lr": 0.1,
    "momentum": 0.5, "checkpoint_every": 1, "workers": 0, "algorithm": "scaffold",
}  # fmt: skip


def launch(out: Path | None = None, resume: bool = False, model: nn.Module | None = None, data: Any = None,
           **options: Any) -> Result:  # fmt: skip
    torch.set_num_threads(1)
    given = {**USUAL, **options}
    return steppe.run(given.pop("algorithm"), model or seeded(), data or blobs(), out=out, resume=resume, **given)


def records(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    return lines


def remains(out: Path, result: Result) -> dict[str, Any]:
    """All that two runs must share to the bit: model, records, and server and client states of the last checkpoint."""
    store = resources.make_store(result.experiment, out)
    saved, complaints = checkpoint.load(out / "checkpoints", store)
    assert saved is not None
    assert complaints == []
    rows = dict(zip(store.list_known(), store.gather(store.list_known()), strict=True))
    return {
        "model": (out / "model.safetensors").read_bytes(),
        "records": records(out),
        "round": saved.round,
        "notes": saved.notes,
        "x": bits(saved.server.x),
        "server": {k: bits(v) for k, v in flatten_states(saved.server.state).items()},
        "buffers": {k: bits(v) for k, v in saved.server.buffers.items()},
        "clients": {i: {k: bits(v) for k, v in flatten_states(row).items()} for i, row in rows.items()},
    }


@contextmanager
def listening(each: Any = None) -> Iterator[list[str]]:
    """The messages of the program while this lasts; `each` is called with every one."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if each:
                each(said[-1])

    with handle_logs(Ear()):
        yield said


def bits(v: Tensor) -> bytes:
    return v.contiguous().numpy().tobytes()


def dies(at: int, out: Path, options: dict[str, Any]) -> None:
    """Run in a child process that is killed at its `at`-th touch of the disk; a write is first left half done."""
    seen = 0

    def dangerous(call: Any, half: Any = None) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == at:
                if half is not None:
                    half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    def half_a_file(tensors: Any, path: Path, *_: Any) -> None:
        save(tensors, path)
        os.truncate(path, path.stat().st_size // 2)

    save = checkpoint.save_file
    checkpoint.save_file = dangerous(save, half_a_file)
    Path.write_text = dangerous(
        Path.write_text, lambda path, text, *_: path.write_bytes(text[: len(text) // 2].encode())
    )
    Path.rename, Path.replace = dangerous(Path.rename), dangerous(Path.replace)
    shutil.rmtree, os.fsync = dangerous(shutil.rmtree), dangerous(os.fsync)
    launch(out, **options)
