"""The laboratory's commands: compare algorithms over seeds, measure the models of finished runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.app import ConfigFile, Debug, Json, Out, Rounds, Set, app
from steppe.core.errors import SteppeError
from steppe.settings import split_algorithm

if TYPE_CHECKING:
    from steppe.analysis import Options
    from steppe.core.metric import Metric

Whose = tuple[Path, int | None]  # a run, and the client whose loss is meant; None: the global one
Samples = Annotated[int, typer.Option("--samples", min=1, help="Training examples that measures look at, at most.")]


@app.command()
def analyze(runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of comparisons.")],
            measures: Annotated[str, typer.Option("--measures", "-m", metavar="NAME,…", help="Measures or groups "
                                "(usual, hessian, clients, numbers): steppe list.")] = "usual",
            samples: Samples = 5000,
            clients: Annotated[int | None, typer.Option("--clients", min=1, help="Clients of the extra round that "
                               "measures of clients play; default: the run's own next round.")] = None,
            client: Annotated[str | None, typer.Option("--client", metavar="I,…", help="Measure the loss of these "
                              "clients instead of the global one: 3, or 0,4,7, or all.")] = None,
            landscape: Annotated[int | None, typer.Option("--landscape", min=2, metavar="POINTS", help="Also compute "
                                 "the landscape, with this many points a side.")] = None,
            seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sample, probes and directions.")] = 0,
            device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, auto; default: the run's.")] = None,
            as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Measure the flatness of finished runs: compute what is missing, keep it in their folders, show a table."""
    from steppe.analysis import Options
    from steppe.engine.progress import Progress
    from steppe.measures.during_training import MEASURES, chosen
    from steppe.report import measure_tables as shown
    from steppe.runs.folder import RunFolder

    asked = [name.strip() for name in measures.split(",") if name.strip()]
    names = chosen([*asked, *(["landscape"] if landscape is not None else [])])
    folders = [one.path for one in RunFolder.find(runs)]
    if client is not None:
        names = [n for n in names if n in asked or not MEASURES[n].clients]  # groups leave out what the round is for
    if not names:
        raise SteppeError("--measures names nothing to measure: leave it out, or see steppe list.")
    for name in names:
        if MEASURES[name].runs > len(folders):
            raise SteppeError(f"{name} is between the models of several runs: give at least {MEASURES[name].runs}.")
    options = Options(samples, seed, clients, None, landscape or 21, device)
    with Progress(0):
        found, failed = measured(folders, names, options, client)
    if as_json:
        told, wrong = ({f"{where}{_whose(i)}": v for (where, i), v in those.items()} for those in (found, failed))
        print(json.dumps({"runs": told, "failed": wrong}))
    elif found:
        short = dict(zip(folders, shown.shorten_paths(folders), strict=True))
        contents = {f"{short[where]}{_whose(i)}": content for (where, i), content in found.items()}
        rows = {label: shown.read_numbers(content, names) for label, content in contents.items()}
        for table in [*shown.make_tables(rows), *shown.make_profile_tables(contents, names)]:
            _print(table)
        on = sorted({str(content["sample"]) for content in found.values()})
        terminal.show(f"± is the standard error. Measured on {'; '.join(on)}; kept in each run's analysis.json, arrays "
                      "in its folder analysis")  # fmt: skip
    if failed:
        raise SteppeError("\n".join(dict.fromkeys(failed.values())))


def measured(folders: list[Path], names: list[str], options: Options,
             clients: str | None = None) -> tuple[dict[Whose, Any], dict[Whose, str]]:  # fmt: skip
    """Every run's analysis, and what went wrong with some: one bad run does not stop the others."""
    from steppe.analysis import Analysis
    from steppe.measures.during_training import MEASURES

    found: dict[Whose, Any] = {}
    failed: dict[Whose, str] = {}
    others: list[Analysis] = []
    for where in folders:
        for i in [None] if clients is None else _clients(clients, where):
            try:
                one = Analysis(where, replace(options, client=i))
                found[where, i] = one.stored()
                found[where, i] = one.measure(names, others)
                if len(others) + 1 < max(MEASURES[n].runs for n in names):  # the others' lines begin at its model
                    others.append(one)
            except SteppeError as error:
                failed[where, i] = str(error) if str(where) in str(error) else f"{where}{_whose(i)}: {error}"
    return {key: content for key, content in found.items() if content["measures"]}, failed


def _clients(text: str, where: Path) -> list[int]:
    """`all`, or numbers with commas between them."""
    from steppe.runs.folder import RunFolder

    if text.strip() == "all":
        return list(range(RunFolder(where).stored["clients"]))
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise SteppeError(f"--client {text}: write clients by their numbers, such as 3 or 0,4,7; or all.")
    return [int(part) for part in text.split(",")]


def _whose(client: int | None) -> str:
    return "" if client is None else f", client {client}"


def _print(table: Any) -> None:
    from steppe.report.measure_tables import split_to_width

    for piece in split_to_width(table, terminal.console().width):
        terminal.print_table(piece.title, piece.columns, piece.rows)
    if table.legend:
        terminal.show(f"[dim]{terminal.escaped(table.legend)}[/]")
    terminal.show("")


