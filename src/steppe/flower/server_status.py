"""Record a server's state in the run's folder: a lock, a status and a log."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from steppe.core.errors import SteppeError
from steppe.engine.progress import handle_logs
from steppe.flower.private_files import write_private
from steppe.runs.folder import RunFolder

LOCK, LOG, STATUS = "server.lock", "server.log", "status.json"


@contextmanager
def lock(where: Path, what: str = "server") -> Iterator[None]:
    """Lock the folder for one server, or another command; the system frees the lock however the process ends."""
    held = FileLock(where / LOCK, timeout=0)
    try:
        with write_private():
            held.acquire()
    except Timeout:
        raise SteppeError(f"Another {what} is running in {where}: wait for it, or stop it.") from None
    try:
        yield
    finally:
        held.release()


def is_alive(where: Path) -> bool:
    """Return whether a server is running in this folder."""
    if not where.is_dir():  # the lock would create it
        return False
    try:
        with lock(where):
            return False
    except SteppeError:
        return True
    except OSError:
        return False


def find_server(where: Path) -> int | None:
    """Return the process of the server that is running in this folder, if it is on this machine."""
    told = read_status(where)
    try:
        if told["state"] != "running":
            return None
        os.kill(told["pid"], 0)  # raises an error if there is no such process
        return int(told["pid"])
    except (OSError, ArithmeticError, TypeError, LookupError):
        return None


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send the program's messages to Flower's log of the run, and to a file in the run's folder."""

    class Both(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            print(f"steppe: {text}", flush=True)
            with path.open("a") as file:
                file.write(json.dumps({"time": round(time.time(), 1), "text": text}) + "\n")

    with handle_logs(Both()):
        yield


def write_status(where: Path, state: str, **more: Any) -> None:
    RunFolder(where).write(STATUS, {"state": state, "pid": os.getpid(), "time": time.time(), **more})


def read_status(where: Path) -> dict[str, Any]:
    """Return the last status that the server wrote; none if it is damaged."""
    try:
        return RunFolder(where).read(STATUS, {})
    except SteppeError:
        return {}
