"""The page about every command with all its options, from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import typer
from tools.docs.tables import make_table

from steppe.cli.app import app
from steppe.report.listing import format_value

HEAD = """# Commands

`steppe COMMAND --help` prints the same. A command that has `--set` also takes every [configuration key](config.md) as
an option: `--lr 0.1` is `--set lr=0.1`.

Exit codes: 0 for success, 2 for an error that you can correct (one sentence on standard error says what to do), 3 for a
run that failed, for instance because it diverged, and 130 after Ctrl-C.
"""


def make_page() -> str:
    """Return the page."""
    text = HEAD
    for path, command in walk(typer.main.get_command(app), "steppe"):
        text += f"\n{'###' if path.count(' ') > 1 else '##'} {path}\n\n{(command.help or '').strip()}\n\n"
        if isinstance(command, click.Group):
            continue
        context = click.Context(command, info_name=path)
        text += f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n\n"
        for title, kind in (("argument", click.Argument), ("option", click.Option)):
            rows = [describe(p) for p in command.params if isinstance(p, kind)]
            text += make_table([title, "meaning", "type", "default"], rows) + "\n\n" if rows else ""
    return text


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, groups before what is in them."""
    if path.count(" "):
        yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from walk(one, f"{path} {name}")


def describe(parameter: click.Parameter) -> list[str]:
    """Return the row of an argument or option."""
    option = isinstance(parameter, click.Option)
    names = [*parameter.opts, *parameter.secondary_opts] if option else [(parameter.name or "").upper()]
    flag = option and parameter.is_flag  # type: ignore[attr-defined]
    default = "" if flag or parameter.default in (None, [], ()) else f"`{format_value(parameter.default)}`"
    kind = "" if flag else say_kind(parameter.type, parameter.metavar)
    meaning = str(getattr(parameter, "help", None) or "")
    return [", ".join(f"`{name}`" for name in names), re.sub(r"(?<![\w`])([$]\w+|--[\w-]+)", r"`\1`", meaning),
            kind and f"`{kind}`", default or ("required" if parameter.required else "")]  # fmt: skip


def say_kind(kind: click.ParamType, name: str | None = None) -> str:
    """Return the type of a value, or the name that the help gives it, with its range."""
    if isinstance(kind, click.IntRange | click.FloatRange):
        low = "" if kind.min is None else f"{format_value(kind.min)} ≤ "
        high = "" if kind.max is None else f" ≤ {format_value(kind.max)}"
        return f"{low}{name or 'number'}{high}"
    return name or {"integer": "number", "float": "number", "path": "path", "text": "text"}.get(kind.name, kind.name)
