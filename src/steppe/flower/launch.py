"""Start Flower's processes on this machine, follow a run in its folder, and stop the processes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from steppe.core.errors import RunFailed, SteppeError, make_missing_error
from steppe.flower import end_with_parent, keys
from steppe.flower.create import connect
from steppe.flower.federation_file import read_federation_file
from steppe.flower.private_files import write_private
from steppe.flower.scripts import CONNECTION
from steppe.flower.server_status import LOG, is_alive, read_status
from steppe.runs.folder import RunFolder

log = logging.getLogger("steppe")

LATE, GONE = 90.0, 3.0  # seconds to wait for a server to start, or for its next sign of life
HOST = "127.0.0.1"


class Local:
    """The SuperLink and SuperNodes of one federation's folder, all on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.settings, self.config = read_federation_file(self.folder / "app")
        if "steppe.flower.superlink" not in (self.folder / "operator" / "superlink.sh").read_text():
            raise SteppeError(f"{self.folder} was created by an older version, whose SuperLink accepts anyone: create "
                              "it again with steppe federate init.")  # fmt: skip
        self.tls = (self.folder / "operator" / "ca.crt").exists()
        self.port, self.control = find_port(), find_port()
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start_superlink(self, fresh: bool = False) -> None:
        """Start the SuperLink; with `fresh`, delete its records of earlier nodes, which it would treat as alive."""
        for old in self.folder.glob("operator/state.db*") if fresh else ():
            old.unlink()
        connect(self.folder, HOST, self.port, self.control)
        self.superlink = self._start(self.folder / "operator" / "superlink.sh", "superlink.log", PORT=str(self.port),
                                     CONTROL_PORT=str(self.control))  # fmt: skip
        until = time.monotonic() + 60
        while not is_reachable(HOST, self.control):
            if self.superlink.poll() is not None or time.monotonic() > until:
                raise RunFailed(f"The SuperLink did not start; its log: {self.folder / 'operator' / 'superlink.log'}.")
            time.sleep(0.1)

    def start_node(self, client: int, **environment: str) -> None:
        port = str(find_port())
        self.nodes[client] = self._start(self.folder / "nodes" / str(client) / "node.sh", "node.log", PORT=port,
                                         SUPERLINK=f"{HOST}:{self.port}", **environment)  # fmt: skip

    def follow(
        self, watch: Callable[[dict[str, Any]], None], begun: float, resume: bool = False, out: str = ""
    ) -> None:
        follow(self.folder / (out or self.settings.out), watch, self._check_alive, begun, resume)

    def _check_alive(self) -> str:
        """Return an error if a process that the run needs has stopped; only warn about nodes that have stopped."""
        for client, process in list(self.nodes.items()):
            if process.poll() is not None:
                self.nodes.pop(client)
                log.warning(f"the node of client {client} has stopped; its log: nodes/{client}/node.log")
        if self.superlink is not None and self.superlink.poll() is not None:
            return "The SuperLink has stopped (its log: operator/superlink.log)"
        return ""

    def stop(self) -> None:
        """Stop everything, the nodes first, so that they do not try to reach a SuperLink that has stopped."""
        for process in self.nodes.values():
            process.terminate()
        for process in [*self.nodes.values(), *([self.superlink] if self.superlink else [])]:
            end_keeper(process)
        self.nodes, self.superlink = {}, None

    def _start(self, script: Path, log: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start the script under a keeper, so that nothing remains if this process is killed."""
        if shutil.which("flower-superlink", path=_find_path()) is None:
            raise make_missing_error("A federation needs Flower", "flower")
        command = [sys.executable, "-P", "-m", "steppe.flower.end_with_parent", str(os.getpid()), "sh", str(script)]
        with write_private(), (script.parent / log).open("ab") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    env={**os.environ, "PATH": _find_path(), "NO_COLOR": "1", **environment},
                                    start_new_session=True)  # fmt: skip


def end_keeper(process: subprocess.Popen[bytes], kill: bool = False) -> None:
    """Stop a keeper and its descendants: ask first, then kill; with `kill`, kill at once."""
    if not kill:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(end_with_parent.POLITE + 15)
    end_with_parent.end_descendants(process.pid, polite=0)
    process.kill()
    process.wait()


def register(folder: Path, client: int) -> None:
    """Bind a client to its node's public key, and register the key with the SuperLink if it is not registered yet."""
    with write_private():
        keys.bind(folder, client)
    done = run_flwr(folder, "supernode", "register", f"nodes/{client}/key.pub", CONNECTION)
    if done.returncode != 0 and "already" not in done.stdout + done.stderr:
        raise RunFailed(f"The key of node {client} could not be registered: {_read_last_line(done)}")


def run_flwr(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Flower's command line for this federation."""
    command = ["sh", str(folder.resolve() / "operator" / "flwr.sh"), *words]
    environment = {**os.environ, "PATH": _find_path(), "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)


def submit(folder: Path, resume: bool = False, sets: str = "", out: str = "") -> str:
    """Submit a run to the SuperLink and return Flower's ID of the run."""
    asked = {"resume": resume, "set": sets, "out": out}
    words = " ".join(f"{k}={json.dumps(v)}" for k, v in asked.items())
    done = run_flwr(folder, "run", "app", CONNECTION, "--run-config", words, "--format", "json")
    told = parse_json(done.stdout)
    if done.returncode != 0 or not told.get("success"):
        raise RunFailed(f"Flower did not accept the run: {told.get('error-message') or _read_last_line(done)}")
    return str(told["run-id"])


def follow(where: Path, watch: Callable[[dict[str, Any]], None],
           alive: Callable[[], str] = lambda: "", begun: float = 0.0, resume: bool = False) -> None:  # fmt: skip
    """Report every round as it is recorded, until the run that was submitted at `begun` has ended.

    Raise an error if it failed. Only the run's folder is read, so this uses only what an operator can see.
    """
    seen, lines = len(RunFolder(where).history) if resume else 0, len(read_lines(where / LOG))
    sign = time.monotonic()  # the server's last sign of life
    while True:
        state = read_status(where)
        here = state.get("time", 0.0) >= begun
        for line in read_lines(where / LOG)[lines:]:
            lines += 1
            if not line.startswith("error: "):  # is raised below
                log.info(line)
        if here:
            finished = RunFolder(where).history
            for record in finished[min(seen, len(finished)) :]:
                watch(record)
            seen = len(finished)
        if here and state["state"] == "finished":
            return
        if here and state["state"] == "failed":
            raise RunFailed(state["why"])
        if gone := alive():
            raise RunFailed(f"{gone}.")
        if here and is_alive(where):
            sign = time.monotonic()
        elif time.monotonic() - sign > (GONE if here else LATE):
            raise RunFailed("The server's process has died." if here else
                            f"The server did not start within {LATE:g} s; Flower's log has the reason: "
                            "operator/flwr.sh list, operator/flwr.sh log RUN.")  # fmt: skip
        time.sleep(0.3)


def find_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])


def is_reachable(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _find_path() -> str:
    """Return a PATH with this Python's folder, because Flower starts its helpers by name."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def parse_json(text: str) -> dict[str, Any]:
    begin = text.find("{")
    try:
        found: dict[str, Any] = json.loads(text[begin:]) if begin >= 0 else {}
    except (ValueError, RecursionError):
        found = {}
    return found


def _read_last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def read_lines(path: Path) -> list[str]:
    """Return the lines of a server's log so far, up to one that is damaged or not yet complete."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(str(json.loads(line)["text"]))
        except (ValueError, TypeError, LookupError, RecursionError):
            break
    return found
