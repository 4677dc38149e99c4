"""An outsider with ca.crt and the nodes' address, an operator with an app of his own, another user of the machine.

Real processes with TLS and node keys, on loopback. What is tried here worked, step by step, before the SuperLink had
two doors and nodes had a hash of their app: it gave away samples, labels and all private keys.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from steppe.config import resolve
from steppe.flower.create import init
from steppe.flower.end_with_parent import find_descendants
from steppe.flower.launch import Local, register, run_flwr
from steppe.flower.superlink import JOIN, OBJECT, OPEN
from tests.flower.memory import USUAL
from tests.flower.test_processes import is_running

pytestmark = pytest.mark.slow
SPY = """
from pathlib import Path
Path({mark!r}).touch()
from flwr.{kind}app import {name}
app = {name}()
"""
CONTROL = {"register-node": RegisterNodeRequest(public_key=b"x"), "list-nodes": ListNodesRequest(),
           "start-run": StartRunRequest()}  # fmt: skip


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outsider") / "trial"
    run = {k: v for k, v in USUAL.items() if k != "executor"} | {"clients": 2, "rounds": 1}
    init(folder, resolve(run), tls=True, name="test")
    made = Local(folder)
    try:
        made.start_superlink()
        for client in range(2):
            register(folder, client)
            made.start_node(client)
        until = time.monotonic() + 120
        while run_flwr(folder, "supernode", "list", "--format", "json").stdout.count('"online"') < 2:
            assert time.monotonic() < until, (folder / "nodes/0/node.log").read_text()
            time.sleep(1)
        yield made
    finally:
        made.stop()


@pytest.fixture
def outsider(local, tmp_path):
    """A folder with ca.crt, and Flower's command line pointed at what nodes reach."""
    shutil.copy(local.folder / "nodes" / "0" / "ca.crt", tmp_path / "ca.crt")
    home = tmp_path / ".flower"
    home.mkdir()
    address, certificate = json.dumps(f"127.0.0.1:{local.port}"), json.dumps(str(tmp_path / "ca.crt"))
    (home / "config.toml").write_text('[superlink]\ndefault = "x"\n\n[superlink.x]\n'
                                      f"address = {address}\nroot-certificates = {certificate}\n")  # fmt: skip
    return tmp_path


def command(where: Path, *words: str) -> str:
    env = {**os.environ, "FLWR_HOME": str(where / ".flower"), "FLWR_TELEMETRY_ENABLED": "0", "NO_COLOR": "1",
           "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # fmt: skip
    done = subprocess.run(["flwr", *words], cwd=where, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 or "rror" in done.stdout, done.stdout
    return done.stdout + done.stderr


def write_spy(local: Local, where: Path) -> tuple[Path, Path]:
    """An app that leaves a mark wherever one of its sides is loaded."""
    app, marks = where / "app", where / "marks"
    shutil.copytree(local.folder / "app", app)
    marks.mkdir()
    for kind, name in (("client", "ClientApp"), ("server", "ServerApp")):
        text = SPY.format(mark=str(marks / kind), kind=kind, name=name)
        (app / "steppe_app" / f"{kind}_app.py").write_text(text)
    with (app / "steppe_app" / "server_app.py").open("a") as file:
        file.write(
            """
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
@app.main()
def main(grid, context):
    content = RecordDict({"a": ConfigRecord({"a": 1})})
    asked = [Message(content, node, MessageType.QUERY) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked, timeout=90))
    text = [r.error.code if r.has_error() else "ran" for r in replies]
    Path(MARKS, "replies").write_text(str(text))
""".replace("MARKS", repr(str(marks)))
        )
    return app, marks


def test_the_outsider_reaches_nothing_but_what_nodes_need(local, outsider):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(outsider / "key")], check=True)
    assert "404" in command(outsider, "supernode", "register", "key.pub", "x")
    assert "404" in command(outsider, "supernode", "list", "x")
    _, marks = write_spy(local, outsider)
    assert "404" in command(outsider, "run", "app", "x")
    with httpx.Client(verify=str(outsider / "ca.crt"), base_url=f"https://127.0.0.1:{local.port}") as client:
        headers = {"content-type": PROTOBUF_MEDIA_TYPE, "x-forwarded-for": "127.0.0.1"}
        for name, message in CONTROL.items():
            assert (
                client.post(f"/v1/control/{name}", content=message.SerializeToString(), headers=headers).status_code
                == 404
            )
        take = client.post(
            "/v1/runtime/acquire-task", content=AcquireTaskRequest().SerializeToString(), headers=headers
        )
        assert take.status_code == 404
        tricks = ["/", "/docs", "/openapi.json", "/health", "//v1/control/list-nodes", "/v1/control/", *JOIN,
                  "/v1/fleet/../control/list-nodes", "/v1/fleet/..%2fcontrol/list-nodes",
                  "/v1/control/list-nodes#/v1/fleet/get-run"]  # fmt: skip
        for path in tricks:
            assert {client.get(path).status_code, client.post(path).status_code} == {404}, path
        # What is open asks for a registered key, before it says anything.
        for path in OPEN:
            assert client.post(path, content=b"", headers=headers).status_code == 401, path
        assert client.post(OBJECT, content=bytes(17 * 2**20), headers=headers).status_code == 413
    assert not list(marks.iterdir())
    with pytest.raises(OSError):  # the other door is on loopback alone
        _connect_from_outside(local.control)


