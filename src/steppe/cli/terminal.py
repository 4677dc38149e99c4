"""Tables and lines for people: never cut short, also in a pipe."""

from __future__ import annotations

from typing import Any


def escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def console() -> Any:
    from rich.console import Console

    here = Console()
    return here if here.is_terminal else Console(width=250, height=25)  # a file or a pipe has no edge to wrap at


def print_table(title: str, columns: list[str], rows: list[list[str]], spare: tuple[str, ...] = ()) -> None:
    """Print a table without cutting names short: on a narrow terminal, columns in `spare` are left out, one by one."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    here = console()
    for left_out in range(len(spare) + 1):
        shown = [i for i, name in enumerate(columns) if name not in spare[:left_out]]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for i in shown:
            table.add_column(columns[i].strip(), justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(escape(row[i]) for i in shown))
        needed = Console(width=1000, height=25).measure(table).maximum  # the real console would report that it fits
        if needed <= here.width:
            break
    show(f"[bold]{escape(title)}[/]")
    Console(width=max(needed, here.width), height=25).print(table)  # without a height, rich may override the width


def show(text: str) -> None:
    console().print(text, highlight=False, soft_wrap=True)
