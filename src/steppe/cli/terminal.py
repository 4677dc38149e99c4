"""Tables and lines for people: never cut short, also in a pipe."""

from __future__ import annotations

from typing import Any

from steppe.core.errors import show_codes


def escape(text: str) -> str:
    """Return text to be shown as it is: neither rich's markup nor codes that a terminal would obey."""
    from rich.markup import escape

    return escape(show_codes(text, "\n"))


def console(**size: int) -> Any:
    """Return rich's console, of this size if it is given."""
    from rich.console import Console

    here = Console(**size, emoji=False)  # type: ignore[arg-type]  # :x: may be part of a name
    # A file or a pipe has no edge to wrap at.
    return here if size or here.is_terminal else Console(width=250, height=25, emoji=False)


def print_table(title: str, columns: list[str], rows: list[list[str]], spare: tuple[str, ...] = ()) -> None:
    """Print a table without cutting names short: on a narrow terminal, columns in `spare` are left out, one by one."""
    from rich import box
    from rich.table import Table

    here = console()
    for left_out in range(len(spare) + 1):
        shown = [i for i, name in enumerate(columns) if name not in spare[:left_out]]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for i in shown:
            table.add_column(columns[i].strip(), justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(escape(row[i]) for i in shown))
        needed = console(width=1000, height=25).measure(table).maximum  # the real console would report that it fits
        if needed <= here.width:
            break
    show(f"[bold]{escape(title)}[/]")
    console(width=max(needed, here.width), height=25).print(table)  # without a height, rich may override the width


def show(text: str) -> None:
    console().print(show_codes(text, "\n"), highlight=False, soft_wrap=True)
