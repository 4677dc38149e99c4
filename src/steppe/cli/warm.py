"""The command that compiles in advance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Add, ConfigFile, Debug, Set, app, take_number


@app.command()
def warm(algorithm: Annotated[str | None, typer.Argument(help="Algorithm, as for steppe run.")] = None,
         config: ConfigFile = None, sets: Set = [], add: Add = [],  # noqa: B006
         rounds: Annotated[int, take_number("--rounds", "-r", help="Number of rounds to run; a later round "
                           "compiles again only if it is larger.")] = 1,
         out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("warm.bin"),
         debug: Debug = False) -> None:  # fmt: skip
    """Compile the local step of a configuration in advance, and write it to a file for machines of the same kind.

    Runs with compile_cache=FILE, or $STEPPE_COMPILE_CACHE, then start without compiling.

    The file contains code: load only files that you have made.
    """
    from steppe.engine.build import build_experiment
    from steppe.engine.compile_cache import save_cache
    from steppe.engine.progress import Progress
    from steppe.engine.rounds import simulate

    chosen = arguments.read_configuration(algorithm, config, sets, add, rounds)
    built = build_experiment(chosen.model_copy(update={"measure": [], "track": []}))
    began = time.perf_counter()
    with Progress(rounds, metric=built.task.metric) as progress:
        progress.begin("warm")
        simulate(built, watch=progress.round)
    size = save_cache(out, built.task.x0.device)
    terminal.show(f"wrote {out} ({size / 2**20:.1f} MiB) after {time.perf_counter() - began:.1f} s; use it with "
                  f"--set compile_cache={out}")  # fmt: skip
