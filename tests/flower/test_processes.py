"""Real SuperLink and SuperNode processes, with TLS and node keys, and real signals. One federation serves all tests."""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from steppe.config import resolve
from steppe.core.errors import RunFailed
from steppe.engine.progress import handle_logs
from steppe.flower.certificates import write_node_key
from steppe.flower.create import init, pin
from steppe.flower.end_with_parent import find_descendants
from steppe.flower.federation_file import read_federation_file
from steppe.flower.launch import Local, end_keeper, register, run_flwr, submit
from steppe.flower.node_store import NodeStore
from steppe.flower.scripts import CONNECTION
from steppe.flower.server_status import is_alive, read_status
from steppe.runs import checkpoint
from steppe.runs.folder import RunFolder
from tests.flower.memory import USUAL, Into, replay, states_on_disk

pytestmark = pytest.mark.slow
RUN = {**USUAL, "dtype": "float32", "per_round": 3}


def is_running(pid: int) -> bool:
    """Whether a process is more than an entry in a table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Trial:
    """A federation of three nodes, and what tests do with it."""

    def __init__(self, where: Path) -> None:
        self.folder, self.said = where / "trial", []
        init(self.folder, resolve({k: v for k, v in RUN.items() if k != "executor"}), tls=True, name="test")
        self.local = Local(self.folder)
        self.local.start_superlink()
        for client in range(3):
            register(self.folder, client)
            self.local.start_node(client)
        self.terms = (self.folder / "app" / "federation.toml").read_text()
        self.slow = 30.0  # what a round takes on this machine, measured by the first run

    def rules(self, **terms) -> None:
        lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in terms.items())
        (self.folder / "app" / "federation.toml").write_text(lines + self.terms)

    def unruly(self, faults: dict[int, dict[int, str]]) -> None:
        """From the next run on, nodes may misbehave."""
        shutil.copy(Path(__file__).parent / "unruly.py", self.folder / "app" / "steppe_app" / "client_app.py")
        pin(self.folder)
        for client in range(3):
            home = self.folder / "nodes" / str(client)
            for old in (*home.glob("busy-*"), *home.glob("gate-*")):
                old.unlink()
            (home / "faults.json").write_text(json.dumps({str(t): f for t, f in faults.get(client, {}).items()}))

    def begin(self, out: str, sets: str, resume: bool = False) -> threading.Thread:
        """Submit a run and follow it in a thread, whose `error` says how it ended."""
        asked = time.time()
        submit(self.folder, resume, sets, out)

        def follow() -> None:
            try:
                self.local.follow(lambda _: None, asked, resume, out)
            except RunFailed as error:
                thread.error = str(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.error = None
        thread.start()
        return thread

    def play(self, out: str, sets: str) -> None:
        thread = self.begin(out, sets)
        thread.join(400)
        assert not thread.is_alive(), self.said
        assert thread.error is None, (thread.error, self.said)

    def until(self, what, patience: float = 300.0) -> None:
        limit = time.monotonic() + patience
        while not what():
            assert time.monotonic() < limit, self.said
            time.sleep(0.05)

    def busy(self, client: int, round_: int) -> bool:
        return (self.folder / "nodes" / str(client) / f"busy-{round_}").exists()

    def history(self, out: str) -> list[dict]:
        return RunFolder(self.folder / out).history

    def check(self, out: str, sets: str, schedule: list[list[int]] | None = None) -> None:
        """The recorded model and server state are those of the simulator with the clients that were counted."""
        _, config = read_federation_file(self.folder / "app", sets.split())
        history = self.history(out)
        if schedule is None:
            schedule = [[0, 1, 2]] * len(history)
        assert [r["clients"] for r in history] == [len(ids) for ids in schedule]
        saved, complaints = checkpoint.load(self.folder / out / "checkpoints", NodeStore(dict))
        assert saved is not None
        assert not complaints
        assert saved.round == len(schedule)
        server, _ = replay(config, schedule)
        assert float((saved.server.x - server.x).abs().max()) < 1e-6
        for part, tensors in server.state.items():
            for name, value in tensors.items():
                assert torch.allclose(saved.server.state[part][name], value, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    made = Trial(tmp_path_factory.mktemp("federation"))
    with handle_logs(Into(made.said)):
        yield made
    made.local.stop()


@pytest.mark.parametrize("name", ["fedsol", "fedsmoo"])
def test_equals_the_simulator(name, trial):
    """SCAFFOLD, the third, is in every test below."""
    sets = f"algorithm={name} rounds=2"
    trial.play(f"run-{name}", sets)
    trial.check(f"run-{name}", sets)
    told = json.loads((trial.folder / f"run-{name}" / "result.json").read_text())["nodes"]
    assert told["missing"] == told["refused"] == 0
    assert 1 <= told["bytes_up"] / told["table_up"] < 1.02
    trial.slow = told["overhead_seconds"] + told["training_seconds"]


def test_the_server_and_the_superlink_are_killed(trial):
    """Kill -9 of the server in round 2 and of the SuperLink in round 3; each time, resume goes on."""
    sets, out = "algorithm=scaffold rounds=3", "run-killed"
    trial.unruly({})
    thread = trial.begin(out, sets)
    trial.until(lambda: trial.busy(1, 1))
    os.kill(read_status(trial.folder / out)["pid"], signal.SIGKILL)
    thread.join(60)
    assert thread.error == "The server's process has died."
    assert len(trial.history(out)) == 1

    thread = trial.begin(out, sets, resume=True)
    trial.until(lambda: trial.busy(1, 2))
    end_keeper(trial.local.superlink, kill=True)
    thread.join(60)
    assert thread.error.startswith("The SuperLink has stopped")
    assert len(trial.history(out)) == 2

    with suppress(AssertionError):  # the server goes with it, but for Flower's client that now and then tries for ever
        trial.until(lambda: read_status(trial.folder / out) and not is_alive(trial.folder / out), patience=60.0)
    if is_alive(trial.folder / out):
        os.kill(read_status(trial.folder / out)["pid"], signal.SIGKILL)
    trial.local.start_superlink()
    thread = trial.begin(out, sets, resume=True)
    thread.join(400)
    assert thread.error is None
    trial.check(out, sets)


def test_a_node_is_killed_in_its_round_and_comes_back(trial):
    """The round ends with the others; the node goes on with the control variate that it had."""
    sets, out = "algorithm=scaffold rounds=4", "run-node"
    trial.unruly({2: {1: "wait"}, 0: {2: "wait"}})
    thread = trial.begin(out, sets)
    trial.until(lambda: trial.busy(2, 1))
    end_keeper(trial.local.nodes[2], kill=True)
    trial.until(lambda: len(trial.history(out)) == 2)  # Flower gives a silent node up after a minute
    trial.local.start_node(2)
    trial.until(lambda: any("client 2 is connected" in text for text in trial.said))
    (trial.folder / "nodes" / "0" / "gate-2").touch()
    thread.join(400)
    assert thread.error is None
    assert [r.get("dropped") for r in trial.history(out)] == [None, [2], [2], None]
    trial.check(out, sets, [[0, 1, 2], [0, 1], [0, 1], [0, 1, 2]])
    assert sorted(states_on_disk(trial.folder / "nodes")[2]) == [0, 3]


def _online(trial) -> int:
    told = run_flwr(trial.local.folder, "supernode", "list", CONNECTION, "--format", "json").stdout
    return told.count('"online"')


def test_bad_replies_and_a_straggler(trial):
    """NaN, a wrong shape, a stale round, another algorithm, too late: refused or dropped, named, never averaged."""
    sets, out = "algorithm=scaffold rounds=4", "run-bad"
    trial.unruly({1: {0: "nan", 1: "stale", 2: "wait"}, 2: {0: "shape", 1: "other"}})
    trial.rules(deadline=max(20.0, 3 * trial.slow))
    thread = trial.begin(out, sets)
    trial.until(lambda: len(trial.history(out)) == 3)
    (trial.folder / "nodes" / "1" / "gate-2").touch()
    thread.join(400)
    trial.rules()
    assert thread.error is None
    first, second = ({r["client"]: r["why"] for r in record["refused"]} for record in trial.history(out)[:2])
    assert "not finite" in first[1]
    assert "has shape (27605, 2) and type 'float32'" in first[2]
    assert "is for round 0, but 1 was requested" in second[1]
    assert "is for fingerprint '0000000000000000'" in second[2]
    third, fourth = trial.history(out)[2:]
    assert (third.get("dropped"), third.get("refused")) == ([1], None)
    assert (fourth.get("dropped"), fourth.get("refused")) == (None, None)
    trial.check(out, sets, [[0], [0], [0, 2], [0, 1, 2]])


def test_too_few_nodes_and_nodes_without_the_right_key(trial):
    """Two nodes claim to be the missing client, one with a key that nobody registered, one with none."""
    node = trial.folder / "nodes" / "3"
    shutil.copytree(
        trial.folder / "nodes" / "2", node, ignore=shutil.ignore_patterns("state", ".flower", "key*", "*.log")
    )
    write_node_key(node)
    script = (node / "node.sh").read_text().replace("client=2", "client=3")
    (node / "node.sh").write_text(script)
    keyless = trial.folder / "nodes" / "4"
    shutil.copytree(node, keyless)
    (keyless / "node.sh").write_text(script.replace("--auth-supernode-private-key key", ""))
    trial.local.start_node(3)
    trial.local.start_node(4)
    trial.until(lambda: "Failed to activate SuperNode" in (node / "node.log").read_text())
    trial.until(lambda: "register-node" in (keyless / "node.log").read_text())  # where nodes knock, that is not found
    patience, error = max(15.0, 2 * trial.slow), ""
    for attempt in range(4):  # on a busy machine, even the three take their time
        trial.rules(wait=patience)
        thread = trial.begin(f"run-few-{attempt}", "algorithm=fedavg rounds=1 clients=4")
        thread.join(patience + 200)
        error = thread.error
        if error is None or "3 can take part" in error:
            break
        patience *= 2
    trial.rules()
    assert error == (f"4 nodes are needed and 3 can take part after {patience:g} s: no node for client 3. "
                     "Start these nodes, or lower `enough`.")  # fmt: skip
    assert _online(trial) == 3
    for log in (node / "node.log", keyless / "node.log"):
        assert "SuperNode ID" not in log.read_text(), log.read_text()


def test_everything_stops(trial):
    """Also what Flower's processes start in sessions of their own."""
    keepers = [p.pid for p in (trial.local.superlink, *trial.local.nodes.values())]
    all_of_them = [pid for keeper in keepers for pid in (keeper, *find_descendants(keeper))]
    assert len(all_of_them) >= 4 * 4  # each a keeper, a shell or its Python, and Flower's own
    trial.local.stop()
    assert not [pid for pid in all_of_them if is_running(pid)]
