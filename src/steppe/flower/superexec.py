"""Run each ClientApp in a forked process, so that torch and Steppe are imported only once per node.

Flower's SuperExec starts a new Python for every message, which takes seconds. This one forks instead. Each message
still has its own process: it cannot see another message's memory, another app's modules do not interfere, and killing
it does not affect the next one. This process itself loads no app and has one thread. A byte on its standard input means
that there may be a task. When the input ends, the SuperNode has ended, and this process ends too.

    python -m steppe.flower.superexec ADDRESS
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec as flower
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supernode.runtime.run_clientapp import run_clientapp

import steppe.flower.client_app  # noqa: F401  the forked processes find it imported


class Forks(SubprocessExecutor):
    """Flower's executor of tasks, for ClientApps alone, by fork."""

    def get_eligible_capacity(self, *_: object, **__: object) -> tuple[set[TaskType], set[str]]:
        return {TaskType.CLIENT_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if os.fork() == 0:
            run(spec)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Wait for a task. Flower calls this before it asks for one."""
        if not os.read(sys.stdin.fileno(), 1):
            sys.exit()


def run(spec: ExecutionSpec) -> None:
    """Run a task in the forked process, which ends here, without cleaning up what belongs to its parent."""
    code: object = 1
    try:
        for sign in (*exit_handler.SIGNAL_TO_EXIT_CODE, signal.SIGCHLD):
            signal.signal(sign, signal.SIG_DFL)
        exit_handler.registered_exit_handlers.clear()
        run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, parent_pid=spec.parent_pid)
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forked processes
    gc.freeze()  # what was imported stays shared with them
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.01"
    flower.get_executor = lambda *_, **__: Forks()  # type: ignore[attr-defined]
    flower.run_superexec(sys.argv[1], insecure=True)


if __name__ == "__main__":
    main()