def _connect_from_outside(port: int) -> None:
    """By an address of this machine that is not loopback."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: this only asks which address would be used
        mine = probe.getsockname()[0]
    if mine.startswith("127."):
        raise OSError("this machine has no other address")
    socket.create_connection((mine, port), timeout=5).close()


def test_a_key_of_his_own_is_of_no_use(local, outsider):
    private, public = generate_key_pairs()
    signed = [NodeAuthHttpInterceptor(private, public)]
    with FleetHttpClient.from_server_address(f"127.0.0.1:{local.port}", False, str(outsider / "ca.crt"),
                                             interceptors=signed) as client:  # fmt: skip
        key = public_key_to_bytes(public)
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
        with pytest.raises(httpx.HTTPStatusError):
            client.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30))
        # Nor may anybody write to a node: whatever is pushed must be a reply.
        message = ProtoMessage(metadata=Metadata(run_id=1, message_id="a", dst_node_id=5, message_type="query"))
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            client.PushMessages(PushMessagesRequest(messages_list=[message]))


def test_a_node_runs_only_the_app_that_it_was_set_up_with(local, tmp_path):
    """Here the attacker is the operator, or has the operator's account: the server's side runs, no node's does."""
    app, marks = write_spy(local, tmp_path)
    kept = local.folder / "other"
    shutil.copytree(app, kept)
    told = run_flwr(local.folder, "run", "other", "--format", "json").stdout
    assert '"success": true' in told, told
    until = time.monotonic() + 150
    while not (marks / "replies").exists():
        assert time.monotonic() < until, (local.folder / "nodes/0/node.log").read_text()[-3000:]
        time.sleep(0.5)
    assert (marks / "replies").read_text() == "[7, 7]"  # INVALID_FAB, of both
    assert not (marks / "client").exists()
    assert not list(local.folder.glob("nodes/*/.flower/apps/*"))
    for client in range(2):
        assert "refused an app that is not the one" in (local.folder / f"nodes/{client}/node.log").read_text()
    shutil.rmtree(kept)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_turned_away(local, outsider):
    """From the operator's door, and from those of the nodes' own processes."""
    ports = [local.control, *(int(p) for p in _node_ports(local))]
    program = """
import encodings.idna, os, ssl, sys, urllib.request, urllib.error
os.setgroups([]); os.setgid(65534); os.setuid(65534)
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(urllib.request.Request(url, data=b""), context=context, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
    door = f"https://127.0.0.1:{ports[0]}/v1"
    urls = [f"{door}/control/list-nodes", f"{door}/runtime/acquire-task",
            *(f"http://127.0.0.1:{p}/v1/runtime/acquire-task" for p in ports[1:])]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program, *urls], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["403"] * 4, done
    same_user = program.replace("os.setgroups([]); os.setgid(65534); os.setuid(65534)", "")
    mine = subprocess.run([sys.executable, "-c", same_user, *urls], capture_output=True, text=True, timeout=60)
    assert "403" not in mine.stdout.split()
    for path in (local.folder / "operator" / "state.db", local.folder / "nodes" / "0" / "key"):
        assert path.stat().st_mode & 0o077 == 0
    assert not [p for p in local.folder.rglob("*") if p.stat().st_mode & 0o077]


def _node_ports(local: Local) -> list[str]:
    found = []
    for process in local.nodes.values():
        for pid in find_descendants(process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"steppe.flower.supernode" in words:
                found.append(words[words.index(b"--port") + 1].decode())
    return found


def test_after_kill_9_of_up_nothing_stays_behind(tmp_path):
    """A federation that runs, and whose command is killed as the kernel does when memory is short."""
    words = ["federate", "up", "trial", "--nodes", "2", "--tls", "--rounds", "50", "--set", "model=mlp"]
    up = subprocess.Popen([sys.executable, "-c", "from steppe.cli.app import main; main()", *words], cwd=tmp_path,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        until = time.monotonic() + 200
        while not (tmp_path / "trial" / "run" / "rounds.jsonl").exists():
            assert up.poll() is None
            assert time.monotonic() < until
            time.sleep(0.5)
        mine = find_descendants(up.pid)
        assert len(mine) >= 12  # three keepers; a SuperLink, two nodes, their executors, apps at work
        os.kill(up.pid, signal.SIGKILL)
        up.wait()
        until = time.monotonic() + 60
        while left := [pid for pid in mine if is_running(pid)]:
            assert time.monotonic() < until, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
            time.sleep(0.5)
        ours = str(tmp_path).encode()
        assert not [
            p for p in Path("/proc").glob("[0-9]*/environ") if p.parent.name != str(os.getpid()) and _has(p, ours)
        ]
    finally:
        up.kill()
        up.wait()


def _has(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:
        return False
