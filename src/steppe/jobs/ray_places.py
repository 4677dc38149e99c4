"""Places in a Ray cluster: `--on ray://host:port`, `--on ray://host:port,gpus=0.5,cpus=2`, or `--on ray`.

Ray finds a machine with room for a job and tells us when one has died. What to run, in which order, progress, budget,
interrupts and failures are the queue's, as for processes on this machine. The cluster is trusted: Ray sends pickled
objects between its processes, so anyone who can reach its ports can run code on it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import steppe
from steppe.core.atomic_write import write_atomically
from steppe.core.errors import SettingError, SteppeError, quote
from steppe.data.divide import is_file
from steppe.engine.devices import limit_cores
from steppe.jobs.child_process import PATIENCE, Emit, pack_own
from steppe.jobs.places import Place
from steppe.jobs.ray_bridge import NOT_FETCHED, Bridge
from steppe.registry import find_foreign

START = 120.0  # seconds in which a place must have started
SILENCE = 60.0  # seconds in which a place must answer
FETCH = 60.0  # seconds in which an interrupted run's files must have come home
PIECE = 1 << 24  # bytes that are fetched at a time
LAST = "result.json"  # its presence says that a run has finished


def find_remote_places(on: str, jobs: int | None, device: str) -> list[Place]:
    """Connect to a cluster, and return `jobs` places of it; for one or None, as many as there is room for."""
    cluster = Cluster(on, device)
    return [cluster] * (jobs if jobs and jobs > 1 else cluster.count_places())


def parse_place(on: str) -> tuple[str, dict[str, float]]:
    """Return the address of a cluster, and what each job takes of it.

    >>> parse_place("ray://head:10001,gpus=0.5")
    ('ray://head:10001', {'gpus': 0.5})
    """
    address, *words = on.split(",")
    needs: dict[str, float] = {}
    try:
        for word in words:
            key, number = word.strip().split("=")
            needs[key] = float(number)
        if not needs.keys() <= {"gpus", "cpus"} or not all(0 <= n < float("inf") for n in needs.values()):
            raise ValueError
        if address != "ray" and not re.fullmatch(r"ray://[^/]+:\d+", address):
            raise ValueError
    except ValueError:
        raise SettingError(f"on is {quote(on)}: write ray://host:port, or ray for the cluster of this machine; what a "
                           "job takes may follow, as in ray://host:10001,gpus=0.5,cpus=2", "on") from None  # fmt: skip
    return address, needs


def count_sharing(on: str) -> int:
    """Return how many jobs share one GPU of a cluster.

    >>> count_sharing("ray://head:10001,gpus=0.25"), count_sharing("ray")
    (4, 1)
    """
    return round(1 / min(1.0, parse_place(on)[1].get("gpus") or 1.0))


def _connect(ray: Any, address: str, tries: int = 3) -> None:
    """Connect to a cluster, which starts a process for it. On a busy machine this process may die: try again."""
    while True:
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            return
        except ConnectionAbortedError:
            tries -= 1
            if not tries:
                raise
            ray.shutdown()


class Cluster:
    """A place that can be used several times: each call starts a worker where Ray finds room."""

    def __init__(self, on: str, device: str) -> None:
        address, needs = parse_place(on)
        self.name, self.starting = address, 0
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when ray is imported
        try:
            import ray
        except ImportError:
            raise SteppeError(f"on is {on}, which needs Ray: pip install 'steppe[ray]'.") from None
        self.ray = ray
        if not ray.is_initialized():
            try:
                _connect(ray, "auto" if address == "ray" else address)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
                why = _read_last_line(error)
                raise SteppeError(f"There is no Ray cluster at {address}, or it does not answer ({why}): "
                                  "start one with ray start --head, name its address and client port, or try "
                                  "again.") from error  # fmt: skip
        everything = self._ask(ray.cluster_resources)
        wants_gpu = device != "cpu" and everything.get("GPU", 0) > 0
        self.needs = {"CPU": needs.get("cpus", 1.0), "GPU": needs.get("gpus", 1.0 if wants_gpu else 0.0)}
        if not self._fit(everything):
            raise SteppeError(f"A job needs {self.needs['CPU']:g} CPUs and {self.needs['GPU']:g} GPUs, but all of "
                              f"{address} has {everything.get('CPU', 0):g} and {everything.get('GPU', 0):g}: ask for "
                              f"less, as in --on {address},cpus=1,gpus=0.")  # fmt: skip

    def __call__(self, emit: Emit) -> RemoteWorker:
        return RemoteWorker(self, emit)

    def count_places(self) -> int:
        """Return how many jobs there is room for, some of it perhaps later."""
        return self._fit(self._ask(self.ray.cluster_resources))

    def has_room(self) -> bool:
        """Return whether one more job would start at once."""
        return self._fit(self._ask(self.ray.available_resources)) > self.starting

    def _fit(self, resources: dict[str, float]) -> int:
        return int(min((resources.get(kind, 0) / n + 1e-9 for kind, n in self.needs.items() if n),
                       default=resources.get("CPU", 0)))  # fmt: skip

    def _ask(self, question: Any) -> dict[str, float]:
        try:
            return dict(question())
        except (ConnectionError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise SteppeError(f"The Ray cluster {self.name} no longer answers ({_read_last_line(error)}). What has "
                              "finished is kept: start the same command again.") from error  # fmt: skip


class RemoteWorker:
    """A child on some node of a cluster (see `places.Child`). A thread asks for its events and fetches its files."""

    def __init__(self, cluster: Cluster, emit: Emit) -> None:
        self.cluster, self.ray, self.emit = cluster, cluster.ray, emit
        environment = limit_cores(int(cluster.needs["CPU"]))
        if not cluster.needs["GPU"]:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        options = {"num_cpus": cluster.needs["CPU"], "num_gpus": cluster.needs["GPU"], "max_concurrency": 4,
                   "max_restarts": 0}  # fmt: skip
        self.bridge = self.ray.remote(Bridge).options(**options).remote(environment)
        cluster.starting += 1
        self.requests: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def send(self, request: dict[str, Any]) -> None:
        self.requests.put({**pack_own(request), "files": read_own_files(request["config"])})

    def close(self) -> None:
        self.requests.put(None)
        with suppress(Exception):  # it may have died, which the thread notices
            self.bridge.close.remote()

    def join(self, seconds: float) -> None:
        self.thread.join(seconds and seconds + FETCH)  # no time is no patience: a second Ctrl-C, for instance
        if self.thread.is_alive():
            self._kill()
            self.thread.join(PATIENCE)

    def _kill(self) -> None:
        with suppress(Exception):
            self.ray.kill(self.bridge)

    def _follow(self) -> None:
        begun = False
        try:
            try:
                node = self.ray.get(self.bridge.describe.remote(), timeout=START)
            finally:
                self.cluster.starting -= 1
            if node["steppe"] != steppe.__version__:
                self.emit({"error": f"{node['node']} has steppe {node['steppe']}, but this is {steppe.__version__}: "
                                    "install the same version on all machines of the cluster."})  # fmt: skip
                return
            begun = True
            while (request := self.requests.get()) is not None and self._run(request):
                pass
        except (self.ray.exceptions.RayError, ConnectionError, RuntimeError, TimeoutError, OSError) as error:
            if begun:
                self.emit({"lost": f"its machine was lost ({type(error).__name__})"})
            else:
                self.emit({"lost": "the cluster had no room for it", "begun": False})
        finally:
            self._kill()

    def _run(self, request: dict[str, Any]) -> bool:
        """Run a job to its end; return whether the worker is still there."""
        home = request["where"] and Path(request["where"])
        files, begun = request.pop("files"), dict(_read_folder(home) if home else ())
        self.ray.get(self.bridge.send.remote(request, files, begun), timeout=START)
        while True:
            for event in self.ray.get(self.bridge.take.remote(1.0), timeout=SILENCE):
                if "round" not in event and home:
                    self._fetch(home)
                self.emit(event)
                if "round" not in event:
                    return "gone" not in event and "trace" not in event

    def _fetch(self, home: Path) -> None:
        """Replace the run's folder at home by the one there; what says that it has finished comes last."""
        sizes = self.ray.get(self.bridge.list_files.remote(), timeout=SILENCE)
        if not sizes:
            return
        shutil.rmtree(home, ignore_errors=True)
        for name in sorted(sizes, key=lambda name: name == LAST):
            (home / name).parent.mkdir(parents=True, exist_ok=True)

            def write(aside: Path, name: str = name) -> None:
                with aside.open("wb") as file:
                    for at in range(0, sizes[name], PIECE):
                        file.write(self.ray.get(self.bridge.read.remote(name, at, PIECE), timeout=SILENCE))

            write_atomically(home / name, write)


def _read_last_line(error: Exception) -> str:
    """Return the end of an error of Ray's, where it says what went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _read_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return the files of an interrupted run."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in NOT_FETCHED:
            yield str(path.relative_to(folder)), path.read_bytes()


def read_own_files(config: dict[str, Any]) -> dict[str, bytes]:
    """Return the user's own files that a configuration names, by name, which are sent with the job."""
    sources = [name.rpartition(":")[0] for name in find_foreign(config["algorithm"], config["add"])]
    names = [source for source in sources if source.endswith(".py")]
    names += [config["partition"]] if is_file(config["partition"]) else []
    for name in names:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or name.startswith("~"):
            raise SteppeError(f"{name} cannot be sent to another machine under this name: put it into the folder in "
                              "which you call steppe, or below, and name it from there.")  # fmt: skip
    return {name: Path(name).read_bytes() for name in names}
