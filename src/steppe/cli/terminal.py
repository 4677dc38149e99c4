"""Tables and lines for people: never truncated, not even in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from steppe.core.errors import show_codes


def escape(text: str) -> str:
    """Return text to be shown as it is: neither rich's markup nor codes that a terminal would obey."""
    from rich.markup import escape

    return escape(show_codes(text, "\n"))


def make_console(**size: int) -> Any:
    """Return rich's console, of this size if it is given."""
    from rich.console import Console

    here = Console(**size, emoji=False)  # type: ignore[arg-type]  # :x: may be part of a name
    # A file or a pipe has no edge to wrap at.
    return here if size or here.is_terminal else Console(width=250, height=25, emoji=False)


def print_trimmed(table: Any, **size: int) -> None:
    """Print a table of rich without the spaces that would fill its last column."""
    here = make_console(**size)
    with here.capture() as captured:
        here.print(table, highlight=False)
    here.file.write(re.sub(" +$", "", captured.get(), flags=re.MULTILINE))


def print_table(title: str, columns: list[str], rows: list[list[str]], spare: tuple[str, ...] = ()) -> None:
    """Print a table, numbers to the right, without cutting names short.

    Where it is narrow, columns that begin like `spare` are left out.
    """
    from rich import box
    from rich.table import Table

    here = make_console()
    for left_out in range(len(spare) + 1):
        shown = [i for i, name in enumerate(columns) if not name.startswith(spare[:left_out])]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for i in shown:
            numbers = any(re.match(r"[-−+±<]?[\d–]", row[i]) for row in rows)
            table.add_column(columns[i].strip(), justify="right" if numbers and i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(escape(row[i]) for i in shown))
        # The real console would report that it fits.
        needed = make_console(width=1000, height=25).measure(table).maximum
        if needed <= here.width:
            break
    show(f"[bold]{escape(title)}[/]")
    gone = [name.strip() for i, name in enumerate(columns) if i not in shown]
    print_trimmed(table, width=max(needed, here.width), height=25)  # without a height, rich may override the width
    if gone:
        show(f"[dim]left out at this width: {escape(', '.join(gone))}[/]")


@contextmanager
def explain_interrupt(how: str) -> Iterator[None]:
    """After Ctrl-C, say how to go on and exit; an empty text says nothing, on ranks that print nothing."""
    try:
        yield
    except KeyboardInterrupt:
        if how:
            print(f"\ninterrupted; {how}", file=sys.stderr)
        raise typer.Exit(130) from None


def show(text: str) -> None:
    """Print a line as it is, however long, so that a command or path in it can be copied."""
    make_console().print(show_codes(text, "\n"), highlight=False, soft_wrap=True)


def show_text(text: str) -> None:
    """Print sentences: on a terminal, broken between words."""
    console = make_console()
    console.print(show_codes(text, "\n"), highlight=False, soft_wrap=not console.is_terminal)
