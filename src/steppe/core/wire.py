"""The messages between server and clients as flat dicts of tensors. Only this file uses their names.

to a client    x, down/<part>/<name>, buffers/<name>
to the server  update, up/<part>/<name>, buffers/<name>; state/<part>/<name> where the server mirrors it
"""

from __future__ import annotations

from torch import Tensor

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Reply, Sent
from steppe.core.layout import Tensors


def list_work(sent: Sent) -> Tensors:
    return {"x": sent.x, **list_states(sent.down, "down"), **_prefixed(sent.buffers, "buffers")}


def read_sent(tensors: Tensors, lr: Tensor, round_: Tensor) -> Sent:
    return Sent(tensors["x"], read_states(tensors, "down"), _strip(tensors, "buffers"), lr, round_)


def list_reply(reply: Reply, mirrored: bool = False) -> Tensors:
    states = list_states(reply.state, "state") if mirrored else {}
    return {"update": reply.update, **list_states(reply.up, "up"), **states, **_prefixed(reply.buffers, "buffers")}


def read_reply(tensors: Tensors, loss: Tensor, drift: Tensor, algorithm: Algorithm) -> Reply:
    empty: States = {p.name: {} for p in algorithm.parts}
    mirrored = read_states(tensors, "state")
    state = empty | mirrored if mirrored else {}
    buffers = _strip(tensors, "buffers")
    return Reply(tensors["update"], empty | read_states(tensors, "up"), buffers, loss, drift, state)


def list_states(states: States, kind: str) -> Tensors:
    return {f"{kind}/{part}/{name}": v for part, tensors in states.items() for name, v in tensors.items()}


def read_states(tensors: Tensors, kind: str) -> States:
    tree: States = {}
    for name, value in _strip(tensors, kind).items():
        part, _, key = name.partition("/")
        tree.setdefault(part, {})[key] = value
    return tree


def _prefixed(tensors: Tensors, kind: str) -> Tensors:
    return {f"{kind}/{name}": v for name, v in tensors.items()}


def _strip(tensors: Tensors, kind: str) -> Tensors:
    return {k.removeprefix(kind + "/"): v for k, v in tensors.items() if k.startswith(kind + "/")}
