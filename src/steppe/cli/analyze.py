"""The command that measures the models of finished runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import terminal
from steppe.cli.options import Debug, Json, app, take_number
from steppe.core.errors import SteppeError

if TYPE_CHECKING:
    from steppe.analysis import Options

Target = tuple[Path, int | None]  # a run, and the client whose loss is measured; None: the global loss
Samples = Annotated[int, take_number("--samples", help="Largest number of training examples to measure on.")]


@app.command()
def analyze(runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of comparisons.")],
            measures: Annotated[str, typer.Option("--measures", "-m", metavar="NAME,…", help="Measures, or groups "
                                "(usual, hessian, clients, numbers, drawn, all); see steppe list measures.")] = "usual",
            samples: Samples = 5000,
            clients: Annotated[int | None, take_number("--clients", help="Number of clients in the "
                               "extra round for measures of clients (default: those of the run's next round).")] = None,
            client: Annotated[str | None, typer.Option("--client", metavar="I,…", help="Measure the loss of these "
                              "clients instead of the global one: 3, or 0,4,7, or all.")] = None,
            landscape: Annotated[int | None, typer.Option("--landscape", min=2, metavar="POINTS", help="Also compute "
                                 "the landscape, with this many points per side.")] = None,
            seed: Annotated[int, take_number("--seed", min=0, help="Seed of the sample, probes and directions.")] = 0,
            device: Annotated[str | None, typer.Option("--device", help="Device to measure on (default: the "
                                                                        "run's).")] = None,
            as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Measure the flatness of finished runs: compute missing measures, store them in the folders, show a table."""
    from steppe.analysis import Options
    from steppe.engine.progress import Display
    from steppe.measures.during_training import MEASURES, choose_measures
    from steppe.report import measure_tables
    from steppe.runs.folder import RunFolder

    asked = [name.strip() for name in measures.split(",") if name.strip()]
    names = choose_measures([*asked, *(["landscape"] if landscape is not None else [])])
    folders = [one.path for one in RunFolder.find(runs)]
    if client is not None:
        names = [n for n in names if n in asked or not MEASURES[n].clients]  # groups leave out measures of clients
    if not names:
        raise SteppeError("--measures selects no measure: leave it out, or see steppe list measures.")
    for name in names:
        if MEASURES[name].runs > len(folders):
            raise SteppeError(f"{name} compares the models of several runs: give at least {MEASURES[name].runs} runs.")
    options = Options(samples, seed, clients, None, landscape or 21, device)
    how = "the measures that are done are stored, and the same command continues"
    with terminal.explain_interrupt(how), Display():
        found, failed = measure_runs(folders, names, options, client)
    if as_json:
        told, wrong = ({f"{where}{_name_client(i)}": v for (where, i), v in those.items()} for those in (found, failed))
        print(json.dumps({"runs": told, "failed": wrong}))
    elif found:
        short = dict(zip(folders, measure_tables.shorten_paths(folders), strict=True))
        contents = {f"{short[where]}{_name_client(i)}": content for (where, i), content in found.items()}
        rows = {label: measure_tables.read_numbers(content, names) for label, content in contents.items()}
        for table in [*measure_tables.make_tables(rows), *measure_tables.make_profile_tables(contents, names)]:
            print_measures(table)
        on = sorted({str(content["sample"]) for content in found.values()})
        terminal.show_text("± is the standard error unless a table says otherwise. Measured on "
                           f"{'; '.join(on)}; stored in each run's analysis.json, arrays in its folder "
                           "analysis/")  # fmt: skip
    if failed:
        raise SteppeError("\n".join(dict.fromkeys(failed.values())))


def measure_runs(folders: list[Path], names: list[str], options: Options,
             clients: str | None = None) -> tuple[dict[Target, Any], dict[Target, str]]:  # fmt: skip
    """Measure every run; return the analyses, and the errors of runs that failed: they do not stop the others."""
    from steppe.analysis import Analysis
    from steppe.measures.during_training import MEASURES

    found: dict[Target, Any] = {}
    failed: dict[Target, str] = {}
    others: list[Analysis] = []
    for where in folders:
        for i in [None] if clients is None else _read_clients(clients, where):
            try:
                one = Analysis(where, replace(options, client=i))
                found[where, i] = one.stored()
                found[where, i] = one.measure(names, others)
                if len(others) + 1 < max(MEASURES[n].runs for n in names):  # lines of later runs start at its model
                    others.append(one)
            except SteppeError as error:
                failed[where, i] = str(error) if str(where) in str(error) else f"{where}{_name_client(i)}: {error}"
    return {key: content for key, content in found.items() if content["measures"]}, failed


def _read_clients(text: str, where: Path) -> list[int]:
    """Parse `all`, or numbers separated by commas."""
    from steppe.runs.folder import RunFolder

    if text.strip() == "all":
        return list(range(RunFolder(where).stored["clients"]))
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise SteppeError(f"--client {text}: give the clients' numbers, such as 3 or 0,4,7, or all.")
    return [int(part) for part in text.split(",")]


def _name_client(client: int | None) -> str:
    return "" if client is None else f", client {client}"


def print_measures(table: Any) -> None:
    from steppe.report.measure_tables import split_to_width

    for piece in split_to_width(table, terminal.make_console().width):
        terminal.print_table(piece.title, piece.columns, piece.rows)
    if table.note:
        terminal.show_text(f"[dim]{terminal.escape(table.note)}[/]")
    terminal.show("")
