"""A child process that trains one job at a time. Nothing here imports torch: a parent may be small."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from steppe.core.errors import SteppeError
from steppe.executors.shared_pickle import pickle_own

COMMAND = (sys.executable, "-m", "steppe.jobs.worker")
PATIENCE = 10.0  # seconds that a run gets to end cleanly
Emit = Callable[[dict[str, Any]], None]


class Worker:
    """A worker process with these environment variables. Its events arrive in a separate thread."""

    def __init__(self, emit: Emit, environment: dict[str, str], folder: Path | None = None) -> None:
        # In its own session: Ctrl-C reaches only this process, which then ends its children cleanly.
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
                                        env={**os.environ, **environment}, cwd=folder,
                                        start_new_session=True)  # fmt: skip
        threading.Thread(target=self._listen, args=(emit,), daemon=True).start()

    def _listen(self, emit: Emit) -> None:
        for line in self.process.stdout or ():
            with suppress(ValueError):  # an incomplete line of a killed process
                emit(json.loads(line))
        code = self.process.wait()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        emit({"gone": f"its process {ended}" + (", perhaps because it ran out of memory" if code == -9 else "")})

    def send(self, request: dict[str, Any]) -> None:
        with suppress(OSError):  # it has ended, which the other thread reports
            print(json.dumps(pack_own(request)), file=self.process.stdin, flush=True)

    def close(self) -> None:
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]

    def join(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def pack_own(request: dict[str, Any]) -> dict[str, Any]:
    """Write the user's own objects as text for a process of ours, with the folders in which it finds their modules."""
    if not request.get("own") or isinstance(request["own"], str):
        return request
    try:
        content = pickle_own(dict(request["own"]))
    except Exception as error:  # a user's object may raise anything
        raise SteppeError(f"Your own objects cannot be sent to another process ({error}): use jobs=1.") from error
    return {**request, "own": base64.b64encode(content).decode(), "path": sys.path}