@app.command()
def compare(algorithms: Annotated[list[str] | None, typer.Argument(help="Names of the catalogue.")] = None,
            everything: Annotated[bool, typer.Option("--all", help="Every algorithm of the catalogue.")] = False,
            config: ConfigFile = None, sets: Set = [], rounds: Rounds = None,  # noqa: B006
            seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per algorithm: seeds seed, seed+1, …")] = 1,
            measures: Annotated[str, typer.Option("--measures", "-m", metavar="NAME,…", help="What to measure of the "
                                "final models, such as lambda1,trace or usual; or none.")] = "lambda1,sharpness",
            samples: Samples = 1000,
            jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time, in processes of their own. "
                            "1: in this process.")] = 1,
            out: Out = None, as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Run several algorithms under one protocol: mean ± deviation, a test against the first, costs, flatness, a plot.

    A name may carry parts and settings of its own: fedsam+man, fedsam:rho=0.5, fedsmoo:rho=0.1+ema.
    """
    from dataclasses import asdict

    from steppe.algorithms import CATALOGUE
    from steppe.cli.sweep import report_failures
    from steppe.engine.progress import Progress
    from steppe.jobs.compare import compare as run_all
    from steppe.jobs.places import find_places
    from steppe.jobs.queue import Queue
    from steppe.jobs.queue_progress import QueueProgress
    from steppe.measures.during_training import chosen
    from steppe.report.compare_table import make_lines
    from steppe.report.figures import draw_histories
    from steppe.report.formats import pluralize
    from steppe.runs.folder import RunFolder

    names = list(CATALOGUE) if everything else algorithms or []
    if not names:
        raise SteppeError("compare needs at least one algorithm: steppe compare fedavg fedsam, or --all.")
    asked = [name.strip() for name in measures.split(",") if name.strip()]
    to_measure = [] if asked == ["none"] else chosen(asked)
    spelled = {name: split_algorithm(name) for name in dict.fromkeys(names)}
    shared = arguments.share_sets(sets, [algorithm for algorithm, _, _ in spelled.values()])
    configs = {name: arguments.read_configuration(algorithm, config, [*shared[algorithm], *own], add, rounds)
               for name, (algorithm, own, add) in spelled.items()}  # fmt: skip
    where = out or arguments.find_free_folder("compare", resume=False)

    first = next(iter(configs.values()))
    try:
        with QueueProgress() as progress:
            points = run_all(configs, seeds, where, Queue(find_places(jobs, first.device), progress))
        with Progress(0):
            flat, trouble = _flatness(points, to_measure, samples) if to_measure else (None, [])
    except KeyboardInterrupt:
        print(f"\ninterrupted; continue with the same command and --out {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    metric = next((p.metric for p in points if p.results), points[0].metric)
    lines = make_lines(points)
    failed = {p.label: p.failed for p in points if p.failed}
    title = (f"{first.data}, {first.partition}, {first.clients} clients, {first.per_round} per round, "
             f"{pluralize(first.rounds, 'round')}")  # fmt: skip
    histories = {p.label: p.histories for p in points if p.results}
    if histories:
        draw_histories(histories, where / "curves.png", metric, title)
    found = {"lines": [asdict(one) for one in lines], "failed": failed, **({"flatness": flat} if flat else {})}
    RunFolder(where).write("comparison.json", found)
    if as_json:
        print(json.dumps({"folder": str(where), **found}))
    else:
        _show_comparison(title, lines, metric, flat)
        terminal.show(f"runs, comparison.json and curves.png are in {where}")
    for reason in trouble:
        print(f"not measured: {reason}", file=sys.stderr)
    report_failures(points)
    if trouble:
        raise typer.Exit(3)


def _flatness(points: list[Any], names: list[str], samples: int) -> tuple[dict[str, Any], list[str]]:
    """The sample, and for each algorithm every column's mean over seeds with its standard deviation."""
    from steppe.analysis import Options
    from steppe.report.measure_tables import average_seeds, read_numbers

    folders = {p.label: [p.run(seed).path for seed in sorted(p.results)] for p in points}
    found, failed = measured([p for several in folders.values() for p in several], names, Options(samples))
    each = {label: [read_numbers(found[p, None], names) for p in several if (p, None) in found]
            for label, several in folders.items()}  # fmt: skip
    rows = {label: average_seeds(several) for label, several in each.items() if several}
    samples_ = sorted({str(content["sample"]) for content in found.values()})
    return {"sample": "; ".join(samples_), "rows": rows}, list(dict.fromkeys(failed.values()))


def _show_comparison(title: str, lines: list[Any], metric: Metric, flat: dict[str, Any] | None) -> None:
    from steppe.report import measure_tables as shown
    from steppe.report.compare_table import SPARE, explain_columns, make_cells

    columns, rows = make_cells(lines, metric)
    terminal.print_table(title, columns, rows, SPARE)
    terminal.show(explain_columns(columns, metric))
    if flat and flat["rows"]:
        over = "standard deviation over seeds" if max(one.seeds for one in lines) > 1 else "standard error"
        terminal.show(f"\nfinal models, ± {over}, measured on {flat['sample']}\n")
        for table in shown.make_tables(flat["rows"], "algorithm"):
            _print(table)
