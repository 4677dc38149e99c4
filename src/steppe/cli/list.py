"""Commands for reference: what has a name, and what to cite for it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from steppe.cli import terminal
from steppe.cli.options import Debug, Json, app


@app.command("list")
def list_(words: Annotated[list[str] | None, typer.Argument(metavar="[KIND] [TEXT]…", help="Kind (algorithms, parts, "
                           "data, partitions, models, losses, metrics, measures, recipes, keys, …) and text to search "
                           "for.")] = None,
          as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """List algorithms, parts, data sets, partitions, models, losses, metrics, measures, recipes and keys.

    For example: steppe list algorithms, steppe list keys seed, steppe list sam.
    """
    from rich.table import Table

    from steppe.report.listing import find_entries

    found = find_entries(words or [])
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for kind, entries in found.items():
        table = Table(title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column()
        for name, entry in entries.items():
            origin = f"[dim](from {terminal.escape(entry['from'])})[/]" if "from" in entry else ""
            lines = [terminal.escape(entry["about"]), *_format_settings(entry), origin]
            table.add_row(f"[bold]{terminal.escape(name)}[/]", "\n".join(line for line in lines if line))
        terminal.print_trimmed(table)
        terminal.show("")


def _format_settings(entry: dict[str, Any]) -> list[str]:
    """Show settings with their defaults and range on one line, and each choice on its own line."""
    settings, choices = entry.get("settings", {}), entry.get("choices", {})
    plain = "  ".join(f"{key}={value}" for key, value in settings.items() if key not in choices)
    plain += f"  ({entry['range']})" if "range" in entry else ""
    several = [f"{key}={settings[key]}  (one of {', '.join(map(str, those))})" for key, those in choices.items()]
    return [f"[dim]{terminal.escape(line)}[/]" for line in (plain, *several) if line]


@app.command()
def cite(names: Annotated[list[str], typer.Argument(help="Algorithms or parts, or steppe for the library itself.")],
         debug: Debug = False) -> None:  # fmt: skip
    """Print the BibTeX of algorithms, of parts, and of Steppe itself."""
    from steppe.citations import cite as bibtex

    print("\n\n".join(bibtex(name) for name in names))
