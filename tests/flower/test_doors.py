"""What passes the SuperLink's doors, and which app a node takes: in this process, one question at a time."""

import asyncio
import hashlib
import io
import logging
import os
import socket
import threading
import zipfile
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace

import pytest
import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TaskType
from flwr.supercore.fab import Fab

from steppe.config import resolve
from steppe.flower import own_user, superlink
from steppe.flower.app_hash import FILE, hash_app, hash_bundle
from steppe.flower.create import init, pin
from steppe.flower.own_user import is_own_user
from steppe.flower.superlink import JOIN, LARGEST, OBJECT, OPEN, REPLY, SMALL, Doors, Impatient, escape_log, find_fault
from steppe.flower.supernode import is_trusted

NODES, CONTROL = 8000, 8001
CONFIG = resolve({"clients": 2, "per_round": 2})


def ask(doors, path, body=b"", port=NODES, method="POST", headers=(), pieces=1):
    """The status that a request gets; 200 is Flower's."""
    said = []
    cut = -(-len(body) // pieces) or 1
    parts = [body[i : i + cut] for i in range(0, len(body), cut)] or [b""]
    messages = [{"type": "http.request", "body": p, "more_body": i < len(parts) - 1} for i, p in enumerate(parts)]

    async def receive():
        return messages.pop(0)

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [*headers], "client": ("203.0.113.9", 5555),
             "server": ("127.0.0.1", port)}  # fmt: skip
    asyncio.run(doors(scope, receive, send))
    return said[0]["status"]


@pytest.fixture
def doors():
    """Before an application that says yes to everything, and has heard `bodies`."""
    bodies = []

    async def yes(scope, receive, send):
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    made = Doors(yes, NODES, 10 * 2**20, keys=True, own_user=False)
    made.bodies = bodies
    return made


def reply(source=7, node=7, answers="abc"):
    metadata = Metadata(src_node_id=source, reply_to_message_id=answers)
    return PushMessagesRequest(node=Node(node_id=node), messages_list=[Message(metadata=metadata)]).SerializeToString()


def test_nodes_find_what_they_need_and_nothing_else(doors):
    for path in OPEN:
        assert ask(doors, path, reply() if path == REPLY else b"") == 200
    heard = len(doors.bodies)
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/", *JOIN,
                 "/v1/fleet/../control/start-run", "/v1/fleet/get-run/", "/V1/FLEET/GET-RUN"):  # fmt: skip
        assert ask(doors, path) == 404, path
    assert ask(doors, OPEN[0], method="GET") == 404
    assert len(doors.bodies) == heard


def test_the_other_door_is_for_the_same_user(doors, monkeypatch):
    assert ask(doors, "/v1/control/start-run", port=CONTROL) == 403
    monkeypatch.setattr(own_user, "is_own_user", lambda *_: True)
    assert ask(doors, "/v1/control/start-run", port=CONTROL) == 200


def test_without_keys_loopback_is_for_the_same_user():
    async def yes(*_):
        raise AssertionError

    assert ask(Doors(yes, NODES, 10**6, keys=False, own_user=True), JOIN[0]) == 403


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_request_has_a_largest_size(doors, pieces):
    for path, limit in ((OPEN[0], SMALL), (OBJECT, min(LARGEST[OBJECT], 10 * 2**20))):
        assert ask(doors, path, bytes(limit), pieces=pieces) == 200
        doors.sent.clear()
        assert ask(doors, path, bytes(limit + 1), pieces=pieces) == 413
        assert ask(doors, path, b"", headers=[(b"content-length", str(2**40).encode())]) == 413
        assert ask(doors, path, b"", headers=[(b"content-length", b"-1")]) == 413


def test_a_request_that_never_arrives_is_given_up(doors, monkeypatch):
    monkeypatch.setattr(superlink, "PATIENCE", 0.05)
    said = []

    async def receive():
        await asyncio.sleep(3600)

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": OBJECT, "headers": [], "server": ("127.0.0.1", NODES)}
    asyncio.run(doors(scope, receive, send))
    assert said[0]["status"] == 408
    assert not doors.bodies


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n"]
)
def test_a_connection_without_a_request_is_closed(sent, monkeypatch):
    """Nothing, half of the first request, half of the second."""
    monkeypatch.setattr(superlink, "PATIENCE", 0.2)
    answers = _answers_to(sent)
    assert answers.count(b"200 OK") == sent.count(b"\r\n\r\n")


def test_headers_have_a_largest_size():
    assert b"400 Bad Request" in _answers_to(b"POST / HTTP/1.1\r\nX: " + b"a" * 10**6)


