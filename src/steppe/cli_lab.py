"""The laboratory's commands: compare algorithms over seeds, measure the models of finished runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe import words
from steppe.cli import ConfigFile, Debug, Json, Out, Rounds, Set, app
from steppe.errors import SteppeError
from steppe.report import terminal
from steppe.report.progress import Progress

if TYPE_CHECKING:
    from steppe.simulate.analysis import Options

Samples = Annotated[int, typer.Option("--samples", min=1, help="Training examples that measures look at, at most.")]


@app.command()
def analyze(runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of comparisons.")],
            measures: Annotated[str, typer.Option("--measures", "-m", metavar="NAME,…", help="Measures or groups "
                                "(usual, hessian, clients, numbers): steppe list.")] = "usual",
            samples: Samples = 5000,
            clients: Annotated[int | None, typer.Option("--clients", min=1, help="Clients of the extra round that "
                               "measures of clients play; default: the run's own next round.")] = None,
            landscape: Annotated[int | None, typer.Option("--landscape", min=2, metavar="POINTS", help="Also compute "
                                 "the landscape, with this many points a side.")] = None,
            seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sample, probes and directions.")] = 0,
            device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, auto; default: the run's.")] = None,
            as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Measure the flatness of finished runs: compute what is missing, keep it in their folders, show a table."""
    from steppe.report import analysis as shown
    from steppe.simulate.analysis import Options, runs_in
    from steppe.simulate.measure import chosen

    asked = [name.strip() for name in measures.split(",") if name.strip()]
    names = chosen([*asked, *(["landscape"] if landscape is not None else [])])
    folders = runs_in(runs)
    if not names:
        raise SteppeError("--measures names nothing to measure: leave it out, or see steppe list.")
    if "line_runs" in names and len(folders) < 2:
        raise SteppeError("line_runs is a line between the models of several runs: give at least two.")
    found, failed = measured(folders, names, Options(samples, seed, clients, landscape or 21, device), Progress(0).say)
    if as_json:
        told = {str(p): content for p, content in found.items()}
        print(json.dumps({"runs": told, "failed": {str(p): why for p, why in failed.items()}}))
    elif found:
        label = dict(zip(folders, shown.labels(folders), strict=True))
        rows = {label[p]: shown.numbers(content, names) for p, content in found.items()}
        contents = {label[p]: content for p, content in found.items()}
        for table in [*shown.tables(rows), *shown.profiles(contents, names)]:
            _print(table)
        on = sorted({str(content["sample"]) for content in found.values()})
        terminal.show(f"± is the standard error. Measured on {'; '.join(on)}; kept in each run's analysis.json, arrays "
                      "in its folder analysis")  # fmt: skip
    if failed:
        raise SteppeError("\n".join(dict.fromkeys(failed.values())))


def measured(folders: list[Path], names: list[str], options: Options,
             say: Any) -> tuple[dict[Path, Any], dict[Path, str]]:  # fmt: skip
    """Every run's analysis, and what went wrong with some: one bad run does not stop the others."""
    from steppe.simulate.analysis import Analysis

    found: dict[Path, Any] = {}
    failed: dict[Path, str] = {}
    first: Analysis | None = None
    for where in folders:
        try:
            one = Analysis(where, options)
            found[where] = one.stored()
            found[where] = one.measure(names, first, say)
            if "line_runs" in names and first is None:  # the others' lines begin at its model
                first = one
        except SteppeError as error:
            failed[where] = str(error)
    return {p: content for p, content in found.items() if content["measures"]}, failed


def _print(table: Any) -> None:
    from steppe.report.analysis import fitting

    for piece in fitting(table, terminal.console().width):
        terminal.print_table(piece.title, piece.columns, piece.rows)
    if table.legend:
        terminal.show(f"[dim]{terminal.escaped(table.legend)}[/]")
    terminal.show("")


