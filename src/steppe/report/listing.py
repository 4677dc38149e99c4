"""Everything that has a name, read from the registries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Literal, get_args, get_origin

from steppe.algorithms import CATALOGUE
from steppe.config import Config
from steppe.core.errors import SteppeError, quote, take_first_line
from steppe.core.losses import LOSSES
from steppe.core.named_metrics import METRICS, USUAL
from steppe.core.ranges import read_hints
from steppe.data import AUGMENTATIONS, DATASETS, PARTITIONS
from steppe.measures.during_training import MEASURES
from steppe.models import MODELS, describe
from steppe.presets import RECIPES
from steppe.references import ALGORITHMS, list_installed
from steppe.references import PARTS as REGISTERED_PARTS
from steppe.registry import PARTS, find_entry, find_part, list_settings

LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "max_length": "at most {} entries", "pattern": "`{}`"}
PLACES = {
    "folder:PATH": {"about": "a folder of images, as train/<class>/* and test/<class>/*"},
    "hub:NAME": {"about": "a data set of the Hugging Face Hub (extra hub)"},
    "FILE.npz": {"about": "arrays train_images, train_labels, test_images and test_labels, as in MedMNIST"},
}


def list_catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """Return everything that has a name, by kind, for `steppe list`."""
    return {
        "algorithms": {name: _describe(f) for name, f in CATALOGUE.items()}
        | _list_foreign(ALGORITHMS, CATALOGUE, find_entry),
        "parts": {name: _describe(f) for name, f in PARTS.items()} | _list_foreign(REGISTERED_PARTS, PARTS, find_part),
        "data": {name: {"about": about} for name, (_, about) in DATASETS.items()} | PLACES,
        "partitions": {name: {"about": about} for name, (_, about) in PARTITIONS.items()},
        "augmentations": {name: {"about": repr(a).removeprefix("Augmentation")} for name, a in AUGMENTATIONS.items()},
        "models": {name: {"about": describe(name)} for name in MODELS},
        "measures": {name: {"about": m.about, "settings": {"for": m.kind} | ({"usual": True} if m.usual else {})}
                     for name, m in MEASURES.items()},
        "losses": {name: {"about": f"{_say_what(f)} Usual metric: {USUAL[name]}."} for name, f in LOSSES.items()},
        "metrics": {name: {"about": f"{_say_what(m.finish or m.each or m.on_all)} "
                                    f"{'Lower' if m.lower else 'Higher'} is better."} for name, m in METRICS.items()},
        "protocols": {"fine_tune": {
            "about": "evaluate each client's own model after some epochs on its own data, with any algorithm "
            "(FedAvg-FT is fedavg with it, FedSoL-FT is fedsol with it)",
            "settings": {"personal": "[1, 5]", "personal_lr": None}}},
        "recipes": {name: {"about": "", "settings": recipe} for name, recipe in RECIPES.items()},
        "keys": {name: _describe_key(field) for name, field in Config.model_fields.items()},
    }  # fmt: skip


def find_entries(words: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the entries of the kinds that are named, or of all, whose name or description contains every other word.

    >>> list(find_entries(["data", "digits"])["data"]), list(find_entries(["parts", "privacy"])["parts"])
    (['digits'], ['dp'])
    """
    everything = list_catalogue()
    kinds = [word for word in words if word in everything] or list(everything)
    texts = [word.lower() for word in words if word not in everything]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in kinds:
        for name, entry in everything[kind].items():
            if all(text in f"{name} {entry['about']}".lower() for text in texts):
                found.setdefault(kind, {})[name] = entry
    if not found:
        names = [name for entries in everything.values() for name in entries]
        close = get_close_matches(texts[0][:80], dict.fromkeys([*everything, *names]))
        guess = f"did you mean {' or '.join(close)}?" if close else f"the kinds are {', '.join(everything)}"
        raise SteppeError(f"nothing is called {' '.join(map(quote, texts))}; {guess}")
    return found


def _describe_key(field: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"about": field.description, "role": field.json_schema_extra["role"],
                             "settings": {"default": field.get_default(call_default_factory=True)}}  # fmt: skip
    hints = [field.annotation] if get_origin(field.annotation) is Literal else get_args(field.annotation)
    kinds = [hint for hint in hints if hint is not type(None)]  # of several, as of `workers`, a list would hide one
    words = list(get_args(kinds[0])) if [get_origin(kind) for kind in kinds] == [Literal] else []
    limits = describe_limits(field.metadata)
    return entry | ({"choices": {"default": words}} if words else {}) | ({"range": limits} if limits else {})


def _say_what(function: Any) -> str:
    """Return the first sentence of a docstring, without its verb."""
    text = take_first_line(function.__doc__).removeprefix("Return ")
    return text[:1].upper() + text[1:]


def _list_foreign(group: str, ours: Mapping[str, Any], find: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    """Return what installed packages registered, each with the package and the place that it comes from."""
    entries = {}
    for name, point in list_installed(group).items():
        if name in ours:
            continue
        try:
            entry = _describe(find(name))
        except SteppeError as error:
            entry = {"about": str(error), "settings": {}}
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        entries[name] = {**entry, "from": f"{package}, {point.value}"}
    return entries


def _describe(function: Any) -> dict[str, Any]:
    about = take_first_line(function.__doc__)
    if isinstance(function, type):  # the file of a part describes its idea
        import inspect

        module = inspect.getmodule(function)
        if not function.__doc__ or function.__doc__.startswith(function.__name__ + "("):
            about = take_first_line(module.__doc__ if module else None)
    entry: dict[str, Any] = {"about": about, "settings": {}}
    hints = read_hints(function)
    for name, default in list_settings(function).items():
        entry["settings"][name] = (
            default if default is None or isinstance(default, int | float | str) else
            "required" if default is Parameter.empty else quote(default)
        )  # fmt: skip
        if get_origin(hints.get(name)) is Literal:
            entry.setdefault("choices", {})[name] = list(get_args(hints[name]))
    return entry


def describe_limits(metadata: Iterable[Any]) -> str:
    """Return the limits of a number or a list, as pydantic keeps them."""
    found = [LIMITS[name].format(format_value(getattr(one, name))) for one in metadata for name in LIMITS
             if getattr(one, name, None) is not None]  # fmt: skip
    return ", ".join(found)


def format_value(value: Any) -> str:
    """Return a value as a configuration writes it.

    >>> [format_value(v) for v in (None, 1e-4, 10**9, [], 2**53)]
    ['none', '0.0001', '1e9', '[]', '2^53']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and abs(value) >= 1e6:
        power = int(value).bit_length() - 1
        for near, text in ((2**power, f"2^{power}"), (2 ** (power + 1) - 1, f"2^{power + 1} − 1")):
            if value == near:
                return text
        return f"{value:.0e}".replace("e+0", "e")
    return str(value)
