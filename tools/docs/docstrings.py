"""Read the docstring of a method or a part: its idea, its equations, its settings and its deviations.

The idea (Authors, Venue Year): in one sentence.

    direction = g(w) + μ (w − x)        an indented block is equations; after three spaces, a remark

A paragraph.

`mu`   what a setting means.

Defaults: mu: where its default comes from.
Limits: …        Deviations: …
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

from steppe.core.part import Part

ITEM = re.compile(r"`(\w+)`\s{2,}(?=\S)")
HEADED = ("Defaults", "Limits", "Deviations")


@dataclass
class Row:
    """A line of equations, and its remark."""

    equations: list[str]
    remark: str


@dataclass
class Document:
    """The sections of a docstring."""

    idea: str
    rows: list[Row] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    items: dict[str, str] = field(default_factory=dict)
    headed: dict[str, str] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, str]:
        """Return where each setting's default comes from."""
        pieces = [p.partition(": ") for p in re.split(r"; (?=[\w, ]+: )", self.headed.get("Defaults", "")) if p]
        return {name: source.rstrip(".") for names, _, source in pieces for name in names.split(", ")}


def describe(thing: Any) -> Document:
    """Read a catalogue function, or a part: its class's own docstring, and else that of its file."""
    if not isinstance(thing, type):
        return read(thing.__doc__)
    found = read(getattr(inspect.getmodule(thing), "__doc__", "") or "")
    if thing.__doc__ and not thing.__doc__.startswith(f"{thing.__name__}("):  # a dataclass without one writes its own
        own = read(thing.__doc__)  # and what its file says about all of its parts
        found = Document(own.idea, own.rows, own.paragraphs + found.paragraphs, own.items, found.headed | own.headed)
    base = thing.__mro__[1]
    if base is not Part and issubclass(base, Part):  # settings that it shares
        found.items = describe(base).items | found.items
    return found


def read(text: str) -> Document:
    """Split a docstring into sections by its empty lines, indentation and first words."""
    lines = inspect.cleandoc(text).splitlines()
    found = Document(lines[0].strip())
    name = ""
    for block in re.split(r"\n\s*\n", "\n".join(lines[1:]).strip("\n")):
        if block.startswith("    "):
            found.rows += [_row(line) for line in block.splitlines()]
            continue
        name = ""
        for line in block.splitlines():
            item = ITEM.match(line)
            head = next((h for h in HEADED if line.startswith(f"{h}: ")), "")
            if item:
                name = item[1]
                found.items[name] = line[item.end() :].strip()
            elif head:
                name = head
                found.headed[head] = line.partition(": ")[2].strip()
            elif name in found.headed:
                found.headed[name] += " " + line.strip()
            elif name:
                found.items[name] += " " + line.strip()
            else:
                found.paragraphs.append(block)
                break
    return found


def _row(line: str) -> Row:
    """Split at wide gaps: what follows a comma is a further equation, anything else a remark."""
    chunks = re.split(r"\s{3,}", line.strip())
    equations = [chunks.pop(0)]
    while chunks and equations[-1].endswith(","):
        equations[-1] = equations[-1].rstrip(",")
        equations.append(chunks.pop(0))
    return Row(equations, "; ".join(chunks))
