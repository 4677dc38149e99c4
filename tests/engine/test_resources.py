"""What a run needs is told, refused where it is not there, and does not grow with clients that stay away."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steppe import from_arrays
from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.engine import resources
from steppe.engine.build import build_experiment
from steppe.engine.rounds import simulate
from steppe.experiment import Experiment
from steppe.runs.client_store import DiskStore, pack
from tests.scene import USUAL, blobs, launch, listening, seeded

GIB = 1 << 30
MODEL = 4 * (7 * 16 + 17 * 3)  # bytes of the little net


def built(**options: Any) -> Experiment:
    return build_experiment(resolve({**USUAL, **options}), None, seeded(), from_arrays(*blobs()))


def test_the_numbers_are_those_of_the_run() -> None:
    """SCAFFOLD keeps one vector and uploads two; five rounds of three clients meet all six."""
    in_memory = resources.estimate_needs(built(), disk=False)
    assert in_memory.states == 6 * MODEL
    assert in_memory.round == 3 * (2 * (2 * MODEL + MODEL) + MODEL)  # stacked replies, and states before
    on_disk = resources.estimate_needs(built(rounds=50), disk=True)
    assert on_disk.states == 0
    assert on_disk.disk >= 3 * 6 * MODEL
    assert resources.estimate_needs(built(rounds=1), disk=False).states == 3 * MODEL  # nobody else can have one


def test_it_is_told_before_the_first_round(tmp_path: Path) -> None:
    with listening() as said:
        simulate(built(rounds=1), tmp_path / "run", watch=lambda _: said.append("a round"))
    assert said[0].startswith("memory: 18 KiB (the states of 6 clients 2 KiB, a round's vectors 14 KiB), ")
    assert "disk: up to 10 KiB" in said[0]
    assert said[1] == "a round"


def test_a_limit_sends_states_to_disk_and_then_refuses(tmp_path: Path) -> None:
    whole = resources.estimate_needs(built(), disk=False)
    enough, too_little = (2 * whole.states + whole.round) / GIB, (whole.round + whole.states) / GIB
    assert not resources.is_on_disk(built(memory=enough), tmp_path)
    assert resources.is_on_disk(built(memory=too_little), tmp_path)
    assert launch(tmp_path / "run", memory=too_little).folder is not None  # on disk it fits
    with pytest.raises(SteppeError, match=r"needs 22 KiB of memory .*, but memory = .*or raise memory"):
        launch(tmp_path / "other", memory=too_little, store="memory")
    assert not (tmp_path / "other").exists()
    with pytest.raises(SteppeError, match=r"memory = 1e-09 allows .*lower per_round or use a smaller model"):
        launch(tmp_path / "other", memory=1e-9)


def test_without_a_limit_and_a_folder_there_is_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint is written then, so the states are there once; nothing else is in the way of a large federation."""
    whole = resources.estimate_needs(built(), disk=False)
    monkeypatch.setattr(resources, "find_free_memory", lambda device: whole.states + whole.round)
    assert launch(None).summary["rounds"] == USUAL["rounds"]
    monkeypatch.setattr(resources, "find_free_memory", lambda device: whole.states + whole.round - 1)
    with pytest.raises(SteppeError, match="are free"):
        launch(None)


def test_what_is_not_there_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(resources, "find_free_memory", lambda device: 100)
        with pytest.raises(SteppeError, match=r"needs 22 KiB of memory .* but 1 KiB are free: "):
            launch(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(resources.shutil, "disk_usage", lambda place: Full)
        with pytest.raises(SteppeError, match=r"up to 16 KiB of disk for client states and checkpoints, but 0 KiB"):
            launch(tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Full:
    free = 0


ROW = 1 << 18  # numbers: a row of one MiB


def big(path: Path) -> DiskStore:
    return DiskStore(lambda: {"part": {"c": torch.zeros(ROW)}}, path)


def row(value: float) -> dict[str, dict[str, Tensor]]:
    return {"part": {"c": torch.full((ROW,), value)}}


def test_rows_exist_from_the_first_participation_on(tmp_path: Path) -> None:
    """The file has three slots for each client that has taken part, and disk space for the rows that were written."""
    store = big(tmp_path / "clients.bin")
    store.scatter([3, 5000, 9999], [row(1.0), row(2.0), row(3.0)])
    store.commit()
    store.scatter([5000, 7], [row(4.0), row(5.0)])
    store.commit()
    assert store.path.stat().st_size <= 3 * 4 * 4 * ROW
    assert store.path.stat().st_blocks * 512 <= 5 * (4 * ROW + 8192)
    found = [float(state["part"]["c"][-1]) for state in store.gather([3, 5000, 9999, 7, 8])]
    assert found == [1.0, 4.0, 3.0, 5.0, 0.0]
    assert store.list_known() == [3, 7, 5000, 9999]


def test_a_checkpoint_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It had a row for each of all clients, at its own number, and no list of clients."""
    old = DiskStore(lambda: {"part": {"c": torch.zeros(4)}}, tmp_path / "clients.bin")
    raw = pack({"part": {"c": torch.full((4,), 7.0)}})
    old._write(raw, (3 * 8 + 2) * old.width)  # client 8 of ten, slot 2
    dense = torch.full((10,), -1, dtype=torch.int8), torch.zeros(10, dtype=torch.int64)
    dense[0][8], dense[1][8] = 2, zlib.crc32(raw)
    old.restore({"slots": dense[0], "sums": dense[1]})
    old.scatter([1, 8], [{"part": {"c": torch.full((4,), v)}} for v in (1.0, 8.0)])
    assert [float(s["part"]["c"][0]) for s in old.gather([1, 8, 9])] == [1.0, 8.0, 0.0]
    assert old.current[old.place[8]] != 2  # the checkpoint's row stays
    again = DiskStore(old.fresh, tmp_path / "clients.bin")
    again.restore(old.commit())
    assert again.list_known() == [1, 8]
    assert float(again.gather([8])[0]["part"]["c"][0]) == 8.0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory from /proc")
def test_memory_does_not_grow_with_the_rows_that_were_touched(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    store = big(tmp_path / "clients.bin")
    store.scatter([0], [row(0.0)])
    before = resident()
    for i in range(1, 81):
        store.scatter([i], [row(float(i))])
        assert float(store.gather([i])[0]["part"]["c"][0]) == i
    assert resident() - before < 20 << 20


def test_a_round_and_its_checkpoint_touch_the_clients_of_the_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    read, write = DiskStore.gather, DiskStore.scatter
    monkeypatch.setattr(DiskStore, "gather", lambda self, ids: touched.extend(ids) or read(self, ids))
    monkeypatch.setattr(DiskStore, "scatter", lambda self, ids, rows: touched.extend(ids) or write(self, ids, rows))
    result = launch(
        tmp_path / "run", data=blobs(400), clients=200, per_round=2, partition="iid", store="disk", rounds=20
    )
    sampled = [i for t in range(20) for i in result.experiment.sample(t)]
    assert sorted(touched) == sorted(2 * sampled)
    # client, place, slot and checksum of each that took part, the server's three vectors, and headers
    sizes = [f.stat().st_size for f in (tmp_path / "run/checkpoints/round-000020").iterdir()]
    assert sum(sizes) < len(set(sampled)) * 25 + 3 * MODEL + 4096
    assert (tmp_path / "run/clients.bin").stat().st_blocks * 512 <= resources.estimate_needs(
        result.experiment, disk=True
    ).disk
