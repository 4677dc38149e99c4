"""Jobs on a Ray cluster of two nodes: interrupted, resumed, one node killed; the results are those of this machine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steppe.config import resolve
from steppe.core.atomic_write import write_atomically
from steppe.core.errors import SteppeError
from steppe.jobs import queue as queue_module
from steppe.jobs import ray_places
from steppe.jobs.job import Job
from steppe.jobs.places import Here, find_places
from steppe.jobs.queue import LIVES, Queue
from steppe.jobs.ray_places import parse_place, read_own_files

MINE = """
import time
from dataclasses import dataclass
from pathlib import Path

from steppe.core.part import Part
from steppe.parts.sam import SAM

def mine(rho: float = 0.05):
    return (SAM(rho=rho),)

@dataclass(frozen=True)
class Gate(Part):
    name = "gate"
    file: str = ""

    def settle(self, x, s):
        while s.round >= int(Path(self.file).read_text()):  # no job ends while another has not begun
            time.sleep(0.05)
"""


# --- without a cluster


class Cluster:
    """A place whose children lose their machine as often as is said."""

    def __init__(self, losses: int, begun: bool = True) -> None:
        self.losses, self.begun, self.started, self.asked = losses, begun, 0, 0

    def has_room(self) -> bool:
        self.asked += 1
        return self.asked % 3 == 0  # at every third question

    def __call__(self, emit: Any) -> Any:
        self.started += 1
        lost = {"lost": "its machine was lost", **({} if self.begun else {"begun": False})}
        here = Here(emit)
        if self.started <= self.losses:
            here.send = lambda request: emit(lost)  # type: ignore[method-assign, assignment]
        return here


def _jobs(folder: Path, rounds: int = 2, **keys: Any) -> list[Job]:
    return [Job(resolve({"algorithm": name, "rounds": rounds, "clients": 4, "per_round": 2, "max_steps": 2,
                         "device": "cpu", "partition": "iid", "workers": 0, **keys}), name, folder / name[:4])
            for name in ("scaffold", "mine.py:mine")]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an algorithm of the user's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_a_job_that_lost_its_machine_runs_again(
    here: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "LOOK", 0.01)
    place = Cluster(losses=LIVES - 1)
    with Queue([place]) as queue:
        queue.add(_jobs(here)[:1])
        assert [ended.error for ended in queue] == [None]
    assert place.started == LIVES
    assert caplog.messages.count("scaffold: its machine was lost; it is run again") == LIVES - 1
    with Queue([Cluster(losses=9)]) as queue:
        queue.add(_jobs(here / "often")[:1])
        assert [ended.error for ended in queue] == ["its machine was lost, for the 3rd time"]
    with Queue([Cluster(losses=LIVES + 2, begun=False)]) as queue:  # to wait for room is no loss
        queue.add(_jobs(here / "waits")[:1])
        assert [ended.error for ended in queue] == [None]


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (2, 3), (9, 3)])
def test_a_connection_whose_process_died_is_tried_again(failures: int, calls: int) -> None:
    said: list[str] = []

    def init(address: str, **options: Any) -> None:
        said.append(address)
        if len(said) <= failures:
            raise ConnectionAbortedError("PID still exists but it's a zombie")

    with nullcontext() if failures < calls else pytest.raises(ConnectionAbortedError):
        ray_places._connect(SimpleNamespace(init=init, shutdown=lambda: None), "ray://host:1")
    assert said == ["ray://host:1"] * calls


def test_files_of_ones_own_travel_or_are_refused(here: Path) -> None:
    config = {"algorithm": "mine.py:mine", "add": ["man:weight=0.1"], "partition": "iid"}
    assert read_own_files(config) == {"mine.py": MINE.encode()}
    with pytest.raises(SteppeError, match="cannot be sent to another machine under this name"):
        read_own_files({**config, "algorithm": f"{here}/mine.py:mine"})


@pytest.mark.parametrize(
    "on", ["ray://head", "ray://head:10001,gpus=x", "ray,memory=1", "http://head:1", "ray,gpus=-1"]
)
def test_wrong_places(on: str) -> None:
    with pytest.raises(SteppeError, match="write ray://host:port"):
        parse_place(on)


# --- with one


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes, with room for one job each; its address is that of its first node's client server."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "120")  # on a busy machine
    pytest.importorskip("ray", reason="ray is not installed")
    import ray
    from ray.cluster_utils import Cluster as Nodes

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Nodes(initialize_head=True, head_node_args={**small, "ray_client_server_port": port})
    cluster.url = f"ray://127.0.0.1:{port}"
    try:
        cluster.second = cluster.add_node(**small)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_two_nodes_one_of_them_killed(nodes: Any, here: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "steppe.queue")
    gate = here / "last"  # rounds that may be trained so far: fewer at first, so that there are some left to continue
    gate.write_text("20")
    settings = {"rounds": 60, "checkpoint_every": 5, "evaluate_every": 20, "add": [f"mine.py:Gate:file={gate}"]}
    jobs = _jobs(here / "there", **settings)
    progress: dict[str, int] = {}

    def open_queue() -> Queue:
        queue = Queue(find_places(None, "cpu", nodes.url))
        queue.progress.update_job = lambda label, done, *_: progress.update({label: done})  # type: ignore[method-assign]
        return queue

    def play_until(queue: Queue, rounds: int) -> None:
        """Start both jobs, one on each node, and wait until both have trained so many rounds."""
        progress.clear()
        queue.add(jobs)
        for slot, job in zip(queue.slots, jobs, strict=True):
            queue._start(slot, job)
        while len(progress) < 2 or min(progress.values()) < rounds:
            queue._wait()

    # Interrupted: what was trained comes home.
    with open_queue() as queue:
        assert len(queue.slots) == 2
        play_until(queue, 6)
    assert all(5 <= job.rounds_done <= 20 for job in jobs)
    write_atomically(gate, lambda aside: aside.write_text("40"))

    # Continued from there; one node dies, and its job runs again on the other.
    with open_queue() as queue:
        play_until(queue, 1)
        assert min(progress.values()) > 5
        nodes.remove_node(nodes.second, allow_graceful=False)
        write_atomically(gate, lambda aside: aside.write_text("60"))
        assert {one.job.label: one.error for one in queue} == {job.label: None for job in jobs}
    assert sum("it is run again" in message for message in caplog.messages) == 1

    # The results are those of this machine, to the bit.
    local = _jobs(here / "local", **settings)
    with Queue([Here]) as queue:
        queue.add(local)
        assert all(one.error is None for one in queue)
    for far, near in zip(jobs, local, strict=True):
        assert far.where is not None
        assert near.where is not None
        assert (far.where / "model.safetensors").read_bytes() == (near.where / "model.safetensors").read_bytes()
