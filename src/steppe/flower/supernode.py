"""A Flower SuperNode that runs only one app, for its own user only.

Flower's SuperNode runs any app that its SuperLink sends. Its own check of signatures (`--trusted-entities`) needs apps
that were published and signed on Flower's platform. Here the hash of the app is stored on the node, and compared
before anything of the app is stored or loaded; someone who controls the SuperLink cannot change it.

    python -m steppe.flower.supernode --app-hash FILE ...Flower's own options
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.common.config import get_fab_config, get_metadata_from_config
from flwr.common.constant import ISOLATION_MODE_PROCESS
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supernode import main as runtime
from flwr.supernode import start_client_internal as worker

from steppe.flower.app_hash import hash_bundle
from steppe.flower.own_user import admit_only_own_user

command = importlib.import_module("flwr.supernode.cli.flower_supernode")  # in its package, a function has the same name


def is_trusted(run: Any, fab: Fab, wanted: str) -> bool:
    """Return whether this is the app with the wanted hash, under its own name, and run as a client."""
    try:
        right = hash_bundle(fab.content) == wanted and hashlib.sha256(fab.content).hexdigest() == fab.hash_str
        named = (run.fab_id, run.fab_version) == get_metadata_from_config(get_fab_config(fab.content))
        return right and named and run.fab_hash == fab.hash_str and run.primary_task_type != TaskType.AGENT_APP
    except Exception as error:  # an unreadable bundle is not trusted
        print(f"steppe: the app cannot be read: {error}", flush=True)
        return False


def pin(path: Path) -> None:
    """Make this process's SuperNode refuse every app but the one whose hash is in the file."""
    pull = worker._pull_and_store_message
    runs: dict[str, Any] = {}

    def pull_pinned(**given: Any) -> int | None:
        get_run, get_fab = given["get_run"], given["get_fab"]

        def ask_run(run_id: int) -> Any:
            runs["last"] = get_run(run_id)
            return runs["last"]

        def mark(fab_hash: str, run_id: int) -> Fab:
            fab = get_fab(fab_hash, run_id)
            return Fab(fab.hash_str, fab.content, {"valid_license": "pinned"})  # so that Flower calls `_verify_fab`

        return pull(**{**given, "get_run": ask_run, "get_fab": mark, "trusted_entities": {"app": str(path)}})

    def verify(fab: Fab, _: dict[str, str]) -> bool:
        trusted = is_trusted(runs["last"], fab, path.read_text().strip())
        if not trusted:
            print("steppe: refused an app that is not the one this node was set up with", flush=True)
        return trusted

    worker._pull_and_store_message = pull_pinned  # type: ignore[assignment]
    worker._verify_fab = verify  # type: ignore[assignment]


class Pauses:
    """Shorten Flower's pauses between checks for work from up to 3 s to a tenth of the time since the last message."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.05 + (time.monotonic() - self.last) / 10))


class Forks:
    """The process that runs ClientApps by fork, started again if it dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def keep(self, address: str) -> None:
        while True:
            command = [sys.executable, "-P", "-m", "steppe.flower.superexec", address]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
            self.ring()  # a task may have been waiting when the last one died
            self.process.wait()
            time.sleep(1)

    def ring(self) -> None:
        """Signal that there is a task."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.write(b".")


def speed_up() -> None:
    """Make this process's SuperNode check for work often and, on Linux, where it is safe, fork its ClientApps."""
    pull, start, pauses, forks = worker._pull_and_store_message, command.start_client_internal, Pauses(), Forks()

    def pull_and_ring(**given: Any) -> int | None:
        found = pull(**given)
        if found is not None:
            pauses.last = time.monotonic()
            forks.ring()
        return found

    def start_with_forks(**given: Any) -> None:
        threading.Thread(target=forks.keep, args=(given["runtime_api_address"],), daemon=True).start()
        start(**{**given, "isolation": ISOLATION_MODE_PROCESS})

    worker._pull_and_store_message, worker.time = pull_and_ring, pauses  # type: ignore[assignment,attr-defined]
    if sys.platform == "linux":
        command.start_client_internal = start_with_forks  # type: ignore[attr-defined]


def forget_imports() -> None:
    """Take what was imported out of the garbage collector's hands.

    Flower leaves cycles of large objects with every message. Python looks for them only when a quarter of all objects
    are new, which with those of all imports takes some ninety rounds and 10 MB; without them, a few rounds.
    """
    gc.freeze()
    gc.collect()  # counts anew


def main() -> None:
    parser = argparse.ArgumentParser(prog="steppe.flower.supernode", add_help=False)
    parser.add_argument("--app-hash", type=Path, required=True, metavar="FILE", help="the hash of the app to run")
    ours, sys.argv[1:] = parser.parse_known_args()
    if not ours.app_hash.is_file():
        sys.exit(
            f"{ours.app_hash} does not exist: it holds the hash of the app to run. Create it with steppe federate pin."
        )
    pin(ours.app_hash.resolve())
    speed_up()
    create = runtime.create_app
    runtime.create_app = lambda *a, **k: admit_only_own_user(create(*a, **k))  # type: ignore[assignment]
    forget_imports()
    command.flower_supernode()


if __name__ == "__main__":
    main()
