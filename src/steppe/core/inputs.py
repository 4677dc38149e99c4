"""The inputs of a model: one tensor, several in order (a tuple), or several by name (a dict).

Every tensor has one row per sample, whatever the structure. A batch keeps the structure, and the model is called with
`model(x)`, `model(*x)` or `model(**x)`.

    >>> text = {"ids": torch.zeros(4, 7), "mask": torch.ones(4, 7)}
    >>> count(text), show_shape(take(text, slice(2)))
    (4, 'ids (7,), mask (7,)')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Inputs = Tensor | tuple[Any, ...] | dict[str, Any]  # one tensor, several in order, or several by name


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    """Apply a function to every tensor and keep the structure."""
    return function(inputs) if isinstance(inputs, Tensor) else tree_map(function, inputs)


def take(inputs: Any, index: Any) -> Any:
    """Return the examples at an index, a mask or a slice."""
    return map_tensors(lambda t: t[index], inputs)


def count(inputs: Any) -> int:
    """Return the number of examples."""
    return len(tree_leaves(inputs)[0])


def split(inputs: Any, parts: int) -> list[Any]:
    """Return the examples as consecutive parts of nearly equal size."""
    borders = torch.arange(count(inputs)).tensor_split(parts)
    return [take(inputs, slice(int(p[0]), int(p[-1]) + 1) if len(p) else slice(0)) for p in borders]


def split_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments with which the model is called."""
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def arrange(inputs: Any, like: Any) -> Any:
    """Return the inputs with the names of every dict in the order that they have in `like`.

    >>> list(arrange({"b": 1, "a": 2}, {"a": 0, "b": 0}))
    ['a', 'b']
    """
    if isinstance(inputs, dict) and isinstance(like, dict) and set(inputs) == set(like):
        return {name: arrange(inputs[name], one) for name, one in like.items()}
    if isinstance(inputs, tuple) and isinstance(like, tuple) and len(inputs) == len(like):
        return tuple(map(arrange, inputs, like))
    return inputs


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Return floating-point tensors in this precision and others as they are."""
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)


def list_named_tensors(inputs: Any, name: str) -> list[tuple[str, Tensor]]:
    """Return every tensor with its full name: `train_inputs`, or `train_inputs.ids`.

    >>> [name for name, _ in list_named_tensors({"a": torch.ones(1), "b": (torch.ones(1),)}, "x")]
    ['x.a', 'x.b.0']
    """
    if isinstance(inputs, Tensor):
        return [(name, inputs)]
    items = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return [found for key, value in items for found in list_named_tensors(value, f"{name}.{key}")]


def name_type(tensor: Tensor) -> str:
    """Return the type of a tensor's numbers, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")


def show_shape(inputs: Any) -> str:
    """Return the shape of one example as text."""
    if isinstance(inputs, Tensor):
        return str(tuple(inputs.shape[1:]))
    return ", ".join(f"{name[1:]} {tuple(t.shape[1:])}" for name, t in list_named_tensors(inputs, ""))
