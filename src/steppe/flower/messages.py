"""Tensors and terms as Flower's records, and back: the one place that knows how things are named on the wire.

to a node      arrays   x, down/<part>/<name>, buffers/<name>; x0 for a client that has no state yet
               terms    the federation's terms, fingerprint, round, lr, the round of the client's last counted reply
to the server  arrays   update, up/<part>/<name>, buffers/<name>; state/<part>/<name> where the server mirrors it
               told     federation, client, round, fingerprint, samples, loss, drift, seconds
               refusal  or nothing but a code: why not
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Reply, Sent
from steppe.core.layout import Tensors

ARRAYS, TERMS, TOLD, REFUSAL = "arrays", "terms", "told", "refusal"


class Work(NamedTuple):
    """A round's message as a node reads it."""

    sent: Sent
    terms: str
    fingerprint: str
    counted: int  # the round of this client's last reply that the server counted; −1: none
    mirrored: bool
    x0: Tensor | None


def pack(tensors: Tensors) -> ArrayRecord:
    return ArrayRecord({k: Array(v.detach().cpu().contiguous().numpy()) for k, v in tensors.items()})


def unpack(record: ArrayRecord) -> Tensors:
    # Copied, because numpy's memory is read-only where it comes from bytes.
    return {k: torch.from_numpy(v.numpy().copy()) for k, v in record.items()}


def count_bytes(content: RecordDict) -> int:
    """Bytes of all records."""
    return sum(record.count_bytes() for record in content.values())


def pack_terms(terms: str, fingerprint: str, **more: Any) -> ConfigRecord:
    return ConfigRecord({"terms": terms, "fingerprint": fingerprint, **more})


def list_work(sent: Sent) -> Tensors:
    down = {f"down/{part}/{name}": v for part, tensors in sent.down.items() for name, v in tensors.items()}
    return {"x": sent.x, **down, **{f"buffers/{name}": v for name, v in sent.buffers.items()}}


def read_work(content: RecordDict, device: torch.device) -> Work:
    terms, arrays = content.config_records[TERMS], unpack(content.array_records[ARRAYS])
    arrays = {k: v.to(device) for k, v in arrays.items()}
    x = arrays["x"]
    lr, now = x.new_tensor(float(terms["lr"])), x.new_tensor(float(terms["round"]))  # type: ignore[arg-type]
    sent = Sent(x, _group(arrays, "down"), _strip(arrays, "buffers"), lr, now)
    return Work(sent, str(terms["terms"]), str(terms["fingerprint"]), int(terms["counted"]),  # type: ignore[arg-type]
                bool(terms["mirrored"]), arrays.get("x0"))  # fmt: skip


def list_reply(reply: Reply, mirrored: bool) -> Tensors:
    trees = {"up": reply.up} | ({"state": reply.state} if mirrored else {})
    named = {f"{kind}/{part}/{name}": v for kind, tree in trees.items() for part, tensors in tree.items()
             for name, v in tensors.items()}  # fmt: skip
    return {"update": reply.update, **named, **{f"buffers/{name}": v for name, v in reply.buffers.items()}}


def read_reply(arrays: Tensors, told: dict[str, Any], algorithm: Algorithm) -> Reply:
    """Return a reply from its arrays, which have been checked."""
    empty: States = {p.name: {} for p in algorithm.parts}
    loss, drift = (arrays["update"].new_tensor(float(told[k])) for k in ("loss", "drift"))
    mirrored = _group(arrays, "state")
    state = empty | mirrored if mirrored else {}
    return Reply(arrays["update"], empty | _group(arrays, "up"), _strip(arrays, "buffers"), loss, drift, state)


def pack_refusal(code: str) -> RecordDict:
    return RecordDict({REFUSAL: ConfigRecord({"code": code})})


def _strip(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix + "/"): v for k, v in tensors.items() if k.startswith(prefix + "/")}


def _group(tensors: Tensors, prefix: str) -> States:
    tree: States = {}
    for name, value in _strip(tensors, prefix).items():
        part, _, key = name.partition("/")
        tree.setdefault(part, {})[key] = value
    return tree
