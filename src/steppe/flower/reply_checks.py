"""What a message must be to be taken for an answer: of this federation, round and algorithm, of the right shapes.

A node may send anything. Nothing is allocated by what a header claims: an array is read only if its bytes are exactly
those of the shape and type that the server expects. The numbers are looked at by `core.validate`, as in simulation.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.layout import Tensors
from steppe.flower.messages import ARRAYS, REFUSAL, TOLD, count_bytes
from steppe.flower.refusals import explain

HEADER = re.compile(rb"\{'descr': '([^']{1,8})', 'fortran_order': False, 'shape': \(([0-9, ]{0,200})\), \} *\n?")
BESIDE = 2**20  # bytes that a reply may have beside its arrays


def largest(like: Tensors) -> int:
    """Bytes that a reply may have."""
    return sum(v.nbytes + 4096 for v in like.values()) + BESIDE


def read_told(message: Message, wanted: set[str], limit: int) -> dict[str, Any]:
    """Return what an answer says beside its arrays; an error says why it is refused."""
    if not message.has_content():
        raise SteppeError("it has no content")
    content = message.content
    if not isinstance(content, RecordDict) or count_bytes(content) > limit:
        raise SteppeError(f"it is larger than {limit:,} bytes")
    if REFUSAL in content:
        raise SteppeError(explain(_record(content, REFUSAL, ConfigRecord).get("code")))
    if set(content) != wanted:
        raise SteppeError("it is of another program: its records are not those that were asked for")
    return dict(_record(content, TOLD, ConfigRecord))


def read_introduction(message: Message, name: str, clients: int, max_samples: int) -> tuple[int, int]:
    """Return which client a node says it is, and how many samples it says it has."""
    told = read_told(message, {TOLD}, BESIDE)
    if told.get("federation") != name:
        raise SteppeError(f"it belongs to federation {shorten(told.get('federation'))}")
    client = told.get("client")
    if type(client) is not int or not 0 <= client < clients:
        raise SteppeError(f"it says that it is client {shorten(client)}, but clients are 0 to {clients - 1}")
    return client, check_samples(told.get("samples"), max_samples)


def check_samples(samples: object, most: int) -> int:
    if type(samples) is not int or not 1 <= samples <= most:
        raise SteppeError(f"it tells of {shorten(samples)} samples, but max_samples is {most}")
    return samples


def check_reply(message: Message, expected: dict[str, Any], like: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Return the reply's arrays and what it tells; an error says why it is refused."""
    told = read_told(message, {ARRAYS, TOLD}, largest(like))
    for key, value in expected.items():
        if type(told.get(key)) is not type(value) or told[key] != value:
            raise SteppeError(f"the reply is for {key} {shorten(told.get(key))}, but {value!r} was asked for")
    for key in ("loss", "drift", "seconds"):
        if type(told.get(key)) is not float or not math.isfinite(told[key]):
            raise SteppeError(f"its {key} is {shorten(told.get(key))}, which is no finite number")
    record = _record(message.content, ARRAYS, ArrayRecord)
    if set(record) != set(like):
        odd = sorted(set(record) ^ set(like))
        raise SteppeError(f"its arrays are not those of the algorithm: {', '.join(map(shorten, odd[:3]))}")
    for name, array in record.items():
        shape, dtype = tuple(like[name].shape), str(like[name].dtype).removeprefix("torch.")
        if tuple(array.shape) != shape or array.dtype != dtype:
            raise SteppeError(f"{name!r} has shape {shorten(tuple(array.shape))} and type {shorten(array.dtype)}, "
                              f"but must have {shape} and {dtype}")  # fmt: skip
    return {name: read_array(name, array.data, like[name]) for name, array in record.items()}, told


def read_array(name: str, data: bytes, like: Tensor) -> Tensor:
    """Return the array in the bytes of an .npy file, if they are exactly those of this shape and type."""
    kind = np.dtype(str(like.dtype).removeprefix("torch."))
    length = int.from_bytes(data[8:10], "little")
    header = HEADER.fullmatch(data[10 : 10 + length]) if data[:8] == b"\x93NUMPY\x01\x00" else None
    told = (header[1], header[2].replace(b" ", b"").rstrip(b",")) if header else None
    if told != (kind.str.encode(), ",".join(map(str, like.shape)).encode()) or len(data) != 10 + length + like.nbytes:
        raise SteppeError(f"{name!r} is not what its header says")
    # Copied, because what comes from bytes is read-only.
    return torch.from_numpy(np.frombuffer(data, kind, offset=10 + length).reshape(like.shape).copy())


def shorten(value: object) -> str:
    """Return what a node says, for a log: printable, and not much of it."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record = content[name]
    if not isinstance(record, kind):
        raise SteppeError(f"its record {name!r} is no {kind.__name__}")
    return record
