"""Keep a process and its descendants together: none of them outlives the command that started it.

    python -m steppe.flower.end_with_parent PARENT COMMAND...

Flower's processes start others in their own sessions, and some try forever to reach a server that is gone. The
keeper inherits orphans (on Linux) and ends all of them when its parent has died for any reason.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

POLITE, LOOK = 20.0, 0.2  # seconds between asking and killing, and between two checks
SUBREAPER = 36  # of prctl: orphans of this process's descendants become its children


def find_descendants(pid: int) -> list[int]:
    """Return all living descendants of this process, from the kernel's table; none if there is no such table."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, open_ = [], [pid]
    while open_:
        found += (new := children.get(open_.pop(), []))
        open_ += new
    return found


def end_descendants(pid: int, polite: float = POLITE) -> None:
    """End all descendants of this process: ask first, then kill; with `polite` = 0, kill at once."""
    for sign, patience in [(signal.SIGTERM, polite)] * (polite > 0) + [(signal.SIGKILL, 10.0)]:
        until, asked = time.monotonic() + patience, set[int]()
        while (left := find_descendants(pid)) and time.monotonic() < until:
            for one in left:
                if one not in asked or sign == signal.SIGKILL:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(one, sign)
                asked.add(one)
            time.sleep(0.05)


def reap() -> None:
    """Collect the exit codes of children that have ended, including inherited ones."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1)
    asked: list[int] = []
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: asked.append(number))
    child = subprocess.Popen(command)
    while not asked and os.getppid() == parent:
        reap()
        try:
            os.kill(child.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(LOOK)
    end_descendants(os.getpid())
    if sys.platform != "linux":
        child.terminate()


if __name__ == "__main__":
    main()
