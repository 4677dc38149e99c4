"""Copies of a module that share its tensors, so that a large frozen base exists once."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PIECE = 1 << 18  # numbers that are hashed at a time; what the allocator keeps of them adds to the peak
NARROW = (torch.bfloat16, torch.float16)  # types in which a frozen matrix may stay


def copy_sharing(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return a copy of a module that shares its parameters and buffers, except those given in `tensors`.

    >>> one = nn.Linear(1, 1)
    >>> other = copy_sharing(one, {"bias": torch.ones(1)})
    >>> other.weight is one.weight, other.bias is one.bias
    (True, False)
    """
    own = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:  # the result of a hook, such as weight_norm's
                memo[id(value)] = value.detach()
    for name, old in own.items():
        new = old if tensors is None else tensors.get(name, old)
        if new is not old and isinstance(old, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        memo[id(old)] = new
    return copy.deepcopy(model, memo)


def choose_frozen_type(p: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the type of a frozen parameter in a run of this type; None if it keeps its own.

    Matrices of a narrow type keep it. Vectors, such as a norm's weights, get the run's type: they are small, and not
    every norm accepts a narrow weight with a wide input.
    """
    keeps = p.dtype in NARROW and p.ndim >= 2 and dtype != torch.float64
    return None if keeps or not p.is_floating_point() else dtype


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return sixteen digits of a hash of the names and values, which does not depend on the floating-point type.

    >>> hash_tensors({"a": torch.ones(2)}) == hash_tensors({"a": torch.ones(2, dtype=torch.bfloat16)})
    True
    """
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {tuple(t.shape)}".encode())
        for piece in torch.split(t.detach().reshape(-1), PIECE):
            numbers = piece.to("cpu", torch.float32 if t.is_floating_point() else None)
            digest.update(numbers.contiguous().numpy().data)
    return digest.hexdigest()[:16]
