"""The model argument: a name, a module, or the class of one."""

from __future__ import annotations

from typing import Any

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
        try:
            return given()
        except TypeError as error:
            raise SteppeError(f"model is the class {given.__name__}, which cannot be built without arguments "
                              f"({error}): give an instance, {given.__name__}(…).") from error  # fmt: skip
    if not isinstance(given, str | nn.Module):
        raise SteppeError(f"model is {quote(given)}: give an nn.Module or the name of a model.")
    return given


def take_module(given: Any) -> nn.Module:
    """Return the module, built if its class was given; refuse a name."""
    taken = take_model(given)
    if not isinstance(taken, nn.Module):
        raise SteppeError(f"model is {quote(given)}: give the nn.Module that the run trained.")
    return taken
