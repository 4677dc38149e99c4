"""A table as text, for a terminal, a page, Markdown or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is left-aligned and names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    series: bool = True  # rows are the algorithms
