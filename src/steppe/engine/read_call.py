"""The arguments of a call from Python, as a configuration and the caller's own objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from torch import nn

from steppe.config import Config, rename_old, resolve
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SettingError, SteppeError, quote, suggest_name
from steppe.core.part import Part
from steppe.engine.optimisers import tabulate_schedule
from steppe.read_config import nest_settings, spell_out
from steppe.references import OWN
from steppe.registry import call_with_settings, check_parts, check_returned, list_settings
from steppe.runs.provenance import qualify_name
from steppe.settings import tell_where

Asked = Any  # a name, the caller's own part or parts, a function that returns parts, or a complete Algorithm
Added = str | Part | Sequence[str | Part]  # further parts: names with settings, or the caller's own objects


class Call(NamedTuple):
    """What the call requests."""

    config: Config
    algorithm: Any  # the caller's own; None: the configuration names it
    add: list[Part]  # the caller's own objects among the further parts


def read_call(algorithm: Asked, add: Added, options: Mapping[str, Any]) -> Call:
    """Check the arguments. What the caller's own function needs is taken from the options."""
    with tell_where(say_options({**options, "add": add})):
        own, rest = find_own(algorithm, options)
        if not isinstance(add, str | Part | list | tuple | type):
            raise SteppeError(f"add is {quote(add)}: give parts, by name or as objects, such as add=['man'].")
        added = list(add) if isinstance(add, list | tuple) else [add]
        objects = [part for part in added if not isinstance(part, str)]
        for part in objects:
            if isinstance(part, type):
                raise SteppeError(f"add has the class {part.__name__}: give an instance, {part.__name__}(…).")
        check_parts(objects)
        names = [part if isinstance(part, str) else f"{OWN}{qualify_name(part)}" for part in added]
        values = {
            **tabulate_schedule(rest),
            **({"algorithm": algorithm} if own is None else {}),
            **({"add": names} if names else {}),
        }
        return Call(resolve(nest_settings(rename_old(spell_out(values))), ""), own, objects)


def say_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return how the caller wrote each option, for errors; no further parts are probably not written."""
    return {key: f"{key}={quote(value)}" for key, value in options.items() if not isinstance(value, tuple) or value}


def find_own(algorithm: Asked, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the caller's own parts, and the options that are not settings of the caller's function."""
    if isinstance(algorithm, str):
        return None, dict(options)
    if isinstance(algorithm, tuple | list) and not algorithm:
        raise SettingError("algorithm has no parts: give at least one, or a name such as fedavg")
    if isinstance(algorithm, Part | Algorithm | tuple | list):
        _refuse_settings_of_objects(algorithm, options)
        return algorithm, dict(options)
    if isinstance(algorithm, nn.Module):
        raise SettingError(f"algorithm is the module {type(algorithm).__name__}: give an algorithm first, and then the "
                           "model")  # fmt: skip
    if not callable(algorithm) or (isinstance(algorithm, type) and not issubclass(algorithm, Part)):
        raise SettingError(f"algorithm is {quote(algorithm)}: give a name, a part, several parts, a function that "
                           "returns parts, or a steppe.Algorithm")  # fmt: skip
    settings, name = list_settings(algorithm), getattr(algorithm, "__name__", quote(algorithm))
    for key in options:
        if key not in settings and key not in Config.model_fields and get_close_matches(key, settings):
            raise SettingError(f"algorithm {name} has no setting {quote(key)}{suggest_name(key, settings)}", key)
    mine = {k: v for k, v in options.items() if k in settings}
    parts = call_with_settings(algorithm, f"algorithm {name}", mine)
    check_returned(parts, f"algorithm {name}")
    return parts, {k: v for k, v in options.items() if k not in mine}


def _refuse_settings_of_objects(algorithm: Any, options: Mapping[str, Any]) -> None:
    given = algorithm.parts if isinstance(algorithm, Algorithm) else algorithm
    for part in given if isinstance(given, tuple | list) else (given,):
        kind = type(part)
        settings = getattr(part, "__dataclass_fields__", {})
        if key := next((k for k in options if k in settings and k not in Config.model_fields), None):
            raise SettingError(f"{key} is a setting of {kind.__name__}, which is given as an object: write "
                               f"{kind.__name__}({key}=…), or give the class, {kind.__name__}", key)  # fmt: skip
