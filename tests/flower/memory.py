"""A grid in memory: messages become bytes and messages again on both ways, as they do on a real one."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from steppe.core.server import Server
from steppe.data import load
from steppe.data.divide import divide
from steppe.engine.build import build_experiment
from steppe.engine.play_round import play_round
from steppe.engine.progress import handle_logs
from steppe.executors.sequential import Sequential
from steppe.flower import federation_file
from steppe.flower.client_app import make_app
from steppe.flower.federation_file import Own
from steppe.flower.server_app import run_federation
from steppe.runs.client_store import MemoryStore

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # what Flower's processes set at their start

USUAL = {
    "data": "digits", "model": "mlp", "clients": 3, "per_round": 2, "rounds": 3, "epochs": 1, "batch": 20, "lr": 0.05,
    "momentum": 0.5, "partition": "dirichlet(1.0)", "device": "cpu", "dtype": "float64", "max_steps": 4,
    "sampling_seed": 5, "executor": "sequential", "workers": 0,
}  # fmt: skip


def through_bytes(message: Message) -> tuple[Message, list[bytes]]:
    contents = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
    raw = list(contents.values())
    again = inflate_object_from_contents(message.object_id, contents)
    again.metadata.__dict__["_message_id"] = message.object_id
    return again, raw


class MemoryLink:
    """What the SuperLink's runtime API does for replies: messages by what they answer, their objects by name."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple] = {}  # question -> reply, its tree
        self.objects: dict[str, bytes] = {}
        self.pulled = 0  # bytes that the server has asked for

    def put(self, question: str, message: Message, objects: dict[str, bytes] | None = None, tree=None) -> None:
        """A node's reply; with `objects`, whatever a node may put in the place of its content."""
        message.metadata.__dict__["_message_id"] = message.object_id
        proto = message_to_proto(remove_content_from_message(message))
        self.waiting[question] = proto, tree or get_object_tree(message)
        real = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
        self.objects |= real if objects is None else objects

    def PullMessages(self, request):
        found = [self.waiting.pop(q) for q in request.message_ids if q in self.waiting]
        return PullAppMessagesResponse(messages_list=[m for m, _ in found], message_object_trees=[t for _, t in found])

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        if content is None:
            return PullObjectResponse(object_found=False)
        self.pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=content != b"", object_content=content)

    def ConfirmMessageReceived(self, request):
        return ConfirmMessageReceivedResponse()


class MemoryGrid(Grid):
    """Nodes in this process. `spoil` may change a reply, hold it back by giving None, or send what it likes itself."""

    def __init__(self, configs: dict[int, dict], spoil=None, own: Own | None = None) -> None:
        self.configs, self.spoil = dict(configs), spoil or (lambda message, node: message)
        self.app = make_app(own or Own())
        self.link = self._runtime_client = MemoryLink()
        self.node = Node(node_id=SUPERLINK_NODE_ID)
        self.keys: dict[int, bytes] = {}
        self.sent_up: list[bytes] = []
        self.log: list[tuple[str, int]] = []

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        return Run.create_empty(1)

    def create_message(self, *_, **__):
        raise NotImplementedError

    def send_and_receive(self, *_, **__):
        raise NotImplementedError

    def pull_messages(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.configs)

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.configs]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            arrived, _ = through_bytes(message)
            ids.append(message.object_id)
            self.log.append((message.metadata.message_type, node))
            context = Context(1, node, self.configs[node], RecordDict(), {})
            reply = self.spoil(self.app(arrived, context), node)
            if reply is not None:
                self.sent_up += through_bytes(reply)[1]
                self.link.put(ids[-1], reply)
        return ids


def node_folders(where: Path, config) -> dict[int, dict]:
    """A node for each client, with its share of the data set; node ids have nothing to do with client numbers."""
    data = load(config.data, config.data_folder)
    split = divide(data, config.partition, config.clients, config.partition_seed)[1]
    configs = {}
    for client, mine in enumerate(split.clients):
        path = where / f"node-{client}"
        path.mkdir(parents=True)
        np.savez(path / "data.npz", x=data.train_inputs[mine].numpy(), y=data.train_targets[mine].numpy())
        configs[9000 - 7 * client] = {"client": client, "data": str(path / "data.npz"), "state": str(path / "state"),
                                      "device": "cpu"}  # fmt: skip
    return configs


def settings_of(run: dict, **terms) -> tuple[federation_file.FederationFile, object]:
    settings = federation_file.parse({"name": "test", "run": {**USUAL, **run}, "deadline": 0.5, "wait": 1.0, **terms})
    return settings, settings.config()


class Into(logging.Handler):
    """What is said, in a list."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self.told = told

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def launch(where: Path, run: dict, spoil=None, out=None, resume=False, grid=None, terms=None, keys=None):
    """A federation in memory; returns (result, grid, what was said)."""
    settings, config = settings_of(run, **(terms or {}))
    grid = grid or MemoryGrid(node_folders(where / "nodes", config), spoil, settings.own)
    told: list[str] = []
    with _quietly(), handle_logs(Into(told)):
        return run_federation(grid, settings, config, out, resume, keys), grid, told


@contextmanager
def _quietly():
    """Tiny work is done on one thread; some variants of the catalogue warn."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def replay(config, schedule):
    """What must have come out: the simulator's own rounds, with exactly these clients. Returns (server, store)."""
    with _quietly():
        built = build_experiment(config)
    task, algorithm = built.task, built.algorithm
    store = MemoryStore(lambda: algorithm.client_state(task.x0))
    server = Server(task.x0, algorithm.server_state(task.x0), task.buffers)
    work = Sequential(algorithm, task, built.federation)
    for t, ids in enumerate(schedule):
        server = play_round(built, server, store, work, t, ids, built.lr(t)).after
    return server, store


def states_on_disk(nodes: Path, name: str = "test") -> dict[int, dict[int, dict]]:
    """client -> round -> its state's tensors, as they lie in the nodes' folders."""
    found: dict[int, dict[int, dict]] = {}
    for path in sorted(nodes.glob(f"*/state/{name}/client-*/round-*.safetensors")):
        client, round_ = int(path.parent.name.removeprefix("client-")), int(path.stem.removeprefix("round-"))
        found.setdefault(client, {})[round_] = load_file(path)
    return found
