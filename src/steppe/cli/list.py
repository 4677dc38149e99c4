"""Commands that look things up: what has a name, and whom to cite for it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from steppe.cli import terminal
from steppe.cli.app import Debug, Json, app


@app.command("list")
def list_(as_json: Json = False, debug: Debug = False) -> None:
    """Algorithms, parts, data sets, partitions, models, recipes and their settings."""
    from rich.table import Table

    from steppe.report.listing import list_catalogue

    everything = list_catalogue()
    if as_json:
        print(json.dumps(everything, indent=1))
        return
    for kind, entries in everything.items():
        table = Table(title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, entry in entries.items():
            settings = "  ".join(f"{k}={v}" for k, v in entry.get("settings", {}).items())
            cells = [terminal.escaped(text) for text in (name, entry["about"], settings)]
            table.add_row(f"[bold]{cells[0]}[/]", cells[1], f"[dim]{cells[2]}[/]")
        terminal.console().print(table)
        terminal.console().print()


@app.command()
def cite(names: Annotated[list[str], typer.Argument(help="Algorithms or parts.")], debug: Debug = False) -> None:
    """BibTeX of algorithms and parts."""
    from steppe.citations import cite as bibtex

    print("\n\n".join(bibtex(name) for name in names))
