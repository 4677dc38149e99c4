"""The command that compares algorithms over seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.analyze import Samples, measure_runs, print_measures
from steppe.cli.options import Add, ConfigFile, Debug, Json, On, Out, Rounds, Set, app, take_number
from steppe.core.errors import SteppeError
from steppe.settings import split_algorithm

if TYPE_CHECKING:
    from steppe.report.result_objects import ComparedRuns


@app.command()
def compare(algorithms: Annotated[list[str] | None, typer.Argument(help="Algorithms, as for steppe run.")] = None,
            everything: Annotated[bool, typer.Option("--all", help="Compare every algorithm of the "
                                                                   "catalogue.")] = False,
            config: ConfigFile = None, sets: Set = [], add: Add = [], rounds: Rounds = None,  # noqa: B006
            seeds: Annotated[int, take_number("--seeds", max=10_000, help="Runs per algorithm, with seeds "
                             "seed, seed+1, …")] = 1,
            measures: Annotated[str, typer.Option("--measures", "-m", metavar="NAME,…", help="Measures of the final "
                                "models, such as lambda1,trace or usual; or none.")] = "lambda1,sharpness",
            samples: Samples = 1000,
            jobs: Annotated[int, take_number("--jobs", "-j", help="Number of parallel runs, each in its own "
                            "process; with 1, they run in this process.")] = 1,
            on: On = None, out: Out = None, as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Compare algorithms under one protocol: mean ± deviation, a test against the first, costs, flatness, a plot.

    A name may have its own settings and parts, such as fedsam:rho=0.5+man; --add adds a part to all of them.
    """
    from steppe.algorithms import CATALOGUE
    from steppe.cli.sweep import report_failures
    from steppe.engine.progress import Display
    from steppe.jobs.many_runs import run_all
    from steppe.jobs.points import Point
    from steppe.measures.during_training import choose_measures
    from steppe.report.formats import pluralize
    from steppe.report.result_objects import ComparedRuns

    names = list(CATALOGUE) if everything else algorithms or []
    if not names:
        raise SteppeError("compare needs at least one algorithm: steppe compare fedavg fedsam, or --all.")
    asked = [name.strip() for name in measures.split(",") if name.strip()]
    to_measure = [] if asked == ["none"] else choose_measures(asked)
    configs = _configure(names, config, sets, add, rounds)
    where = out or arguments.find_free_folder("compare", resume=False)

    first = next(iter(configs.values()))
    arguments.tell_seed(seeds, sets)
    with terminal.explain_interrupt(f"continue with the same command and --out {where}"):
        points = run_all([Point(label, one) for label, one in configs.items()], seeds, where, jobs, on)
        with Display():
            flat, trouble = _measure_flatness(points, to_measure, samples) if to_measure else (None, [])
    title = (f"{first.data}, {first.partition}, {first.clients} clients, {first.per_round} per round, "
             f"{pluralize(first.rounds, 'round')}")  # fmt: skip
    runs = ComparedRuns(points, seeds, where, title)
    found = runs.write_summary(flat)
    if as_json:
        print(json.dumps({"folder": str(where), **found}))
    else:
        _show_comparison(runs, flat)
        if runs.lines:
            _say_what_was_found(points, flat)
            terminal.show(f"picture: {where / 'curves.png'}; one page with everything: steppe report {where}")
        terminal.show(f"runs and comparison.json are in {where}")
    for reason in trouble:
        print(f"not measured: {reason}", file=sys.stderr)
    report_failures(points)
    if trouble:
        raise typer.Exit(3)


def _configure(names: list[str], path: Path | None, sets: list[str], add: list[str],
               rounds: int | None) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of each algorithm, by its name including the added parts."""
    from steppe.registry import name_part

    spelled = {name: split_algorithm(name) for name in dict.fromkeys(names)}
    shared = arguments.share_sets(sets, [algorithm for algorithm, _, _ in spelled.values()])
    with_parts = [name_part(part) for part in add]
    return {"+".join([name, *with_parts]):
            arguments.read_configuration(algorithm, path, [*shared[algorithm], *own], [*parts, *add], rounds)
            for name, (algorithm, own, parts) in spelled.items()}  # fmt: skip


def _measure_flatness(points: list[Any], names: list[str], samples: int) -> tuple[dict[str, Any], list[str]]:
    """Measure the final models: the sample, and every column's mean and deviation over seeds, by algorithm."""
    from steppe.analysis import Options
    from steppe.report.measure_tables import average_seeds, read_numbers

    folders = {p.label: [p.run(seed).path for seed in sorted(p.results)] for p in points}
    found, failed = measure_runs([p for several in folders.values() for p in several], names, Options(samples))
    each = {label: [read_numbers(found[p, None], names) for p in several if (p, None) in found]
            for label, several in folders.items()}  # fmt: skip
    rows = {label: average_seeds(several) for label, several in each.items() if several}
    samples_ = sorted({str(content["sample"]) for content in found.values()})
    return {"sample": "; ".join(samples_), "rows": rows}, list(dict.fromkeys(failed.values()))


def _say_what_was_found(points: list[Any], flat: dict[str, Any] | None) -> None:
    """Print sentences on which algorithm leads, at what cost, and whose minimum is the flattest."""
    from steppe.report.findings import find_flattest, write_headline, write_summary
    from steppe.report.read_runs import read

    found = read([p.run(seed).path for p in points for seed in sorted(p.results)])
    flattest = find_flattest(found) if flat else ""
    terminal.show_text(f"\n[bold]{terminal.escape(write_headline(found))}[/] {terminal.escape(write_summary(found))}"
                  f"{' ' * bool(flattest)}{terminal.escape(flattest)}\n")  # fmt: skip


def _show_comparison(runs: ComparedRuns, flat: dict[str, Any] | None) -> None:
    from steppe.report import measure_tables
    from steppe.report.compare_table import SPARE

    terminal.print_table(runs.title, *runs.cells(), SPARE)
    terminal.show_text(runs.legend)
    if flat and flat["rows"]:
        over = "standard deviation over seeds" if max(one.seeds for one in runs.lines) > 1 else "standard error"
        terminal.show(f"\nfinal models, ± {over}, measured on {flat['sample']}\n")
        for table in measure_tables.make_tables(flat["rows"], "algorithm"):
            print_measures(table)
