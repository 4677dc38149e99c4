"""The command for many runs: a grid, or a search, over settings and seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Add, ConfigFile, Debug, Json, On, Out, Rounds, Set, app, take_number
from steppe.core.errors import SteppeError
from steppe.settings import split_algorithm

if TYPE_CHECKING:
    from steppe.jobs.points import Point
    from steppe.jobs.search import Range


@app.command()
def sweep(algorithm: Annotated[str | None, typer.Argument(help="Algorithm, as for steppe run.")] = None,
          config: ConfigFile = None,
          grid: Annotated[list[str], typer.Option("--grid", "-g", metavar="KEY=V,V,…", help="Values of a key or "
                          "setting; may be repeated.")] = [],  # noqa: B006
          seeds: Annotated[int, take_number("--seeds", max=10_000, help="Runs per point, with seeds seed, "
                           "seed+1, …")] = 1,
          search: Annotated[int | None, typer.Option("--search", min=1, metavar="TRIALS", help="Instead of a whole "
                            "grid, run this many points; Optuna chooses them by the validation metric.")] = None,
          ranges: Annotated[list[str], typer.Option("--range", metavar="KEY=LOW..HIGH[:log]", help="Range to search; "
                            "--grid gives choices.")] = [],  # noqa: B006
          jobs: Annotated[int | None, take_number("--jobs", "-j", help="Number of parallel runs, each in its "
                                                                               "own "
                          "process; with 1, they run in this process (default: one per GPU, or per core).")] = None,
          sets: Set = [], add: Add = [], rounds: Rounds = None, on: On = None, out: Out = None,  # noqa: B006
          as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Run every point of a grid, or of a search, with several seeds, in a queue that can be interrupted."""
    from steppe.jobs.many_runs import make_points, run_all
    from steppe.jobs.points import Point
    from steppe.jobs.search import Search
    from steppe.report.formats import pluralize
    from steppe.report.result_objects import SweptRuns
    from steppe.settings import parse_value

    choices = arguments.read_grid(grid)
    if algorithm:
        algorithm, own, parts = split_algorithm(algorithm)
        sets, add = [*own, *sets], [*parts, *add]
    names = choices.get("algorithm") or [algorithm or _find_algorithm(config)]
    spans = _read_spans(ranges, names, taken=list(choices))
    for text, key in zip([*grid, *ranges], [*choices, *spans], strict=True):
        _check_key(text, key, names, "--grid" if key in choices else "--range")
    if search is None and ranges:
        raise SteppeError(f"--range {ranges[0]} is for a search: give the number of points with --search 20.")
    if not choices and not spans:
        raise SteppeError("sweep needs something to vary: --grid rho=0.1,0.5, or --search 20 --range rho=0.01..1:log.")

    def point(values: dict[str, Any]) -> Point:
        """Make a point: use the values that the algorithm has, in addition to what all points share."""
        name = values.get("algorithm", names[0])
        mine = {k: v for k, v in values.items() if k == "algorithm" or arguments.share_sets([f"{k}={v}"], names)[name]}
        given = [f"{k}={v}" for k, v in mine.items() if k != "algorithm"]
        shared = arguments.share_sets(sets, names)[name]
        chosen = arguments.read_configuration(name, config, [*shared, *given], add, rounds)
        settings = {k: parse_value(str(v)) for k, v in mine.items()}
        label = ",".join(f"{k}={v}" for k, v in settings.items()) or name
        return Point(label, chosen, settings)

    # Check every point of the grid, or the corners of the search, before anything is written.
    points = make_points(point, choices, spans)
    first = points[0].config
    if search is not None and not all(p.config.validation for p in points):
        raise SteppeError("A search chooses by the validation metric, never by the test set: hold out a share of the "
                          "training data, with --set validation=0.1.")  # fmt: skip
    where = out or Path("runs") / f"sweep-{_hash_shared(points[0])}"
    searched = Search(spans, choices, search, point, first.seed, where) if search else None
    arguments.tell_seed(seeds, sets)
    with terminal.explain_interrupt(f"continue with the same command, in {where}"):
        points = run_all(points, seeds, where, jobs, on, search=searched)
    title = (f"{', '.join(names)} on {first.data}, {first.partition}, {first.clients} clients, "
             f"{pluralize(first.rounds, 'round')}")  # fmt: skip
    runs = SweptRuns(points, seeds, where, title)
    found = runs.write_summary()
    if as_json:
        print(json.dumps(found))
    else:
        terminal.print_table(title, *runs.cells(), ("test, last", "validation, last", "test loss", "validation loss"))
        terminal.show_text(runs.legend)
        terminal.show(f"runs and sweep.json are in {where}")
    report_failures(points)


def report_failures(points: list[Point]) -> None:
    """Print why runs failed, and exit with code 3 if any did."""
    for p in points:
        for seed, why in sorted(p.failed.items()):
            print(f"failed: {p.label}, seed {seed}: {why}", file=sys.stderr)
    if any(p.failed for p in points):
        raise typer.Exit(3)


def _find_algorithm(path: Path | None) -> str:
    from steppe.config import Config
    from steppe.read_config import read_config_file

    return str((read_config_file(path) if path else {}).get("algorithm", Config.model_fields["algorithm"].default))


def _read_spans(ranges: list[str], names: list[str], taken: list[str]) -> dict[str, Range]:
    """Return the ranges by key; whole numbers only for settings that are whole."""
    from dataclasses import replace
    from typing import get_args

    from steppe.config import Config
    from steppe.jobs.search import parse_range
    from steppe.registry import list_catalogue_settings

    spans: dict[str, Range] = {}
    for text in ranges:
        key, span = parse_range(text)
        if key in spans or key in taken:
            raise SteppeError(f"--range {text}: {key} is given twice")
        known = Config.model_fields.get(key)
        kinds = (known.annotation, *get_args(known.annotation)) if known else ()
        real = float in kinds or any(isinstance(list_catalogue_settings(n).get(key), float) for n in names)
        spans[key] = replace(span, whole=span.whole and not real)
    return spans


def _check_key(text: str, key: str, names: list[str], option: str) -> None:
    try:
        arguments.share_sets([f"{key}=0"], names)
    except SteppeError as error:
        raise SteppeError(str(error).replace(f"--set {key}=0", f"{option} {text}", 1)) from None


def _hash_shared(point: Point) -> str:
    """Return a name for what all points share, so that a wider grid finds the runs of a narrower one."""
    plain = {k: v.default for k, v in type(point.config).model_fields.items() if k in point.settings or k == "rounds"}
    settings = {k: v for k, v in point.config.settings.items() if k not in point.settings}
    return point.config.model_copy(update={**plain, "settings": settings}).hash
