"""Every other file that the program keeps or is given is read or refused in a sentence, however it was damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import steppe
from steppe.config import resolve
from steppe.data.partition import Partition
from steppe.engine.trackers import find_id
from steppe.flatness.landscape import Landscape
from steppe.flower import launch, server_status, status
from steppe.flower.create import connect, init, pin
from steppe.flower.keys import bind, read_keys
from steppe.flower.node_state import NodeState
from steppe.flower.refusals import Strikes
from steppe.jobs.search import Range, Search
from steppe.read_config import read_config_file
from steppe.reproduce.rows import read_rows
from tests.fuzz.damage import ANY_JSON, Damage
from tests.fuzz.inputs import fuzz, is_sentence, within

STATE = {"part": {"c": torch.zeros(3)}}
PROBLEM = Path(__file__).parents[2] / "examples" / "quadratics.json"


def _search(home: Path) -> Any:
    found = Search({"rho": Range(0.1, 1.0, False, False)}, {"mu": ["1", "2"]}, 2, lambda v: v, 0, home)  # type: ignore[arg-type,return-value]
    return [found._ask() for _ in range(2)]


def _pin(home: Path) -> None:
    _status(home)  # the command reads the file first, too
    pin(home / "federation")


def _status(home: Path) -> None:
    told = status.read_federation(home / "federation")
    server_status.find_server(home / "federation" / "run")
    json.dumps(told)


# A file, and what reads it.
READERS: dict[str, Callable[[Path], Any]] = {
    "federation/app/federation.toml": _pin,
    "federation/operator/keys.json": lambda home: read_keys(home / "federation"),
    "federation/operator/address": _status,
    "federation/operator/.flower/config.toml": _status,
    "federation/nodes/0/key.pub": lambda home: bind(home / "federation", 0),
    "federation/nodes/0/state/f/client-0/round-000001.safetensors":
        lambda home: NodeState(home / "federation" / "nodes" / "0" / "state", "f", 0).read(1, STATE),
    "federation/run/status.json": _status,
    "federation/run/rounds.jsonl": _status,
    "federation/run/server.log": lambda home: launch.read_lines(home / "federation" / "run" / "server.log"),
    "federation/run/refusals.json": lambda home: Strikes(home / "federation" / "run" / "refusals.json", 3, 10),
    "trials.json": _search,
    "track.json": lambda home: find_id(home, "mlflow", lambda: "id"),
    "rows.jsonl": lambda home: [row.get("scale") for row in read_rows(home / "rows.jsonl")],
    "landscape.npz": lambda home: Landscape.load(home / "landscape.npz"),
    "partition.json": lambda home: Partition.load(home / "partition.json"),
    "problem.json": lambda home: steppe.trace("fedavg", home / "problem.json"),
    "mine.toml": lambda home: resolve(read_config_file(home / "mine.toml")),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("files")
    federation = home / "federation"
    init(federation, resolve({"clients": 1, "per_round": 1, "rounds": 2, "model": "mlp"}), tls=True)
    connect(federation, "127.0.0.1", 1, 1)
    bind(federation, 0)
    NodeState(federation / "nodes" / "0" / "state", "f", 0).write(1, 0, STATE)
    (federation / "run").mkdir()
    server_status.write_status(federation / "run", "running")
    (federation / "run" / "rounds.jsonl").write_text('{"round": 1, "accuracy": 50.0, "loss": 1.0}\n{"round": 2}\n')
    metric = {"name": "accuracy", "direction": "higher", "percent": True}
    (federation / "run" / "about.json").write_text(json.dumps({"metric": metric, "metrics": [metric]}))
    (federation / "run" / "server.log").write_text('{"time": 1.5, "text": "here"}\n{"time": 2.5, "text": "there"}\n')
    Strikes(federation / "run" / "refusals.json", 3, 10).add(0, 1)
    _search(home)
    find_id(home, "mlflow", lambda: "id")
    (home / "rows.jsonl").write_text('{"scale": "paper", "config": {"algorithm": "fedavg", "lr": 0.1}}\n{"seed": 1}\n')
    axes = (np.linspace(-1, 1, 3),)
    Landscape(np.zeros(3), axes, np.zeros((1, 4)), "line", "test", marks={"x": [0.0]}).save(home / "landscape.npz")
    (home / "partition.json").write_text('{"clients": [[0, 1], [2, 3]]}')
    shutil.copy(PROBLEM, home / "problem.json")
    (home / "mine.toml").write_text('algorithm = "fedsam"\nrounds = 3\n[settings]\nrho = 0.1\n')
    for name, read in READERS.items():
        assert (home / name).exists()
        read(home)
    return home


def _overwrite(new: bytes) -> Damage:
    return lambda _: new


def read_damaged(name: str, damage: Damage, home: Path) -> None:
    path, raw = home / name, (home / name).read_bytes()
    try:
        content = damage(raw)
    except ValueError:  # an edit of JSON, for a file that is none
        content = b"\xff" * 30
    path.write_bytes(content)
    try:
        with within(60):
            READERS[name](home)
    except steppe.SteppeError as error:
        is_sentence(error)
    finally:
        path.write_bytes(raw)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@fuzz(2)
@given(name=st.sampled_from(sorted(READERS)), damage=ANY_JSON)
def test_any_damaged_file(name: str, damage: Damage, whole: Path) -> None:
    read_damaged(name, damage, whole)


WORST = [b"[" * 100_000, b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000, b"\xff\xfe", b"[1]", b"3", b"null", b"",
         b'{"superlink": 3}', b'[{"rho": "a lot"}]', b"[[1]]", b'{"text": []}\n[1]\n']  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_the_worst_content_of_every_file(whole: Path) -> None:
    """Deep nesting, endless numbers, no UTF-8, another kind of value at the top."""
    wrong = []
    for name in READERS:
        for content in WORST:
            try:
                read_damaged(name, _overwrite(content), whole)
            except Exception as error:
                wrong.append(f"{name} = {content[:20]!r}: {error!r:.90}")
    assert not wrong, "\n".join(wrong)
