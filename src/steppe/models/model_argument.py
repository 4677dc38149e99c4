"""The model argument: a name, a module, or the class of one."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from steppe.core.errors import SteppeError, quote


class Unset:
    """The default of an argument for which None would be a mistake."""

    def __repr__(self) -> str:
        return "…"


UNSET: Any = Unset()


def take_model(given: Any) -> str | nn.Module | None:
    """Return the model's name or the module itself, built if its class was given; None if there was no argument."""
    if isinstance(given, Unset):
        return None
    if isinstance(given, type) and issubclass(given, nn.Module):
        check_buildable(given)
        given = given()
    if not isinstance(given, str | nn.Module):
        raise SteppeError(f"model is {quote(given)}: give an nn.Module or the name of a model.")
    if isinstance(given, nn.Module):
        _check_module(given)
    return given


def check_buildable(kind: type[nn.Module]) -> None:
    """Refuse a class whose constructor needs arguments."""
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise SteppeError(f"model is the class {kind.__name__}, which cannot be built without arguments ({error}): "
                          f"give an instance, {kind.__name__}(…).") from error  # fmt: skip


def _check_module(model: nn.Module) -> None:
    """Refuse a module that cannot be called with other parameters than its own, or whose parameters have no numbers."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise SteppeError(f"model is a {type(model).__name__}: give the module inside it, model.module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise SteppeError("model is a module of torch.jit, which cannot be called with other parameters: give the "
                          "nn.Module that it was made from.")  # fmt: skip
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise SteppeError(f"The model's {name} has no shape yet: call the model once with a batch before the run.")
        if p.is_meta:
            raise SteppeError(f"The model's {name} is on the meta device and has no numbers: build the model on cpu.")
        if p.is_inference():
            raise SteppeError(f"The model's {name} was made in torch.inference_mode, so it cannot be trained: build "
                              "the model outside.")  # fmt: skip


def take_module(given: Any) -> nn.Module:
    """Return the module, built if its class was given; refuse a name."""
    taken = take_model(given)
    if not isinstance(taken, nn.Module):
        raise SteppeError(f"model is {quote(given)}: give the nn.Module that the run trained.")
    return taken
