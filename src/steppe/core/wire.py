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
    return {"x": sent.x, **list_states(sent.down, "down"), **_add_prefix(sent.buffers, "buffers")}


def read_sent(tensors: Tensors, lr: Tensor, round_: Tensor) -> Sent:
    return Sent(tensors["x"], read_states(tensors, "down"), _strip_prefix(tensors, "buffers"), lr, round_)


def list_reply(reply: Reply, mirrored: bool = False) -> Tensors:
    states = list_states(reply.state, "state") if mirrored else {}
    return {"update": reply.update, **list_states(reply.up, "up"), **states, **_add_prefix(reply.buffers, "buffers")}


def read_reply(tensors: Tensors, loss: Tensor, drift: Tensor, algorithm: Algorithm) -> Reply:
    empty: States = {p.name: {} for p in algorithm.parts}
    mirrored = read_states(tensors, "state")
    state = empty | mirrored if mirrored else {}
    buffers = _strip_prefix(tensors, "buffers")
    return Reply(tensors["update"], empty | read_states(tensors, "up"), buffers, loss, drift, state)


def list_states(states: States, kind: str) -> Tensors:
    return _add_prefix(flatten_states(states), kind)


def read_states(tensors: Tensors, kind: str) -> States:
    return nest_states(_strip_prefix(tensors, kind))


def flatten_states(states: States) -> Tensors:
    """Return the states with keys `part/name`."""
    return {f"{part}/{name}": v for part, tensors in states.items() for name, v in tensors.items()}


def nest_states(tensors: Tensors) -> States:
    """Return the states by part and name."""
    tree: States = {}
    for name, value in tensors.items():
        part, _, key = name.partition("/")
        tree.setdefault(part, {})[key] = value
    return tree


def _add_prefix(tensors: Tensors, kind: str) -> Tensors:
    return {f"{kind}/{name}": v for name, v in tensors.items()}


def _strip_prefix(tensors: Tensors, kind: str) -> Tensors:
    return {k.removeprefix(kind + "/"): v for k, v in tensors.items() if k.startswith(kind + "/")}
