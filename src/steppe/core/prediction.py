"""The predictions among a model's outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from steppe.core.errors import SteppeError

Predict = Callable[[Any], Tensor]  # a model's outputs -> its predictions


def find_prediction(outputs: Any) -> Tensor:
    """Return the outputs if they are one tensor, their `logits` if they have such an entry, or the first of several.

    >>> import torch
    >>> find_prediction({"loss": None, "logits": torch.ones(2)}), find_prediction((torch.zeros(1), "state"))
    (tensor([1., 1.]), tensor([0.]))
    """
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        names = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        raise SteppeError(f"The model returns a {type(outputs).__name__}{names}, in which no predictions were found: "
                          "give predict=, a function that returns them from the outputs.")  # fmt: skip
    return found


def check_predict(predict: Any) -> None:
    """Refuse anything that cannot be called with outputs."""
    if predict is not None and not callable(predict):
        raise SteppeError(f"predict is {predict!r}, but must be a function of the model's outputs, such as "
                          "lambda outputs: outputs['scores'].")  # fmt: skip
    if predict is None:
        return
    with suppress(ValueError):  # a function of C has no signature
        try:
            inspect.signature(predict).bind(None)
        except TypeError as error:
            raise SteppeError(f"predict must take one argument, the model's outputs ({error}).") from error
