"""The command line: a thin layer over the library. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.core.errors import SteppeError
from steppe.engine.progress import Progress, privacy_text
from steppe.executors.allocator import keep_memory

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Flatness-aware federated learning: run, compare, measure.")  # fmt: skip

Set = Annotated[list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="A key of the run or a setting of the "
                                        "algorithm; may be repeated.")]  # fmt: skip
Add = Annotated[list[str], typer.Option("--add", metavar="PART", help="A further part, such as man:weight=0.1.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file with keys of the run.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts; progress goes to standard error.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-r", help="Rounds of training.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")]


def main() -> None:
    """Run the command line; errors that a user can fix are one sentence and exit code 2."""
    keep_memory()
    try:
        arguments.check_torchrun(sys.argv[1:])
        app()
    except Exception as error:
        code = _exit_code(error)
        if code is None:  # a mistake of ours: all that is known about it must be seen
            raise
        if arguments.under_torchrun() and not arguments.may_speak():
            sys.exit(code)
        if "--debug" in sys.argv:
            import traceback

            traceback.print_exc()
        else:
            from rich.console import Console

            told = f"[bold red]error:[/] {terminal.escaped(_text(error))}"
            Console(stderr=True, soft_wrap=True).print(told, highlight=False)
        sys.exit(code)


def _exit_code(error: Exception) -> int | None:
    """2: something that the user can put right; 3: a run broke down; None: nothing that was foreseen."""
    if isinstance(error, SteppeError):
        return error.exit_code
    return 2 if isinstance(error, OSError) else None


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _version(wanted: bool) -> None:
    if wanted:
        from steppe import __version__

        print(f"steppe {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version,
                                                   help="Print the version.")] = False) -> None:  # fmt: skip
    """Options of no command in particular."""


@app.command()
def run(algorithm: Annotated[str | None, typer.Argument(help="A name of the catalogue (steppe list), with settings "
                             "and parts if you like: fedsam:rho=0.5+man.")] = None,
        config: ConfigFile = None, sets: Set = [], add: Add = [], rounds: Rounds = None, out: Out = None,  # noqa: B006
        resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
        measure: Annotated[list[str], typer.Option("--measure", metavar="NAME[:EVERY]", help="A measure of flatness "
                           "every so many rounds, such as lambda1:10; may be repeated.")] = [],  # noqa: B006
        track: Annotated[list[str], typer.Option("--track", metavar="NAME", help="A tracker that follows the run: "
                         "tensorboard, wandb (offline) or mlflow; may be repeated.")] = [],  # noqa: B006
        as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Train one federation and record everything in a folder."""
    from steppe.distributed.torchrun import agreed, first, join
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate
    from steppe.report.figures import curves

    join()
    if measure:
        sets = [*sets, f"measure={json.dumps(measure)}"]
    if track:
        sets = [*sets, f"track={json.dumps(track)}"]
    chosen, label, where = agreed(lambda: arguments.chosen_run(algorithm, config, sets, add, rounds, out, resume))
    built = build_experiment(chosen)
    metric = built.task.metric
    try:
        with Progress(chosen.rounds, quiet=not first(), metric=metric) as progress:
            progress.begin(label)
            result = simulate(built, where, resume, progress.round)
    except KeyboardInterrupt:
        if first():
            print(f"\ninterrupted; go on with: steppe run --resume --out {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not first():
        return
    curves({label: [result.history]}, where / "curves.png", f"{label} on {chosen.data}, {chosen.partition}", metric)
    if as_json:
        print(json.dumps({"folder": str(where), **result.summary}))
        return
    s = result.summary
    plural = "" if s["rounds"] == 1 else "s"
    terminal.show(f"[bold]{label}[/]: {metric.text(s['last'])} after {s['rounds']} round{plural} "
           f"(mean of the last ten {metric.number(s['mean_of_last_ten'])}, best {metric.number(s['best'])}), "
           f"loss {s['loss']:.4f}, {s['seconds']:.1f} s")  # fmt: skip
    if "epsilon" in s:
        terminal.show(f"privacy spent: {privacy_text(s)} at δ = {s['delta']:g} (one client added or removed)")
    if "refused" in s:
        terminal.show(f"{s['refused']} replies were refused: {where / 'rounds.jsonl'} says whose and why")
    if "missing" in s or "simulated_seconds" in s:
        took = f"; simulated time {s['simulated_seconds']:.0f} s" if "simulated_seconds" in s else ""
        terminal.show(f"replies that never came, or came too late: {s.get('missing', 0)}{took}")
    for epochs, own in s.get("personal", {}).items():
        after = f"after {epochs} epochs of their own" if epochs != "0" else "as they are"
        terminal.show(
            f"clients' own models {after}: {metric.pair(own['mean'], own['std'], 2)}{metric.unit} over clients"
        )
    terminal.show(f"records, model and curves.png are in {where}")


@app.command("list")
def list_(as_json: Json = False, debug: Debug = False) -> None:
    """Algorithms, parts, data sets, partitions, models, recipes and their settings."""
    from rich.table import Table

    from steppe.report.listing import catalogue

    everything = catalogue()
    if as_json:
        print(json.dumps(everything, indent=1))
        return
    for kind, entries in everything.items():
        table = Table(title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, entry in entries.items():
            settings = "  ".join(f"{k}={v}" for k, v in entry.get("settings", {}).items())
            cells = [terminal.escaped(text) for text in (name, entry["about"], settings)]
            table.add_row(f"[bold]{cells[0]}[/]", cells[1], f"[dim]{cells[2]}[/]")
        terminal.console().print(table)
        terminal.console().print()


@app.command()
def cost(algorithm: Annotated[str | None, typer.Argument(help="A name of the catalogue.")] = None,
         everything: Annotated[bool, typer.Option("--all", help="Every algorithm of the catalogue.")] = False,
         model: Annotated[str, typer.Option("--model", help="The model whose size counts.")] = "cnn",
         shape: Annotated[str, typer.Option("--shape", help="Its input, channels×height×width.")] = "3x32x32",
         classes: Annotated[int, typer.Option("--classes", min=2)] = 10,
         batch: Annotated[int, typer.Option("--batch", min=1, help="Batch size, for the FLOPs a step.")] = 50,
         sets: Set = [], add: Add = [], as_json: Json = False, debug: Debug = False) -> None:  # noqa: B006  # fmt: skip
    """What an algorithm costs: vectors and bytes, gradients, forwards and FLOPs, found by tracing."""
    from steppe.report.listing import cost_rows
    from steppe.report.tables import size

    names = None if everything or algorithm is None else [algorithm]
    rows, parameters = cost_rows(names, model, arguments.shape_of(shape), classes, batch, sets, add)
    if as_json:
        print(json.dumps({"model": model, "parameters": parameters, "rows": rows}, indent=1))
        return
    cells = [[r["algorithm"], f"{r['down']:.2f}", f"{r['up']:.2f}", f"{r['kept']:.2f}",
              size(r["bytes_down"] + r["bytes_up"]), f"{r['bytes_x']:.2f}", str(r["gradients"]), str(r["forwards"]),
              f"{r['flops'] / 1e9:.2f}", f"{r['flops_x']:.2f}"] for r in rows]  # fmt: skip
    terminal.print_table(f"one client's round; {model}, {parameters:,} parameters, batch {batch}",
           ["algorithm", "down", "up", "kept", "traffic", "×avg", "grad", "fwd", "GFLOP", "×avg "], cells,
           spare=("×avg", "×avg "))  # fmt: skip
    terminal.show("down, up and kept are multiples of the model, traffic is down and up in bytes; grad are gradients "
                  "(a forward and a backward pass), fwd forwards beside them; ×avg compares with FedAvg")  # fmt: skip


@app.command()
def plot(runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons.")],
         out: Annotated[Path, typer.Option("--out", "-o", help="The picture (png, svg, pdf).")] = Path("curves.png"),
         debug: Debug = False) -> None:  # fmt: skip
    """Curves of finished or unfinished runs in one picture."""
    from steppe.report.figures import curves
    from steppe.runs.folder import RunFolder

    arguments.check_picture(out)
    histories: dict[str, list[Any]] = {}
    whose: dict[str, Path] = {}
    metrics = {}
    for one in RunFolder.find(runs):
        records, metric = one.history, one.metric
        if not any(metric.name in r for r in records):
            raise SteppeError(f"{one} has no evaluated round yet, so there is nothing to draw.")
        home = one.path.parent if one.seed_of_several else one.path
        first = whose.setdefault(home.name, home)
        label = home.name if first == home else str(home)  # two runs of one name are not two seeds
        histories.setdefault(label, []).append(records)
        metrics[metric.name] = metric
    if len(metrics) > 1:
        raise SteppeError(f"The runs are judged by {' and '.join(metrics)}: draw them in pictures of their own.")
    curves(histories, out, metric=next(iter(metrics.values())))
    terminal.show(f"wrote {out}")


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons.")],
           out: Annotated[Path | None, typer.Option("--out", "-o", help="The file (default: report.html).")] = None,
           kind: Annotated[str | None, typer.Option("--format", help="html, md or tex.")] = None,
           figures: Annotated[Path | None, typer.Option("--figures", help="A folder for its figures.")] = None,
           picture: Annotated[str, typer.Option("--figure-format", help="png, svg or pdf.")] = "png",
           debug: Debug = False) -> None:  # fmt: skip
    """One self-contained page about finished runs: the answer, curves, costs, flatness, and every setting."""
    from steppe.report.write import write

    for path in write(runs, out, kind, figures, picture):
        terminal.show(f"wrote {path}")


@app.command()
def partition(data: Annotated[str, typer.Option("--data", help="A data set (steppe list).")] = "digits",
              rule: Annotated[str, typer.Option("--partition", help="Such as lda(0.1) or sharding(2).")] = "lda(0.3)",
              clients: Annotated[int, typer.Option("--clients", min=1)] = 20,
              seed: Annotated[int | None, typer.Option("--seed", help="Default: the rule's official one.")] = None,
              save: Annotated[Path | None, typer.Option("--save", help="Write it to a file (JSON).")] = None,
              picture: Annotated[Path | None, typer.Option("--plot", help="Draw clients × classes.")] = None,
              data_folder: Annotated[str | None, typer.Option("--data-folder")] = None,
              as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Split a data set over clients; show, save or draw the split."""
    from steppe.data import load
    from steppe.data.partition import make

    if picture:
        arguments.check_picture(picture)
    loaded = load(data, data_folder)
    split = make(rule, loaded.train_targets, clients, seed, classes=loaded.classes)
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
        terminal.show("  ".join(f"{k} {v}" for k, v in told.items()))


@app.command()
def cite(names: Annotated[list[str], typer.Argument(help="Algorithms or parts.")], debug: Debug = False) -> None:
    """BibTeX of algorithms and parts."""
    from steppe.citations import cite as bibtex

    print("\n\n".join(bibtex(name) for name in names))


@app.command()
def trace(algorithm: Annotated[str, typer.Argument(help="A name of the catalogue.")],
          problem: Annotated[Path, typer.Option("--problem", "-p", help="A JSON file with the quadratics.")],
          sets: Set = [], add: Add = [], debug: Debug = False) -> None:  # noqa: B006  # fmt: skip
    """Run an algorithm on a federation of quadratics and print every round's state as JSON (float64)."""
    from pydantic import ValidationError

    from steppe.config import assign
    from steppe.engine.quadratics import Client, Problem
    from steppe.engine.quadratics import trace as run_trace
    from steppe.registry import catalogue_settings

    try:
        content = json.loads(problem.read_text())
        checked = Problem(**content)
    except FileNotFoundError:
        raise SteppeError(f"There is no problem file {problem}.") from None
    except ValidationError as error:
        known = {"Problem": list(Problem.model_fields), "clients": list(Client.model_fields)}
        raise SteppeError(f"{problem}: {arguments.first_complaint(error, known)}") from None
    except (ValueError, TypeError) as error:
        raise SteppeError(f"{problem} is not a JSON object: {error}.") from None
    settings = {}
    for text in sets:
        key, value = assign(text, catalogue_settings(algorithm))
        if not key.startswith("settings."):
            raise SteppeError(f"--set {text}: {key} belongs to the problem file here, as lr, momentum and the rest.")
        settings[key.removeprefix("settings.")] = value
    print(json.dumps(run_trace(algorithm, checked, settings, add)))


from steppe.cli import federate, laboratory, reproduce, sweep  # noqa: E402, F401  # their commands join these
