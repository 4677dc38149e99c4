"""Checks of a reply: it must belong to this federation, round and algorithm, and have the right shapes.

A node may send anything. A header alone never causes memory to be allocated: an array is read only if it has exactly
as many bytes as the shape and type that the server expects. `core.validate` checks the numbers, as in a simulation.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import name_type
from steppe.core.layout import Tensors
from steppe.flower.messages import ARRAYS, FACTS, REFUSAL, count_bytes
from steppe.flower.refusals import explain_refusal
from steppe.flower.reply_inbox import MALFORMED

HEADER = re.compile(rb"\{'descr': '([^']{1,8})', 'fortran_order': False, 'shape': \(([0-9, ]{0,200})\), \} *\n?")
AWAY = ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE
BESIDE = 2**20  # bytes that a reply may have in addition to its arrays


class Gone(SteppeError):
    """Flower reports that a node has not answered: it is absent, or could not run the app."""

    def __init__(self, code: int) -> None:
        named = next((name for name, value in vars(ErrorCode).items() if value == code), "an unknown error")
        pinned = (
            "; the node is pinned to a different app: run steppe federate pin" if code == ErrorCode.INVALID_FAB else ""
        )
        super().__init__(f"Flower reports: {named.lower().replace('_', ' ')}{pinned}")
        self.away = code in AWAY


def check_origin(message: Message | SteppeError, node: int) -> Message:
    """Return the message from this node, or raise an error without Flower's text, which may quote the node's files."""
    if isinstance(message, SteppeError):
        raise message
    if message.has_error():
        raise Gone(message.error.code)
    if message.metadata.src_node_id != node:
        raise SteppeError("it came from another node")
    return message


def find_largest_size(like: Tensors) -> int:
    """Return the largest number of bytes that a reply may have."""
    return sum(v.nbytes + 4096 for v in like.values()) + BESIDE


def read_facts(message: Message, wanted: set[str], limit: int) -> dict[str, Any]:
    """Return what a reply contains in addition to its arrays, or raise an error."""
    if not message.has_content():
        raise SteppeError("it has no content")
    content = message.content
    try:
        size = count_bytes(content)
    except MALFORMED as error:  # Flower cannot count an empty text or list
        raise SteppeError("one of its values is empty or of an unknown type") from error
    if size > limit:
        raise SteppeError(f"it is larger than {limit:,} bytes")
    if REFUSAL in content:
        raise SteppeError(explain_refusal(_record(content, REFUSAL, ConfigRecord).get("code")))
    if set(content) != wanted:
        raise SteppeError("it comes from a different program: its records are not the ones that were requested")
    return dict(_record(content, FACTS, ConfigRecord))


def read_introduction(message: Message, name: str, clients: int, max_samples: int) -> tuple[int, int]:
    """Return the client and the number of samples that a node claims."""
    told = read_facts(message, {FACTS}, BESIDE)
    if told.get("federation") != name:
        raise SteppeError(f"it belongs to federation {shorten(told.get('federation'))}")
    client = told.get("client")
    if type(client) is not int or not 0 <= client < clients:
        raise SteppeError(f"it claims to be client {shorten(client)}, but clients are 0 to {clients - 1}")
    return client, check_samples(told.get("samples"), max_samples)


def check_samples(samples: object, most: int) -> int:
    if type(samples) is not int or not 1 <= samples <= most:
        raise SteppeError(f"it reports {shorten(samples)} samples, but max_samples is {most}")
    return samples


def check_reply(message: Message, expected: dict[str, Any], like: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Return the reply's arrays and facts, or raise an error."""
    told = read_facts(message, {ARRAYS, FACTS}, find_largest_size(like))
    for key, value in expected.items():
        if type(told.get(key)) is not type(value) or told[key] != value:
            raise SteppeError(f"the reply is for {key} {shorten(told.get(key))}, but {value!r} was requested")
    for key in ("loss", "drift", "seconds"):
        if type(told.get(key)) is not float or not math.isfinite(told[key]):
            raise SteppeError(f"its {key} is {shorten(told.get(key))}, which is not a finite number")
    record = _record(message.content, ARRAYS, ArrayRecord)
    if set(record) != set(like):
        odd = sorted(set(record) ^ set(like))
        raise SteppeError(f"its arrays are not those of the algorithm: {', '.join(map(shorten, odd[:3]))}")
    for name, array in record.items():
        shape, dtype = tuple(like[name].shape), name_type(like[name])
        if tuple(array.shape) != shape or array.dtype != dtype:
            raise SteppeError(f"{name!r} has shape {shorten(tuple(array.shape))} and type {shorten(array.dtype)}, "
                              f"but must have {shape} and {dtype}")  # fmt: skip
    return {name: read_array(name, array.data, like[name]) for name, array in record.items()}, told


def read_array(name: str, data: bytes, like: Tensor) -> Tensor:
    """Read an .npy file's array, if its bytes are exactly those of this shape and type."""
    kind = np.dtype(name_type(like))
    length = int.from_bytes(data[8:10], "little")
    header = HEADER.fullmatch(data[10 : 10 + length]) if data[:8] == b"\x93NUMPY\x01\x00" else None
    told = (header[1], header[2].replace(b" ", b"").rstrip(b",")) if header else None
    if told != (kind.str.encode(), ",".join(map(str, like.shape)).encode()) or len(data) != 10 + length + like.nbytes:
        raise SteppeError(f"{name!r} does not match its header")
    # Copied, because an array made from bytes is read-only.
    return torch.from_numpy(np.frombuffer(data, kind, offset=10 + length).reshape(like.shape).copy())


def shorten(value: object) -> str:
    """Shorten a node's text for a log, and make it printable."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record = content[name]
    if not isinstance(record, kind):
        raise SteppeError(f"its record {name!r} is not a {kind.__name__}")
    return record
