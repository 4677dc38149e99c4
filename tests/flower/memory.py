"""A grid in memory: messages become bytes and messages again on both ways, as they do on a real one."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from steppe.core.server import Server
from steppe.data import load
from steppe.data.partition import make as make_partition
from steppe.engine.experiment import experiment
from steppe.engine.rounds import play
from steppe.executors.sequential import Sequential
from steppe.flower import federation_file
from steppe.flower.client_app import app
from steppe.flower.server_app import federated
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


class MemoryGrid(Grid):
    """Nodes in this process. `spoil` may change a reply, or hold it back by giving None."""

    def __init__(self, configs: dict[int, dict], spoil=None) -> None:
        self.configs, self.spoil = dict(configs), spoil or (lambda message, node: message)
        self.replies: dict[str, Message] = {}
        self.sent_up: list[bytes] = []
        self.log: list[tuple[str, int]] = []

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError

    def send_and_receive(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            arrived, _ = through_bytes(message)
            ids.append(message.object_id)
            self.log.append((message.metadata.message_type, node))
            context = Context(1, node, self.configs[node], RecordDict(), {})
            reply = self.spoil(app(arrived, context), node)
            if reply is not None:
                back, raw = through_bytes(reply)
                self.sent_up += raw
                self.replies[ids[-1]] = back
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in message_ids if i in self.replies]


def node_folders(where: Path, config) -> dict[int, dict]:
    """A node for each client, with its share of the data set; node ids have nothing to do with client numbers."""
    data = load(config.data)
    split = make_partition(config.partition, data.train_targets, config.clients, config.partition_seed,
                           classes=data.classes)  # fmt: skip
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


def launch(where: Path, run: dict, spoil=None, out=None, resume=False, grid=None, terms=None):
    """A federation in memory; returns (result, grid, what was said)."""
    settings, config = settings_of(run, **(terms or {}))
    grid = grid or MemoryGrid(node_folders(where / "nodes", config), spoil)
    told: list[str] = []
    with _quietly():
        return federated(grid, settings, config, out, resume, told.append), grid, told


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
        built = experiment(config)
    task, algorithm = built.task, built.algorithm
    store = MemoryStore(lambda: algorithm.client_state(task.x0))
    server = Server(task.x0, algorithm.server_state(task.x0), task.buffers)
    work = Sequential(algorithm, task, built.federation)
    for t, ids in enumerate(schedule):
        server = play(built, server, store, work, t, ids, built.lr(t), lambda _: None).after
    return server, store


def states_on_disk(nodes: Path, name: str = "test") -> dict[int, dict[int, dict]]:
    """client -> round -> its state's tensors, as they lie in the nodes' folders."""
    found: dict[int, dict[int, dict]] = {}
    for path in sorted(nodes.glob(f"*/state/{name}/client-*/round-*.safetensors")):
        client, round_ = int(path.parent.name.removeprefix("client-")), int(path.stem.removeprefix("round-"))
        found.setdefault(client, {})[round_] = load_file(path)
    return found
