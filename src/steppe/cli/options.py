"""The program `steppe`, to which commands add themselves, and the options that several of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Run, compare and measure flatness-aware federated learning.")  # fmt: skip


def take_number(*names: str, help: str, min: int = 1, max: int | None = None) -> Any:
    """Make an option for a whole number; its type is shown as N, because INTEGER RANGE leaves no room for the help."""
    return typer.Option(*names, metavar="N", min=min, max=max, help=help)


Set = Annotated[list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Key of the run or setting of the "
                                        "algorithm; may be repeated, and written as --KEY VALUE.")]  # fmt: skip
Add = Annotated[list[str], typer.Option("--add", metavar="PART", help="Part to add, such as man:weight=0.1, or your "
                                        "own, lookback.py:LookBack:rho=0.1 (the file is executed).")]  # fmt: skip
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file with keys of the run, or the "
                                                 "config.json of an earlier run.")]  # fmt: skip
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts; progress goes to standard error.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-r", metavar="N", help="Number of training rounds.")]
On = Annotated[str | None, typer.Option("--on", metavar="ray://HOST:PORT", help="Run on a Ray cluster (extra ray): as "
                                        "many jobs as fit, or --jobs. Resources per job may follow, as in "
                                        "ray://head:10001,gpus=0.5,cpus=2.")]  # fmt: skip
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")]
