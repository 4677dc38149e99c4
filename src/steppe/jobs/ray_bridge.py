"""On a node of a Ray cluster: an actor with one worker process, its events, and the folder of its run.

The node needs this package and the data, but no shared storage: a run's folder is made here and fetched in the end. The
actor imports no torch, so it is small compared with the worker process.
"""

from __future__ import annotations

import atexit
import platform
import shutil
import tempfile
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import steppe
from steppe.jobs.child_process import PATIENCE, Worker

Event = dict[str, Any]
NOT_FETCHED = {".lock"}


class Bridge:
    """A worker process that is driven from another machine."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="steppe-ray-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.run, self.own = self.folder / "run", self.folder / "own"
        self.own.mkdir()
        self.home, self.events = "", SimpleQueue[Event]()
        self.worker = Worker(self._emit, environment, self.own)  # where the user's own files are

    def _emit(self, event: Event) -> None:
        """Pass on an event, with the name that the folder has on the user's machine."""
        self.events.put({k: v.replace(str(self.run), self.home) if isinstance(v, str) else v for k, v in event.items()})

    def describe(self) -> dict[str, str]:
        """Return this machine's name and the version of this package."""
        return {"node": platform.node(), "steppe": steppe.__version__}

    def send(self, request: dict[str, Any], own: dict[str, bytes], begun: dict[str, bytes]) -> None:
        """Start a job, with the user's own files and, if it was interrupted, the files that it left."""
        shutil.rmtree(self.run, ignore_errors=True)
        for folder, files in ((self.own, own), (self.run, begun)):
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        self.home = request["where"] or ""
        self.worker.send({**request, "where": request["where"] and str(self.run)})

    def take(self, seconds: float) -> list[Event]:
        """Return the events so far; wait this long for the first."""
        found = []
        try:
            found.append(self.events.get(timeout=seconds))
            while True:
                found.append(self.events.get_nowait())
        except Empty:
            return found

    def list_files(self) -> dict[str, int]:
        """Return the sizes of the run's files."""
        return {str(path.relative_to(self.run)): path.stat().st_size for path in sorted(self.run.rglob("*"))
                if path.is_file() and path.name not in NOT_FETCHED}  # fmt: skip

    def read(self, name: str, at: int, count: int) -> bytes:
        """Return a piece of one of these files."""
        with (self.run / name).open("rb") as file:
            file.seek(at)
            return file.read(count)

    def close(self) -> None:
        """End the worker process; a run in progress ends cleanly."""
        self.worker.close()
        self.worker.join(PATIENCE)
