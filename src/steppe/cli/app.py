"""The command line: a thin layer over the library. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Annotated

import click
import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import app
from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.executors.allocator import keep_memory


def main() -> None:
    """Run the command line; errors that a user can fix are one sentence and exit code 2."""
    keep_memory()
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
        code = _exit_code(error)
        if code is None:  # a bug: show everything that is known about it
            raise
        if arguments.is_under_torchrun() and not arguments.should_report():
            sys.exit(code)
        if "--debug" in words:
            import traceback

            traceback.print_exc()
        else:
            from rich.console import Console

            text = f"[bold red]error:[/] {terminal.escape(_text(error))}"
            Console(stderr=True, soft_wrap=True, emoji=False).print(text, highlight=False)
        sys.exit(code)


def _exit_code(error: Exception) -> int | None:
    """Return 2 for an error that the user can fix, 3 for a run that failed, None for an unforeseen error."""
    if isinstance(error, SteppeError):
        return error.exit_code
    if isinstance(error, click.Abort):
        return 130
    return 2 if isinstance(error, OSError | click.ClickException) else None


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, click.Abort):
        return "interrupted"
    if not isinstance(error, click.ClickException):
        return str(error)
    text = re.sub("'[^']{80,}'", lambda long: quote(long[0][1:-1]), error.format_message())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context and isinstance(context.command, click.Group) and (unknown := re.match("No such command '(.*?)'", text)):
        return unknown[0] + suggest_name(unknown[1], context.command.commands)
    return f"{text} See {context.command_path} --help." if context else text


def _version(wanted: bool) -> None:
    if wanted:
        from steppe import __version__

        print(f"steppe {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version,
                                                   help="Print the version.")] = False) -> None:  # fmt: skip
    """Options of the program itself."""


# Importing them registers their commands, in the order of --help.
COMMANDS = "run compare analyze sweep report list cost new partition reproduce advise warm federate"
for name in COMMANDS.split():
    import_module(f"steppe.cli.{name}")
