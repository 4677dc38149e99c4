"""Read docs/compatibility.md: which parts can be combined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
WORDS = {
    "=": "finds the optimum of the clients' mean loss",
    "·": "both do what they do alone",
    "≠": "what is optimised changes",
    "×": "refused",
}


@dataclass(frozen=True)
class Compatibility:
    """Signs of pairs, of a part and an optimiser, and why something changes or is refused."""

    pairs: dict[frozenset[str], str]
    optimisers: dict[str, dict[str, str]]
    changes: dict[str, str]
    refusals: dict[frozenset[str], str]

    def of(self, name: str) -> dict[str, list[str]]:
        """Return the other parts by sign."""
        found: dict[str, list[str]] = {sign: [] for sign in WORDS}
        for pair, sign in sorted(self.pairs.items(), key=lambda item: sorted(item[0])):
            if name in pair:
                found[sign] += pair - {name}
        return found


def read_compatibility() -> Compatibility:
    """Read the page's tables and its list of refusals."""
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.M | re.S))
    rows = _cells(sections["Part and part"])
    names = [row[1] for row in rows]
    pairs = {frozenset({row[1], names[k]}): sign for row in rows for k, sign in enumerate(row[2:]) if sign}
    singles = _cells(sections["Part and optimiser"], head=True)
    optimisers = {row[0]: dict(zip(singles[0][1:], row[1:], strict=True)) for row in singles[1:]}
    changes = {row[0]: row[1] for row in _cells(sections["What is optimised instead (≠)"])}
    refusals = {}
    for line in sections["Refused (×), and what to use instead"].splitlines():
        if line.startswith("- "):
            places, _, why = line[2:].partition(": ")
            refusals |= {frozenset(place.split(" + ")): why for place in places.split(", ")}
    return Compatibility(pairs, optimisers, changes, refusals)


def _cells(section: str, head: bool = False) -> list[list[str]]:
    """Return the cells of a section's table; its first two lines are the head and the rule."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [table[0], *table[2:]] if head else table[2:]
