"""Tables in Markdown, from values of Python."""

from __future__ import annotations

import html
import re
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "max_length": "at most {} entries", "pattern": "`{}`"}
NAMES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "NoneType": "none",
         "Input": "input"}  # fmt: skip


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without the columns that are empty; bars in a cell are kept.

    >>> print(make_table(["key", "unit"], [["a|b", ""]]))
    | key |
    | --- |
    | a\\|b |
    """
    rows = list(rows)
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]
    lines = [[line[k] for k in used] for line in (head, ["---"] * len(head), *rows)]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def make_plain(text: str) -> str:
    r"""Return a text that Markdown leaves as it is.

    >>> make_plain("train/<class>/*.png")
    'train/&lt;class&gt;/\\*.png'
    """
    return re.sub(r"([*_`\[\]])", r"\\\1", html.escape(text, quote=False))


def say_type(hint: Any) -> str:
    """Return a type in words.

    >>> say_type(int | None), say_type(Literal["keep", "drop"]), say_type(list[str])
    ('whole number or none', '`keep`, `drop`', 'list of texts')
    """
    kind, inside = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return say_type(inside[0])
    if kind is Literal:
        return ", ".join(f"`{one}`" for one in inside)
    if kind in (Union, types.UnionType):
        return " or ".join(map(say_type, inside))
    if kind is list:
        return f"list of {say_type(inside[0])}s"
    if kind is dict:
        return f"table of {say_type(inside[1])}s" if inside[1] is not Any else "table"
    return NAMES.get(getattr(hint, "__name__", ""), getattr(hint, "__name__", str(hint)))


def say_range(metadata: Iterable[Any]) -> str:
    """Return the limits of a number or a list, as pydantic keeps them."""
    found = [LIMITS[name].format(show(getattr(one, name))) for one in metadata for name in LIMITS
             if getattr(one, name, None) is not None]  # fmt: skip
    return ", ".join(found)


def show(value: Any) -> str:
    """Return a value as a configuration writes it.

    >>> show(None), show(1e-4), show(10**9), show([]), show(2**53)
    ('none', '0.0001', '1e9', '[]', '2^53')
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
