"""Read the keys of a run as users write them: in a file, as options, in short, settings of the algorithm among them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from steppe.config import Config, find_key
from steppe.core.errors import SettingError, SteppeError, quote
from steppe.references import OWN
from steppe.settings import parse_assignment, split_algorithm, take_text, tell_where

LONGEST = 1_000_000  # bytes of a configuration file


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file, or of a run's config.json."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1).decode()
        if len(text) > LONGEST:
            raise SteppeError(f"{path} is longer than {LONGEST:,} bytes: it is not a configuration.")
        content = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except FileNotFoundError:
        raise SteppeError(f"There is no configuration file {path}.") from None
    except IsADirectoryError:
        inside = f", for example {path / 'config.json'}" if (path / "config.json").exists() else ""
        raise SteppeError(f"{path} is a folder: give a file{inside}.") from None
    except OSError as error:
        raise SteppeError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise SteppeError(f"{path} is not valid {kind}: it is nested too deeply.") from None
    except ValueError as error:  # also of text that is not UTF-8, and of very long numbers, where Python has advice
        raise SteppeError(f"{path} is not valid {kind}: {str(error).partition('; use sys.')[0]}.") from None
    if not isinstance(content, dict):
        raise SteppeError(f"{path} must contain an object with keys of the run.")
    return content


def spell_out(values: dict[str, Any]) -> dict[str, Any]:
    """Expand an algorithm with settings and further parts into keys; keys that are already there take precedence.

    >>> spell_out({"algorithm": "fedsam:rho=0.5,eps=0+man", "rho": 0.1, "add": ["ema"]})
    {'algorithm': 'fedsam', 'rho': 0.1, 'add': ['man', 'ema'], 'eps': 0}
    """
    text, table, add = take_text(values.get("algorithm")), values.get("settings"), values.get("add", [])
    if not text or text.startswith(OWN):
        return values
    name, sets, parts = split_algorithm(text)
    taken = {*values, *(table if isinstance(table, dict) else ())}
    short = {key: value for key, value in map(parse_assignment, sets) if key not in taken}
    values = {**values, **short, "algorithm": name}
    return {**values, "add": [*parts, *add]} if parts and isinstance(add, list) else values


def nest_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put settings of the algorithm, which may be given next to the run's keys, under `settings`.

    >>> nest_settings({"algorithm": "fedsam", "lr": 1, "rho": 2, "settings": {"eps": 0}})
    {'algorithm': 'fedsam', 'lr': 1, 'settings': {'eps': 0, 'rho': 2}}
    >>> nest_settings({"algorithm": "fedsam", "settings.rho": 2})
    {'algorithm': 'fedsam', 'settings': {'rho': 2}}
    """
    values = spell_out(dict(values))
    own = _list_own_settings(values)
    places = {name: find_key(name, own) for name in values}
    nested = {name: values[name] for name, place in places.items() if not place.startswith("settings.")}
    table = {place.removeprefix("settings."): values[name] for name, place in places.items() if name not in nested}
    return put_value(nested, "settings", table) if table else nested


def _list_own_settings(values: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the settings that the algorithm of a configuration has."""
    from steppe.registry import find_entry, list_settings  # torch, which `steppe --help` does not wait for

    name = take_text(values.get("algorithm", Config.model_fields["algorithm"].default))
    return list_settings(find_entry(name)) if name and not name.startswith(OWN) else ()


def put_value(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the values with one more on top; a table of settings is merged with the existing one."""
    if key != "settings":
        return {**values, key: value}
    for table in (value, values.get(key, {})):
        if not isinstance(table, dict):
            raise SettingError(f"settings is {quote(table)}, but must be a table, such as settings.rho=0.1", key)
    return {**values, key: {**values.get(key, {}), **value}}


def parse_option(text: str, own: Collection[str]) -> tuple[str, Any]:
    """Read `key=value` from a command line; the key is a setting of the algorithm (`own`) or of the run.

    >>> parse_option("rho=0.5", {"rho": 0.1}), parse_option("data=mnist", {}), parse_option("clip=none", {})
    (('settings.rho', 0.5), ('data', 'mnist'), ('clip', None))
    """
    name, value = parse_assignment(text)
    with tell_where({name.removeprefix("settings."): format_option(text)}):
        return find_key(name, own), value


def format_option(text: str) -> str:
    """Return how a setting was written on the command line.

    >>> format_option("lr=0.1"), format_option("--lr=0.1"), format_option('--track=["wandb","mlflow"]')
    ('--set lr=0.1', '--lr 0.1', '--track wandb --track mlflow')
    """
    name, value = parse_assignment(text)
    if text.startswith("--") and isinstance(value, list) and all(isinstance(word, str) for word in value):
        text = " ".join(f"--{name}={word}" for word in value)
    text = text if len(text) <= 80 else f"{text[:79]}…"
    return re.sub(r"(--[\w-]+)=", r"\1 ", text) if text.startswith("--") else f"--set {text}"