@app.command()
def compare(algorithms: Annotated[list[str] | None, typer.Argument(help="Names of the catalogue.")] = None,
            everything: Annotated[bool, typer.Option("--all", help="Every algorithm of the catalogue.")] = False,
            config: ConfigFile = None, sets: Set = [], rounds: Rounds = None,  # noqa: B006
            seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, with seeds seed, seed+1, …")] = 1,
            measures: Annotated[str | None, typer.Option("--measures", "-m", metavar="NAME,…", help="Also analyse the "
                                "final models, such as lambda1,trace or usual.")] = None,
            samples: Samples = 5000, out: Out = None, as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Run several algorithms under one protocol: mean ± standard deviation, a test against the first, costs, a plot.

    A name may carry parts and settings of its own: fedsam+man, fedsam:rho=0.5, fedsmoo:rho=0.1+ema.
    """
    from dataclasses import asdict

    from steppe.algorithms import CATALOGUE
    from steppe.report.figures import curves
    from steppe.report.tables import comparison
    from steppe.simulate import folder
    from steppe.simulate.compare import compare as run_all
    from steppe.simulate.measure import chosen

    names = list(CATALOGUE) if everything else algorithms or []
    if not names:
        raise SteppeError("compare needs at least one algorithm: steppe compare fedavg fedsam, or --all.")
    to_measure = chosen([name.strip() for name in (measures or "").split(",") if name.strip()])
    spelled = {name: words.spelled_out(name) for name in dict.fromkeys(names)}
    shared = words.shared_sets(sets, [algorithm for algorithm, _, _ in spelled.values()])
    configs = {name: words.configuration(algorithm, config, [*shared[algorithm], *own], add, rounds)
               for name, (algorithm, own, add) in spelled.items()}  # fmt: skip
    where = out or words.free_folder("compare", resume=False)

    def watch(label: str, seed: int) -> Any:
        progress.begin(f"{label}, seed {seed}" if seeds > 1 else label)
        return progress.round

    first = next(iter(configs.values()))
    try:
        with Progress(first.rounds) as progress:
            entries = run_all(configs, seeds, where, watch, progress.say)
            flat, trouble = _flatness(where, entries, to_measure, samples, progress.say) if to_measure else (None, [])
    except KeyboardInterrupt:
        print(f"\ninterrupted; go on with the same command and --out {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    lines = comparison(entries)
    failed = {e.algorithm: e.failed for e in entries if e.failed}
    title = (
        f"{first.data}, {first.partition}, {first.clients} clients, {first.per_round} a round, {first.rounds} rounds"
    )
    histories = {e.algorithm: e.histories for e in entries if e.histories}
    if histories:
        curves(histories, where / "curves.png", title)
    told = {"lines": [asdict(one) for one in lines], "failed": failed, **({"flatness": flat} if flat else {})}
    folder.write_json(where / "comparison.json", told)
    if as_json:
        print(json.dumps({"folder": str(where), **told}))
    else:
        _show_comparison(title, lines, flat)
        terminal.show(f"runs, comparison.json and curves.png are in {where}")
    if failed or trouble:
        for name, reasons in failed.items():
            print(f"failed: {name}: {'; '.join(reasons.values())}", file=sys.stderr)
        for reason in trouble:
            print(f"not measured: {reason}", file=sys.stderr)
        raise typer.Exit(3)


def _flatness(where: Path, entries: list[Any], names: list[str], samples: int,
              say: Any) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """The sample, and for each algorithm every column's mean over seeds with its standard deviation."""
    from steppe.report.analysis import numbers, over_seeds
    from steppe.simulate.analysis import Options

    folders = {e.algorithm: [where / e.algorithm / f"seed-{seed}" for seed in e.seeds] for e in entries}
    found, failed = measured([p for several in folders.values() for p in several], names, Options(samples), say)
    each = {label: [numbers(found[p], names) for p in several if p in found] for label, several in folders.items()}
    rows = {label: over_seeds(several) for label, several in each.items() if several}
    samples_ = sorted({str(content["sample"]) for content in found.values()})
    return {"sample": "; ".join(samples_), "rows": rows}, list(dict.fromkeys(failed.values()))


def _show_comparison(title: str, lines: list[Any], flat: dict[str, Any] | None) -> None:
    from steppe.report import analysis as shown
    from steppe.report.tables import LEGEND, cells

    columns, rows, spare = cells(lines)
    terminal.print_table(title, columns, rows, spare)
    terminal.show("; ".join(LEGEND[c] for c in columns if c in LEGEND))
    if flat and flat["rows"]:
        over = "standard deviation over seeds" if max(one.seeds for one in lines) > 1 else "standard error"
        terminal.show(f"\nfinal models, ± {over}, measured on {flat['sample']}\n")
        for table in shown.tables(flat["rows"], "algorithm"):
            _print(table)
