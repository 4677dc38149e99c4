"""Tables in Markdown, from values of Python."""

from __future__ import annotations

import html
import re
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

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
