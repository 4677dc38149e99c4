"""What a message must be before it is taken for a reply: of this federation, round and algorithm, of the right shapes.

Nothing is read before its header is believable. The numbers are looked at by `core.validate`, as in simulation.
"""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import RecordDict

from steppe.core.errors import SteppeError
from steppe.core.layout import Tensors
from steppe.flower.messages import ARRAYS, read_told, unpack


def check_reply(content: RecordDict, expected: dict[str, Any], like: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """The reply's arrays and what it tells; an error says why it is refused."""
    told = read_told(content)
    for key, value in expected.items():
        if told.get(key) != value:
            raise SteppeError(f"the reply is for {key} {told.get(key)!r}, but {value!r} was asked for")
    for key in ("loss", "drift", "seconds"):
        if not isinstance(told.get(key), float) or not torch.tensor(told[key]).isfinite():
            raise SteppeError(f"its {key} is {told.get(key)!r}, which is no finite number")
    if not isinstance(told.get("samples"), int) or told["samples"] < 1:
        raise SteppeError(f"it tells of {told.get('samples')!r} samples")
    if ARRAYS not in content:
        raise SteppeError("the reply has no arrays")
    record = content.array_records[ARRAYS]
    if set(record) != set(like):
        odd = sorted(set(record) ^ set(like))
        raise SteppeError(f"its arrays are not those of the algorithm: {', '.join(map(repr, odd[:3]))}")
    for name, array in record.items():  # before anything is read: a header may claim any size
        shape, dtype = tuple(like[name].shape), str(like[name].dtype).removeprefix("torch.")
        if tuple(array.shape) != shape or array.dtype != dtype or len(array.data) > like[name].nbytes + 4096:
            raise SteppeError(f"{name!r} has shape {tuple(array.shape)} and type {array.dtype}, "
                              f"but must have {shape} and {dtype}")  # fmt: skip
    try:
        arrays = unpack(record)
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise SteppeError(f"its arrays cannot be read ({error})") from error
    for name, tensor in arrays.items():
        if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
            raise SteppeError(f"{name!r} is not what its header says")
    return arrays, told
