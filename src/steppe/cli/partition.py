"""The command that divides a data set among clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Debug, Json, app, take_number
from steppe.core.errors import SteppeError


@app.command()
def partition(data: Annotated[str, typer.Option("--data", help="Data set (steppe list data).")] = "digits",
              rule: Annotated[str, typer.Option("--partition", help="Rule (steppe list partitions).")] = "lda(0.3)",
              clients: Annotated[int | None, take_number("--clients", help="Number of clients (default: 20, or a "
                                                                           "file's).")] = None,
              seed: Annotated[int | None, typer.Option("--seed", help="Seed (default: that of the rule).")] = None,
              save: Annotated[Path | None, typer.Option("--save", help="Write the partition to a JSON file.")] = None,
              picture: Annotated[Path | None, typer.Option("--plot", help="Draw samples per client and class.")] = None,
              data_folder: Annotated[str | None, typer.Option("--data-folder", help="Folder of the data sets "
                                                              "(default: $STEPPE_DATA or ./data).")] = None,
              as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Divide a data set among clients; show, save or draw the partition."""
    from steppe.data import load
    from steppe.data.divide import count_clients, divide

    if picture:
        arguments.check_picture(picture)
    loaded = load(data, data_folder)
    if picture and loaded.classes is None:
        raise SteppeError(f"--plot draws clients × classes, but {data} has no classes: leave it out.")
    split = divide(loaded, rule, clients or count_clients(rule) or 20, seed, validation=None)[1]
    if save:
        split.save(save)
    if picture:
        split.plot(loaded.train_targets, loaded.classes or 1, picture)
    sizes = split.sizes
    told = {"data": data, "rule": split.rule, "seed": split.seed, "hash": split.hash, "clients": len(sizes),
            "smallest": int(sizes.min()), "median": float(sorted(sizes)[len(sizes) // 2]),
            "largest": int(sizes.max())}  # fmt: skip
    if as_json:
        print(json.dumps({**told, "sizes": sizes.tolist()}))
    else:
        terminal.show(
            f"{data}, {split.title}: {len(sizes)} clients hold {told['smallest']} to {told['largest']} samples "
            f"(median {told['median']:g}); hash {split.hash}"
        )
