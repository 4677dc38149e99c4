"""Build the same model, algorithm and task on the server and on the nodes; only the data differ.

Both sides follow federation.toml. A node has its own data; the server has made-up samples of the same shape instead.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.client import Reply, begin, end
from steppe.core.cost import Cost
from steppe.core.errors import SettingError, SteppeError
from steppe.core.inputs import Inputs, name_type, take
from steppe.core.server import Server, aggregate, broadcast
from steppe.core.shared_copies import hash_tensors
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.data import Data, Partition, from_arrays, load
from steppe.data.partition import ON_NODE
from steppe.engine.build import build_experiment
from steppe.experiment import Experiment
from steppe.flower.federation_file import FederationFile, Input, Own, Sample, call_named, check_secret, find_named
from steppe.flower.node_data import read_data
from steppe.flower.own_files import check_loads
from steppe.flower.refusals import Refusal

Pair = tuple[Inputs, Tensor]
STAND_INS = 2  # batch norm needs at least two


def describe_data(settings: FederationFile, config: Config) -> tuple[Sample, Pair | None]:
    """Return the form of a sample and the server's test data, from a known data set or from federation.toml."""
    test: Pair | None = None
    if settings.data is None:
        known = load(config.data, config.data_folder)
        x, y = known.train_inputs, known.train_targets
        if not isinstance(x, Tensor):
            raise SteppeError(f"{config.data} has several inputs per sample, which a federation cannot send yet.")
        sample = Sample(
            shape=list(x.shape[1:]), inputs=name_type(x), named=None, columns=None, classes=known.classes,  # type: ignore[arg-type]
            targets=name_type(y),  # type: ignore[arg-type]
            class_names=list(known.class_names) if known.class_names else None, target_shape=list(y.shape[1:]),
            mean=list(known.mean), std=list(known.std), tokens=known.tokens,
        )  # fmt: skip
        test = known.test_inputs, known.test_targets
    else:
        sample = settings.data
    if settings.test is not None:
        test = read_data(settings.test, sample, "the server's test data")
    return sample, test


def build_server(settings: FederationFile, config: Config, sample: Sample, test: Pair | None) -> Experiment:
    """Return the server's experiment: no training data, and the test set if there is one."""
    x, y = _make_stand_ins(sample)
    data = _make_data(sample, config.data, x, y, test)
    built = _build(config, settings.own, data, None)
    check_secret(built.algorithm)
    return built


def build_node(own: Own, config: Config, sample: Sample, cost: Cost, pair: Pair, client: int) -> Experiment:
    """Return a node's experiment: its samples belong to one client, and all others are empty."""
    split = [np.arange(0)] * config.clients
    split[client] = np.arange(len(pair[1]))
    data = _make_data(sample, f"client {client}", *pair)
    return _build(config, own, data, Partition(tuple(split), ON_NODE, 0), cost)


def _build(config: Config, own: Own, data: Data, split: Partition | None, cost: Cost | None = None) -> Experiment:
    check_loads(own, config)
    torch.manual_seed(config.seed)  # a user's model is initialised from it, as a named one is
    model, parts = call_named(own.model, "own.model"), call_named(own.parts, "own.parts")
    loss = None if own.loss is None else _find_function(own.loss, "own.loss")
    several = [own.metric] if isinstance(own.metric, str) else own.metric or []
    metrics = [_find_function(name, "own.metric") for name in several] or None
    predict = None if own.predict is None else find_named(own.predict, "own.predict")
    return build_experiment(config, parts, model, data, loss, metrics, own.head, split, cost, at_nodes=split is None,
                            predict=predict)  # fmt: skip


def _find_function(name: str, what: str) -> Any:
    """Return a loss or metric: "module:name" of the user's Python, or the name of a built-in one with settings."""
    return name if ":" not in name or "=" in name else find_named(name, what)


def _make_data(sample: Sample, name: str, x: Inputs, y: Tensor, test: Pair | None = None) -> Data:
    names = tuple(sample.class_names) if sample.class_names else None
    test = test or (take(x, slice(0)), y[:0])
    return from_arrays(x, y, *test, name=name, classes=sample.classes, class_names=names,
                       mean=tuple(sample.mean), std=tuple(sample.std), tokens=sample.tokens)  # fmt: skip


def _make_stand_ins(sample: Sample) -> Pair:
    g = torch.Generator().manual_seed(0)

    def make(one: Input) -> Tensor:
        shape = (STAND_INS, *one.shape)
        if one.inputs == "uint8":
            return torch.randint(256, shape, generator=g).to(torch.uint8)
        if one.inputs == "float32":
            return torch.randn(shape, generator=g)
        return torch.full(shape, one.inputs == "bool", dtype=getattr(torch, one.inputs))  # token 0, or no padding

    inputs = {name: make(one) for name, one in sample.list_inputs().items()}
    y = torch.zeros((STAND_INS, *sample.target_shape), dtype=getattr(torch, sample.targets))
    return inputs.get("", inputs), y


def compute_fingerprint(built: Experiment) -> str:
    """Hash the algorithm, the layout, and all of the model that is neither trained nor sent."""
    task = built.task
    digest = hashlib.sha256(repr((built.algorithm.parts, task.layout.names, task.layout.shapes, task.head)).encode())
    digest.update(repr([(k, tuple(v.shape)) for k, v in task.buffers.items()]).encode())
    digest.update(hash_tensors(task.constants).encode())
    return digest.hexdigest()[:16]


def trace_reply(algorithm: Algorithm, task: Task) -> tuple[Reply, bool]:
    """Return the form of a reply, and whether the server's rules need clients' states, as FedScar's do."""
    # Robust rules and noise act on many replies and may fail on a single one, so they are left out.
    algorithm = Algorithm(tuple(p for p in algorithm.parts if not p.has("reduce") and not p.has("screen")))
    asked = []
    x, one = task.x0, task.x0.new_tensor(1.0)
    state, server = algorithm.client_state(x), Server(x, algorithm.server_state(x), task.buffers)
    rows = stack([state])
    try:
        server, sent = broadcast(algorithm, task.layout, server, one, 0 * one)
    except SettingError:
        asked.append("before the round")
        server, sent = broadcast(algorithm, task.layout, server, one, 0 * one, rows)

    def gather_state(part: str, name: str) -> Tensor:
        asked.append(name)
        found: Tensor = rows[part][name]
        return found

    with torch.no_grad():
        reply = end(algorithm, task, sent, begin(algorithm, task, sent, state, one), one)
        aggregate(algorithm, task.layout, server, sent, stack([reply]), one[None], 1, gather_state)
    return reply, bool(asked)


def check_same(built: Experiment, told: str) -> None:
    mine = compute_fingerprint(built)
    if mine != told:
        raise Refusal("model", f"this node's model or algorithm ({mine}) differs from the server's ({told}): "
                               "install the same versions of steppe, torch and your own code on both.")  # fmt: skip
