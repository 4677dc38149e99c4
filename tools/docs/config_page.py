"""The page about every key of a run, from the class that checks them."""

from __future__ import annotations

import re
from typing import Any

from tools.docs.tables import make_table, say_type

from steppe.config import Config, key
from steppe.presets import ELSEWHERE, IMPLIED, RECIPES, USUAL_FOR
from steppe.report.listing import describe_limits, format_value

HEAD = """# Configuration keys

Every key can be set in a TOML file (`steppe run --config FILE`), on the command line (`--set key=value`, or `--key
value`), and in Python (`steppe.run(..., key=value)`). A key that is set overrides the recipe, and the recipe overrides
the defaults below. `steppe list keys` prints the same list.

The **role** of a key says what depends on it:
"""
ROLE = re.compile(r" +([a-z]+)  +(\S.*)")  # in the docstring of `key`
# A topic begins with this key and ends where the next one begins, in the order of the class.
TOPICS = {
    "algorithm": "Method", "data": "Data and clients", "model": "Model, loss, metrics", "rounds": "Training",
    "personal": "Personal models", "seed": "Randomness", "device": "Machine and precision",
    "nonfinite": "Refused updates", "evaluate_every": "Evaluation, records, stopping",
}  # fmt: skip


def make_page() -> str:
    """Return the page."""
    sections: dict[str, list[list[str]]] = {}
    topic = ""
    for name, field in Config.model_fields.items():
        topic = TOPICS.get(name, topic)
        role = (field.json_schema_extra or {})["role"]  # type: ignore[index]
        kind = ", ".join(filter(None, [say_type(field.annotation), describe_limits(field.metadata)]))
        row = [f"`{name}`{{ #{name} }}", f"{field.description}.", kind, f"`{format_value(field.default)}`", str(role)]
        sections.setdefault(topic, []).append(row)
    lost = set(TOPICS) - set(Config.model_fields)
    if lost:
        raise SystemExit(f"tools/docs/config_page.py begins topics with keys that do not exist: {', '.join(lost)}")
    roles = [[found[1], found[2]] for line in (key.__doc__ or "").splitlines() if (found := ROLE.match(line))]
    text = f"{HEAD}\n{make_table(['role', 'meaning'], roles)}\n"
    for title, rows in sections.items():
        text += f"\n## {title}\n\n" + make_table(["key", "meaning", "type and range", "default", "role"], rows) + "\n"
    return text + _recipes() + _usual() + _elsewhere()


def _recipes() -> str:
    names = list(dict.fromkeys(key for recipe in RECIPES.values() for key in recipe))
    rows = [[f"`{key}`", *(_cell(recipe, key) for recipe in RECIPES.values())] for key in names]
    head = (
        '## Recipes\n\n`recipe = "NAME"` sets these keys, as a paper\'s local training. An empty cell is the default.'
    )
    return f"\n{head}\n\n{make_table(['key', *(f'`{name}`' for name in RECIPES)], rows)}\n"


def _usual() -> str:
    rows = [[f"`{name}`", ", ".join(f"`{k} = {format_value(v)}`" for k, v in values.items())]
            for name, values in {**USUAL_FOR, **IMPLIED}.items()]  # fmt: skip
    return ("\n## Keys that a data set, model or part sets\n\nA key that you set overrides these.\n\n"
            + make_table(["data set, model or part", "keys"], rows) + "\n")  # fmt: skip


def _elsewhere() -> str:
    rows: dict[str, list[str]] = {}
    for other, ours in ELSEWHERE.items():
        rows.setdefault(ours, []).append(f"`{other}`")
    table = make_table(["name elsewhere", "key here"], [[", ".join(v), _code(k)] for k, v in rows.items()])
    return f"\n## Names in other programs\n\nSteppe refuses these names and says which key is meant.\n\n{table}\n"


def _code(text: str) -> str:
    name, _, rest = text.partition(" ")
    return f"`{name}` {rest}".rstrip()


def _cell(recipe: dict[str, Any], key: str) -> str:
    return format_value(recipe[key]) if key in recipe else ""