def _answers_to(sent: bytes) -> bytes:
    """All that is answered until the server closes the connection."""

    async def yes(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(uvicorn.Config(yes, http=Impatient, lifespan="off", log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        with socket.create_connection(bound.getsockname(), timeout=60) as client:
            found = b""
            with suppress(ConnectionError):  # it may be closed before everything is sent
                client.sendall(sent)
                while more := client.recv(4096):
                    found += more
        server.should_exit = True
        thread.join()
    return found


def test_a_reply_has_a_largest_size(doors):
    """Objects add up until the next reply is announced, by the node's key."""
    mine, other = ([(FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), key)] for key in (b"mine", b"other"))
    assert [ask(doors, OBJECT, bytes(4 * 2**20), headers=mine) for _ in range(4)] == [200, 200, 413, 413]
    assert ask(doors, OBJECT, bytes(4 * 2**20), headers=other) == 200
    assert ask(doors, REPLY, reply(), headers=mine) == 200
    assert ask(doors, OBJECT, bytes(4 * 2**20), headers=mine) == 200
    assert ask(doors, OBJECT, bytes(10), headers=mine + other) == 400  # whose is it?


def test_a_node_may_only_reply_and_only_in_its_own_name(doors):
    assert find_fault(reply()) == ""
    assert "in its own name" in find_fault(reply(source=8))
    assert "only reply" in find_fault(reply(answers=""))
    assert "not a message" in find_fault(b"\xff" * 40)
    assert ask(doors, REPLY, reply(source=8)) == 400
    assert not doors.bodies


def test_a_terminal_does_not_obey_what_flower_logs():
    """Flower quotes what nodes send; a node could also add lines."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.addFilter(escape_log)
    handler.handle(logging.makeLogRecord({"msg": "type %s", "args": ("\x1b]0;x\x07\nanother line",)}))
    assert said.getvalue() == "type \\x1b]0;x\\x07\\nanother line\n"


def test_the_user_of_a_connection(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        here, there = client.getsockname(), server.getsockname()
        accepted, _ = server.accept()
        assert is_own_user(here, there)
        assert not is_own_user((here[0], here[1] ^ 1), there)
        assert not is_own_user(("203.0.113.9", here[1]), there)
        assert not is_own_user(None, there)
        if own_user.TABLE.exists():
            monkeypatch.setattr(os, "getuid", lambda: 65534)
            assert not is_own_user(here, there)
            monkeypatch.undo()
            client.close()  # the kernel says that a closed socket is root's
            assert not is_own_user(here, there)
        client.close()
        accepted.close()


# --- the app


@pytest.fixture
def federation(tmp_path):
    init(tmp_path / "f", CONFIG)
    return tmp_path / "f"


def test_the_hash_is_of_everything_that_can_run(federation):
    app = federation / "app"
    first = hash_app(app)
    assert [(federation / "nodes" / str(i) / FILE).read_text().strip() for i in range(2)] == [first, first]
    toml = app / "federation.toml"
    toml.write_text(toml.read_text().replace("rounds = ", "rounds = 1"))
    assert hash_app(app) == first  # more rounds run the same code
    for path, text in ((app / "steppe_app/own.py", "x = 1\n"), (app / "steppe_app/client_app.py", "import os\n"),
                       (app / "pyproject.toml", "# \n"), (toml, '[own]\nmodel = "os:getcwd"\n')):  # fmt: skip
        before = path.read_text() if path.exists() else None
        path.write_text((before or "") + text)
        changed = hash_app(app)
        assert (changed != first) is (path.name != "pyproject.toml"), path  # of which comments are dropped
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
    assert hash_app(app) == first
    (app / "steppe_app/own.py").write_text("x = 1\n")
    assert pin(federation) != first
    assert (federation / "nodes/1" / FILE).read_text().strip() == hash_app(app)


def bundle(entries):
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in entries:
            file.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bundle_that_is_not_what_it_seems(federation):
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import get_fab_config, get_metadata_from_config

    good = build_fab_from_disk(federation / "app")
    wanted = hash_app(federation / "app")
    with zipfile.ZipFile(BytesIO(good)) as file:
        entries = [(name, file.read(name)) for name in file.namelist()]
    name, version = get_metadata_from_config(get_fab_config(good))

    def trusted(content, **other):
        digest = hashlib.sha256(content).hexdigest()
        told = {"fab_id": name, "fab_version": version, "fab_hash": digest, "primary_task_type": ""} | other
        return is_trusted(SimpleNamespace(**told), Fab(other.get("hash_str", digest), content, {}), wanted)

    assert trusted(good)
    assert trusted(bundle(entries))
    evil = ("steppe_app/client_app.py", b"import os\n")
    assert not trusted(bundle([*entries, ("evil.py", b"")]))
    assert not trusted(bundle([*entries, evil]))  # twice: which one is installed?
    assert not trusted(bundle([evil if e[0] == evil[0] else e for e in entries]))
    assert not trusted(bundle([*entries, (".info/more.py", b"")]))
    assert not trusted(bundle([e for e in entries if e[0] != evil[0]]))
    assert not trusted(good[:-10])
    assert not trusted(b"PK")
    assert not trusted(good, fab_version="1.0.0/../../elsewhere")
    assert not trusted(good, fab_id="other/app")
    assert not trusted(good, fab_hash="0" * 64)
    assert not trusted(good, hash_str="0" * 64)
    assert not trusted(good, primary_task_type=TaskType.AGENT_APP)
    big = ("federation.toml", b"x = '" + b" " * (33 * 2**20) + b"'")
    assert not trusted(bundle([big if e[0] == "federation.toml" else e for e in entries]))
    with pytest.raises(ValueError, match="twice"):
        hash_bundle(bundle([*entries, evil]))
