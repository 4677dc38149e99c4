"""A node's own program: the app that it takes, its forked apps, its pauses, and the certificate that it trusts."""

import gc
import hashlib
import os
import signal
import ssl
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode import start_client_internal as worker
from flwr.supernode.nodestate import NodeStateFactory

from steppe.config import resolve
from steppe.flower import superexec, supernode
from steppe.flower.app_hash import FILE
from steppe.flower.certificates import write_certificates
from steppe.flower.create import init
from tests.flower import memory  # noqa: F401 - as a process of Flower, which has a number


@pytest.fixture
def flower(monkeypatch):
    """Flower's own program, whose functions are as before after the test."""
    for name in ("_pull_and_store_message", "_verify_fab", "time"):
        monkeypatch.setattr(worker, name, getattr(worker, name))
    return monkeypatch


def test_only_the_pinned_app_is_stored(flower, tmp_path):
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import get_fab_config, get_metadata_from_config

    init(tmp_path / "f", resolve({"clients": 2, "per_round": 2}))
    supernode.pin(tmp_path / "f/nodes/0" / FILE)
    good = build_fab_from_disk(tmp_path / "f/app")
    (tmp_path / "f/app/steppe_app/evil.py").write_text("import os\n")
    evil = build_fab_from_disk(tmp_path / "f/app")
    name, version = get_metadata_from_config(get_fab_config(good))

    def receive(content):
        """Return (error of the reply, whether the app was stored) after a message of a run of this app."""
        factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        state, store = factory.state(), factory.objectstore_factory.store()
        state.set_node_id(1)
        message = Message(RecordDict(), 1, MessageType.TRAIN)
        message.metadata.__dict__["_message_id"] = message.object_id
        message.metadata.__dict__["_run_id"] = 7
        run = Run.create_empty(7)
        run.fab_id, run.fab_version, run.fab_hash = name, version, hashlib.sha256(content).hexdigest()
        objects = {message.object_id: message.deflate()}
        worker._pull_and_store_message(
            state=state, object_store=store, node_config={}, receive=lambda: (message, get_object_tree(message)),
            get_run=lambda _: run, get_fab=lambda digest, _: Fab(digest, content, {}),
            pull_object=lambda _, name: objects[name] if name in objects else RecordDict().deflate(),
            confirm_message_received=lambda *_: None, trusted_entities=None,
        )  # fmt: skip
        replies = state.get_messages_legacy(is_reply=True)
        return [reply.error.code for reply in replies], state.get_run(7) is not None

    assert receive(evil) == ([ErrorCode.INVALID_FAB], False)
    assert receive(good) == ([], True)


def test_an_app_runs_in_a_forked_process_of_its_own(monkeypatch, tmp_path):
    """It sees what is imported, leaves no trace here, and its death is its own."""
    told = tmp_path / "told"

    def app(address, token, insecure, parent_pid):
        told.write_text(f"{os.getpid()} {os.getppid()} {address} {token} {insecure} {parent_pid}")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        monkeypatch.setenv("OWN", "1")
        sys.exit(3)

    monkeypatch.setattr(superexec, "run_clientapp", app)
    forks, spec = superexec.Forks(), SimpleNamespace(runtime_api_address="here", token="t", insecure=True, parent_pid=4)
    assert forks.get_eligible_capacity({TaskType.AGENT_APP}) == ({TaskType.CLIENT_APP}, set())
    forks.launch(spec)
    pid, status = os.wait()
    assert told.read_text() == f"{pid} {os.getpid()} here t True 4"
    assert os.waitstatus_to_exitcode(status) == 3
    assert "OWN" not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="apps are forked on Linux only")
def test_the_process_that_forks_ends_with_its_node():
    """Its input ends when the node does, however it ended."""
    command = [sys.executable, "-P", "-m", "steppe.flower.superexec", "127.0.0.1:9"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process.stdin.close()
    assert process.wait(60) == 0


def test_pauses_are_a_tenth_of_the_time_since_the_last_message(monkeypatch):
    slept, times = [], iter([100.0, 100.0, 110.0, 1000.0])
    monkeypatch.setattr(supernode, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=slept.append))
    pauses = supernode.Pauses()
    for _ in range(3):
        pauses.sleep(3)
    assert slept == pytest.approx([0.05, 1.05, 3.0])


def test_a_node_looks_for_garbage_among_what_is_new():
    """Full collections are due when a quarter of all objects are new; those of the imports must not count."""
    try:
        supernode.forget_imports()
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    finally:
        gc.unfreeze()


def test_a_message_rings_for_the_process_that_forks(flower):
    flower.setattr(supernode.command, "start_client_internal", lambda **given: started.append(given))
    found, started, rung = [None, 5], [], []
    flower.setattr(worker, "_pull_and_store_message", lambda **_: found.pop(0))
    flower.setattr(supernode.Forks, "ring", lambda self: rung.append(time.monotonic()))
    flower.setattr(supernode.Forks, "keep", lambda self, address: rung.append(address))
    supernode.speed_up()
    assert worker._pull_and_store_message() is None
    assert rung == []
    assert worker._pull_and_store_message() == 5
    assert len(rung) == 1
    supernode.command.start_client_internal(runtime_api_address="127.0.0.1:5", isolation="subprocess")
    assert started == [{"runtime_api_address": "127.0.0.1:5",
                        "isolation": "process" if sys.platform == "linux" else "subprocess"}]  # fmt: skip


def test_the_certificate_is_one_that_openssl_accepts(tmp_path):
    """A handshake in memory: for the hosts that it names, signed by the CA, and for no other host."""
    write_certificates(tmp_path, ["server.example.org", "127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    def shake(host, authority):
        client = ssl.create_default_context(cafile=authority)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [client.wrap_bio(to_client, to_server, server_hostname=host),
                server.wrap_bio(to_server, to_client, server_side=True)]  # fmt: skip
        for _ in range(4):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        return ends[0].version()

    assert shake("server.example.org", tmp_path / "ca.crt") == shake("127.0.0.1", tmp_path / "ca.crt") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake("elsewhere.example.org", tmp_path / "ca.crt")
    write_certificates(tmp_path / "other", ["server.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake("server.example.org", tmp_path / "other/ca.crt")
