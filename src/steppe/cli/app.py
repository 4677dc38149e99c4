"""The command line: a thin layer over the library. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated

import click
import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import app
from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.executors.allocator import keep_memory
from steppe.settings import split_algorithm


def main() -> None:
    """Run the command line; errors that a user can fix are one sentence and exit code 2."""
    keep_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")  # where there is no ± or λ, a question mark, not a traceback
    words = sys.argv[1:]
    try:
        arguments.check_torchrun(words)
        command = typer.main.get_command(app)
        code = command.main(arguments.rewrite_options(words, command), "steppe", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except Exception as error:
        code = _find_exit_code(error)
        if code is None:  # a bug: show everything that is known about it
            raise
        if arguments.is_under_torchrun() and not arguments.should_report():
            sys.exit(code)
        if "--debug" in words:
            import traceback

            traceback.print_exc()
        else:
            from rich.console import Console

            text = f"[bold red]error:[/] {terminal.escape(_format_error(error))}"
            Console(stderr=True, soft_wrap=True, emoji=False).print(text, highlight=False)
        sys.exit(code)


def _find_exit_code(error: Exception) -> int | None:
    """Return 2 for an error that the user can fix, 3 for a run that failed, None for an unforeseen error."""
    if isinstance(error, SteppeError):
        return error.exit_code
    if isinstance(error, click.Abort):
        return 130
    return 2 if isinstance(error, OSError | click.ClickException) else None


def _format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, click.Abort):
        return "interrupted"
    if not isinstance(error, click.ClickException):
        return str(error)
    text = re.sub("'[^']{80,}'", lambda long: quote(long[0][1:-1]), error.format_message())
    if number := re.fullmatch(r"Invalid value for '(--[\w-]+)'.*: ('.*') is not a valid (integer|float).*", text):
        return f"{number[1]} is {number[2]}, but must be a number, as in {number[1]} 10"
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context and (extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", text)):
        return _explain_extra(extra[1], context) or f"{text}. See {context.command_path} --help."
    if context and isinstance(context.command, click.Group) and (unknown := re.match("No such command '(.*?)'", text)):
        return unknown[0] + suggest_name(unknown[1], context.command.commands)
    return f"{text.rstrip('.')}. See {context.command_path} --help." if context else text


def _explain_extra(words: str, context: click.Context) -> str:
    """Return what to write instead of words that are too many, if it is known."""
    from steppe.algorithms import CATALOGUE

    command, first = context.command.name, context.params.get("algorithm")
    names = [str(first), *words.split()]
    if all(split_algorithm(name)[0] in CATALOGUE for name in names):
        several = {"run": f"steppe compare {' '.join(names)}", "sweep": f"--grid algorithm={','.join(names)}"}
        return (
            f"steppe {command} takes one algorithm; for several, write {several[command]}" if command in several else ""
        )
    takes_settings = any("--set" in parameter.opts for parameter in context.command.params)
    return (
        f"{words} is not an algorithm: write it as --set {' --set '.join(words.split())}"
        if "=" in words and takes_settings
        else ""
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        from steppe import __version__

        print(f"steppe {__version__}")
        raise typer.Exit


@app.callback()
def _take_options(version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version,
                                                   help="Print the version.")] = False) -> None:  # fmt: skip
    """Take the options of the program itself."""


# Importing them registers their commands, in the order of --help.
COMMANDS = "run compare analyze sweep report list cost new partition reproduce advise warm federate"
for name in COMMANDS.split():
    import_module(f"steppe.cli.{name}")
