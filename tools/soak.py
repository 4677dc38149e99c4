"""Run a thousand rounds while processes die at random; check the model, the memory and that nothing is left behind.

    python tools/soak.py simulation --rounds 1000 --seed 0 --out tools/results/soak-simulation.json
    python tools/soak.py federation --rounds 1000 --seed 0 --minutes 60 --out tools/results/soak-federation.json

`simulation` kills worker processes with SIGKILL at random moments and resumes each time, all in one process, and
compares model, records and client states to the bit with an undisturbed run. `federation` starts a real SuperLink and
real SuperNodes on loopback, with TLS and keys; at random, a node is killed, stopped by a signal, or leaves normally,
and returns. The model must be the one of a simulation with the clients that were counted. With --work FOLDER it can be
ended at any time (by --minutes, Ctrl-C or kill) and continued by the same command; its figures are then added up.

Both have their own temporary folder and mark their processes, so that leftovers can be counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"  # of the processes that are started, too
MARK = "STEPPE_SOAK"
MB = 2**20
SMALL = {"data": "digits", "model": "mlp", "algorithm": "scaffold", "dtype": "float64", "batch": 20, "epochs": 1,
         "max_steps": 1, "lr": 0.05, "partition": "dirichlet(1.0)"}  # fmt: skip


def resident(pid: int) -> float:
    """Return the memory of a process in MiB; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MB
    except (OSError, IndexError):
        return 0.0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Memory:
    """Resident memory of one process over rounds."""

    def __init__(self, seen: list[tuple[int, float]] | None = None) -> None:
        self.seen = seen or []

    def look(self, round_: int, pid: int) -> None:
        if (size := resident(pid)) > 0:
            self.seen.append((round_, size))

    def told(self) -> dict[str, Any]:
        """Return the means of the first and last tenth, without the first rounds, and the slope of a straight line."""
        seen = self.seen[len(self.seen) // 10 :]
        if len(seen) < 20:
            return {"looks": len(self.seen)}
        tenth = max(len(seen) // 10, 1)
        rounds, sizes = zip(*seen, strict=True)
        middle_r, middle_s = sum(rounds) / len(seen), sum(sizes) / len(seen)
        spread = sum((r - middle_r) ** 2 for r in rounds)
        slope = sum((r - middle_r) * (s - middle_s) for r, s in seen) / spread if spread else 0.0
        return {"looks": len(seen), "start_mib": round(sum(sizes[:tenth]) / tenth, 1),
                "end_mib": round(sum(sizes[-tenth:]) / tenth, 1), "largest_mib": round(max(sizes), 1),
                "slope_mib_per_1000_rounds": round(1000 * slope, 2)}  # fmt: skip


def find_marked(mark: str) -> list[str]:
    """Return the processes with this mark in their environment, apart from this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(command_of(int(path.parent.name))[:120])
    return [text for text in found if text]  # without zombies


def leftovers(temporary: Path, mark: str, patience: float = 60.0) -> dict[str, list[str]]:
    """Return what a soak has left behind; processes have a minute to end."""
    until = time.monotonic() + patience
    while (processes := find_marked(mark)) and time.monotonic() < until:
        time.sleep(0.5)
    return {"processes": processes, "files": sorted(str(p.relative_to(temporary)) for p in temporary.rglob("*"))}


# ------------------------------------------------------------------------------------------------------- simulation
def simulation(rounds: int, seed: int, work: Path, temporary: Path, mark: str, pause: int = 20) -> dict[str, Any]:
    from tests.scene import remains

    import steppe
    from steppe.flower.end_with_parent import find_descendants

    options = {**SMALL, "clients": 10, "per_round": 3, "rounds": rounds, "workers": 2, "store": "disk",
               "progress": False, "checkpoint_every": 5, "evaluate_every": 50}  # fmt: skip
    algorithm, model, data = (options.pop(key) for key in ("algorithm", "model", "data"))
    undisturbed = remains(work / "whole", steppe.run(algorithm, model, data, out=work / "whole", **options))
    memory, draw, over = Memory(), random.Random(seed), threading.Event()
    kills = failures = 0

    def kill_workers() -> None:
        nonlocal kills
        while not over.is_set():
            if draw.random() < 0.2:  # now and then, also while new workers start
                over.wait(draw.uniform(0, 5))
            else:
                until = len(memory.seen) + draw.randrange(1, 2 * pause)
                while len(memory.seen) < until and not over.wait(0.02):
                    pass
                over.wait(draw.uniform(0, 0.1))
            workers = [p for p in find_descendants(os.getpid()) if "steppe.executors.workers" in command_of(p)]
            if workers and not over.is_set():
                os.kill(draw.choice(workers), signal.SIGKILL)
                kills += 1

    killer = threading.Thread(target=kill_workers, daemon=True)
    killer.start()
    while True:
        try:
            result = steppe.run(algorithm, model, data, out=work / "killed", resume=True,
                                watch=lambda record: memory.look(record["round"], os.getpid()), **options)  # fmt: skip
            break
        except steppe.RunFailed as error:
            if "worker process ended unexpectedly" not in str(error):
                raise
            failures += 1
            print(f"killed {kills} times, {memory.seen[-1][0] if memory.seen else 0} rounds", flush=True)
    over.set()
    killer.join()
    same = remains(work / "killed", result) == undisturbed
    return {"rounds": rounds, "kills": kills, "resumes": failures, "same_bits": same, "memory": {"run": memory.told()}}


# ------------------------------------------------------------------------------------------------------- federation
class Unrest(threading.Thread):
    """Nodes that leave at random, in one of three ways, and return."""

    WAYS = ("kill", "stop", "leave")

    def __init__(self, local: Any, clients: int, seed: int, pause: int) -> None:
        super().__init__(daemon=True)
        self.local, self.clients, self.pause = local, clients, pause
        self.draw, self.over, self.counts = random.Random(seed), threading.Event(), dict.fromkeys(self.WAYS, 0)

    def run(self) -> None:
        while not self.over.wait(self.draw.uniform(0.2, 2) * self.pause):
            self.disturb(self.draw.randrange(self.clients), self.draw.choice(self.WAYS), self.draw.uniform(1, 40))

    def disturb(self, client: int, way: str, seconds: float) -> None:
        from steppe.flower.end_with_parent import find_descendants
        from steppe.flower.launch import end_keeper

        process = self.local.nodes.get(client)
        if process is None:
            self.local.start_node(client)
            return
        self.counts[way] += 1
        if way == "stop":
            stopped = find_descendants(process.pid)
            _signal(stopped, signal.SIGSTOP)
            self.over.wait(seconds)
            _signal(stopped, signal.SIGCONT)
        else:
            self.local.nodes.pop(client, None)
            end_keeper(process, kill=way == "kill")
            self.over.wait(seconds)
            self.local.start_node(client)


def _signal(pids: list[int], sign: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


class Enough(Exception):
    """Raised when time is up."""


def federation(rounds: int, seed: int, work: Path, temporary: Path, mark: str, minutes: float = 1e9, segment: int = 250,
               nodes: int = 2, pause: int = 60, deadline: float = 60.0) -> dict[str, Any]:  # fmt: skip
    from steppe.config import resolve
    from steppe.core.errors import RunFailed
    from steppe.flower.create import init
    from steppe.flower.launch import Local, is_reachable, register, submit
    from steppe.runs.folder import RunFolder

    folder, notes = work / "federation", work / "progress.json"
    config = resolve({**SMALL, "clients": nodes, "per_round": nodes, "rounds": segment, "evaluate_every": 1000})
    if not folder.exists():
        init(folder, config, tls=True, name="soak", enough=1, least=1, deadline=deadline)
    told = {"sessions": 0, "seconds": 0.0, "resumes": 0, "left": {}, "code": [], "memory": {}}
    told |= json.loads(notes.read_text()) if notes.exists() else {}
    memory = {name: Memory([tuple(pair) for pair in seen]) for name, seen in told["memory"].items()}
    local, began = Local(folder), time.monotonic()
    until, run, before = began + 60 * minutes, folder / "run", dict(told)
    unrest = Unrest(local, nodes, seed + told["sessions"], pause)
    this = {"first_round": len(RunFolder(run).history) + 1, "commit": _commit()}

    def write_down() -> None:
        left = {way: before["left"].get(way, 0) + count for way, count in unrest.counts.items()}
        code = [*before["code"], this | {"last_round": len(RunFolder(run).history)}]
        told.update(code=code, left=left, seconds=before["seconds"] + time.monotonic() - began,
                    sessions=before["sessions"] + 1,
                    memory={name: one.seen for name, one in memory.items()})  # fmt: skip
        notes.write_text(json.dumps(told))

    def look(record: dict[str, Any]) -> None:
        """Write one line of memory for each process, as long as it lives."""
        print(f"round {record['round']}: {record['clients']} clients, {record['seconds']['all']:.1f} s", flush=True)
        for name, pid in _find_processes(local, run):
            memory.setdefault(f"{name}, process {pid} of session {before['sessions']}", Memory()).look(
                record["round"], pid
            )
        if record["round"] % 10 == 0:
            write_down()
        if time.monotonic() > until:
            raise Enough

    try:
        if minutes <= 0:  # only the figures so far
            raise Enough
        local.start_superlink()
        for client in range(nodes):
            register(local.folder, client)
            local.start_node(client)
        unrest.start()
        while (done := len(RunFolder(run).history)) < rounds:
            asked, resume = time.time(), (run / "config.json").exists()
            submit(local.folder, resume, f"rounds={min(done - done % segment + segment, rounds)}")
            try:
                local.follow(look, asked, resume)
            except RunFailed as error:  # all nodes were away for longer than `wait`
                if "good replies" not in str(error) and "are needed" not in str(error):
                    raise
                told["resumes"] += 1
                print(error, flush=True)
    except Enough:
        print("the time is up", flush=True)
    finally:
        unrest.over.set()
        if unrest.is_alive():
            unrest.join(120)
        local.stop()
        if minutes > 0:
            write_down()
    done = len(RunFolder(run).history)
    return {"rounds": done, "rounds_asked": rounds, "nodes": nodes, "seconds": round(told["seconds"]),
            "seconds_per_round": round(told["seconds"] / max(done, 1), 2), "sessions": told["sessions"],
            "code": told["code"], "left": told["left"], "resumes": told["resumes"], "memory": _longest(memory),
            **_compare(folder, done),
            "open_ports": [port for port in (local.port, local.control) if is_reachable("127.0.0.1", port)],
            "waits": _count(run / "server.log", "The round is repeated")}  # fmt: skip


def _find_processes(local: Any, run: Path) -> list[tuple[str, int]]:
    """Return the long-lived processes of a federation by name."""
    from steppe.flower.end_with_parent import find_descendants
    from steppe.flower.server_status import read_status

    found = [("server", read_status(run).get("pid", 0))]
    keepers = [("superlink", local.superlink), *((f"node {c}", p) for c, p in list(local.nodes.items()))]
    for name, process in keepers:
        # A forked app has the command of the process that forked it, which comes first.
        below = {pid: command_of(pid) for pid in find_descendants(process.pid)} if process else {}
        for kind, more in (("superlink", ""), ("supernode", ""), ("superexec", ", forks")):
            found += [(name + more, pid) for pid, text in below.items() if f"-m steppe.flower.{kind}" in text][:1]
    return found


def _commit() -> str:
    """Return the commit of this checkout; `-dirty` if files differ."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def _count(path: Path, text: str) -> int:
    return path.read_text().count(text) if path.exists() else 0


def _longest(memory: dict[str, Memory]) -> dict[str, Any]:
    """Return, of each kind of process, the one that was seen most often: it had the most time to grow."""
    kinds: dict[str, Memory] = {}
    for name, one in memory.items():
        kind = name.partition(", process")[0]
        if kind not in kinds or len(one.seen) > len(kinds[kind].seen):
            kinds[kind] = one
    return {kind: one.told() for kind, one in kinds.items()}


def _compare(folder: Path, rounds: int) -> dict[str, Any]:
    """Compare the recorded model with the simulator's, with the clients that were counted."""
    from tests.flower.memory import replay

    from steppe.flower.federation_file import read_federation_file
    from steppe.flower.node_store import NodeStore
    from steppe.runs import checkpoint
    from steppe.runs.folder import RunFolder

    history = RunFolder(folder / "run").history
    schedule = [r.get("participants", []) for r in history]
    saved, complaints = checkpoint.load(folder / "run" / "checkpoints", NodeStore(dict))
    server, _ = replay(read_federation_file(folder / "app", [f"rounds={rounds}"])[1], schedule)
    assert saved is not None, complaints
    return {"rounds_recorded": len(history), "rounds_with_absent_nodes": sum("dropped" in r for r in history),
            "refused": sum(len(r.get("refused", [])) for r in history),
            "largest_difference": float((saved.server.x - server.x).abs().max())}  # fmt: skip


SOAKS: dict[str, Callable[..., dict[str, Any]]] = {"simulation": simulation, "federation": federation}


def soak(kind: str, rounds: int, seed: int, work: Path | None = None, **more: Any) -> dict[str, Any]:
    """Run a soak in its own folders; return its figures."""
    from importlib.metadata import version

    mark = os.environ[MARK] = uuid.uuid4().hex
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as home:
        work, temporary = work.resolve() if work else Path(home, "work"), Path(home, "temporary")
        work.mkdir(exist_ok=True)
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        told = SOAKS[kind](rounds, seed, work, temporary, mark, **more)
        told["leftovers"] = leftovers(temporary, mark)
    names = ("steppe", "torch", "flwr") if kind == "federation" else ("steppe", "torch")
    return {"soak": kind, "seed": seed, "seconds": round(time.monotonic() - began), **told,
            "versions": {"python": sys.version.split()[0], **{name: version(name) for name in names}},
            "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=SOAKS)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=int, help="between two disturbances: rounds (simulation), seconds (federation)")
    parser.add_argument("--minutes", type=float, help="federation: minutes until the end; 0: only the figures so far")
    parser.add_argument("--segment", type=int, help="federation: rounds of one run, whose server is one process")
    parser.add_argument("--deadline", type=float, help="federation: seconds per round")
    parser.add_argument("--work", type=Path, help="a folder to keep, from which the same command continues")
    parser.add_argument("--out", type=Path)
    given = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    out = given.pop("out", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that folders are removed and processes ended
    text = json.dumps(soak(**given), indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
