"""Convert tensors and terms to Flower's records and back; the site's page on messages says what each contains."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.client import Reply, Sent
from steppe.core.layout import Tensors
from steppe.core.wire import read_reply, read_sent

ARRAYS, TERMS, FACTS, REFUSAL = "arrays", "terms", "facts", "refusal"


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
    """Count the bytes of all records."""
    return sum(record.count_bytes() for record in content.values())


def pack_terms(terms: str, fingerprint: str, **more: Any) -> ConfigRecord:
    return ConfigRecord({"terms": terms, "fingerprint": fingerprint, **more})


def read_work(content: RecordDict, device: torch.device) -> Work:
    terms, arrays = content.config_records[TERMS], unpack(content.array_records[ARRAYS])
    arrays = {k: v.to(device) for k, v in arrays.items()}
    x = arrays["x"]
    lr, now = x.new_tensor(float(terms["lr"])), x.new_tensor(float(terms["round"]))  # type: ignore[arg-type]
    return Work(read_sent(arrays, lr, now), str(terms["terms"]), str(terms["fingerprint"]), int(terms["counted"]),  # type: ignore[arg-type]
                bool(terms["mirrored"]), arrays.get("x0"))  # fmt: skip


def build_reply(arrays: Tensors, told: dict[str, Any], algorithm: Algorithm) -> Reply:
    """Build a reply from its arrays, which have been checked, and the node's facts."""
    loss, drift = (arrays["update"].new_tensor(float(told[k])) for k in ("loss", "drift"))
    return read_reply(arrays, loss, drift, algorithm)


def pack_refusal(code: str) -> RecordDict:
    return RecordDict({REFUSAL: ConfigRecord({"code": code})})
