"""Write the page of all names that keys accept, from the registries."""

from __future__ import annotations

import inspect
from typing import Any

from tools.docs.sentences import capitalise
from tools.docs.tables import make_plain, make_table

from steppe.core.losses import LOSSES
from steppe.core.named_metrics import METRICS, USUAL
from steppe.report.listing import format_value, list_catalogue

HEAD = """# Names

These are the names for the keys [`data`](config.md#data), [`partition`](config.md#partition),
[`augmentation`](config.md#augmentation), [`model`](config.md#model), [`loss`](config.md#loss),
[`metrics`](config.md#metrics) and [`measure`](config.md#measure). `steppe list` prints the same list. Algorithms and
parts have [their own pages](../methods/index.md).
"""
KINDS = {"data": "Data sets", "partitions": "Partitions", "augmentations": "Augmentations", "models": "Models",
         "measures": "Measures"}  # fmt: skip


def make_page() -> str:
    """Return the page."""
    found, text = list_catalogue(), HEAD
    for kind, title in KINDS.items():
        rows = []
        for name, entry in found[kind].items():
            settings = entry.get("settings", {})
            told = ", ".join(
                str(v) if k == "for" else k if v is True else f"{k} = {format_value(v)}" for k, v in settings.items()
            )
            form, colon, about = str(entry["about"]).partition(": ")
            named = colon and form.partition("(")[0] == name  # a rule is described with its numbers
            rows.append([f"`{form if named else name}`", make_plain(about if named else entry["about"]), told])
        text += f"\n## {title}\n\n" + make_table(["name", "what", "kind"], rows) + "\n"
    losses = [[f"`{name}`", say(loss), f"`{USUAL[name]}`", _settings(loss)] for name, loss in LOSSES.items()]
    text += "\n## Losses\n\n" + make_table(["name", "what, per sample", "usual metric", "settings"], losses) + "\n"
    metrics = []
    for name, metric in METRICS.items():
        function = metric.each or metric.tally or metric.on_all
        better = "lower" if metric.lower else "higher"
        metrics.append([f"`{name}`", say(metric.finish or function), better, _settings(function)])
    return text + "\n## Metrics\n\n" + make_table(["name", "what", "better", "settings"], metrics) + "\n"


def say(function: Any) -> str:
    """Return the first sentence of a docstring, without its verb."""
    text = (function.__doc__ or "").partition("\n")[0].removeprefix("Return ")
    return capitalise(text)


def _settings(function: Any) -> str:
    found = list(inspect.signature(function).parameters.values())[2:]
    return ", ".join(f"`{p.name} = {format_value(p.default)}`" for p in found)
