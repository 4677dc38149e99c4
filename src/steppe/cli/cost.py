"""Commands that inspect an algorithm: its costs, and every number of its rounds on quadratics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Add, Debug, Json, Set, app, take_number
from steppe.core.errors import SteppeError


@app.command()
def cost(algorithms: Annotated[list[str] | None, typer.Argument(help="Algorithms, as for steppe run.")] = None,
         everything: Annotated[bool, typer.Option("--all", help="Show every algorithm of the catalogue.")] = False,
         model: Annotated[str, typer.Option("--model", help="Model on which the costs are traced.")] = "cnn",
         data: Annotated[str | None, typer.Option("--data", help="Data set from which the model gets a batch, "
                                                                 "instead of --shape and --classes.")] = None,
         shape: Annotated[str, typer.Option("--shape", help="Input shape, channels×height×width.")] = "3x32x32",
         classes: Annotated[int, take_number("--classes", min=2, max=10**6, help="Number of classes.")] = 10,
         batch: Annotated[int, take_number("--batch", max=10**6, help="Batch size of a step.")] = 50,
         sets: Set = [], add: Add = [], as_json: Json = False, debug: Debug = False) -> None:  # noqa: B006  # fmt: skip
    """Show what algorithms cost: vectors, bytes, gradients, forward passes and FLOPs, measured by tracing."""
    from steppe.algorithms import CATALOGUE
    from steppe.engine.traced_costs import CostTracer
    from steppe.report.formats import format_bytes
    from steppe.settings import split_algorithm

    names = list(CATALOGUE) if everything or not algorithms else algorithms
    shared = arguments.share_sets(sets, [split_algorithm(name)[0] for name in names])
    asked = {name: shared[split_algorithm(name)[0]] for name in names}
    tracer = CostTracer(model, data, arguments.parse_shape(shape), classes, batch)
    rows, parameters = [tracer.trace_written(name, s, add) for name, s in asked.items()], tracer.task.layout.size
    if as_json:
        print(json.dumps({"model": model, "parameters": parameters, "rows": rows}, indent=1))
        return
    cells = [[r["algorithm"], f"{r['down']:.2f}", f"{r['up']:.2f}", f"{r['kept']:.2f}",
              format_bytes(r["bytes_down"] + r["bytes_up"]), f"{r['bytes_x']:.2f}", str(r["gradients"]),
              str(r["forwards"]),
              f"{r['flops'] / 1e9:.2f}", f"{r['flops_x']:.2f}"] for r in rows]  # fmt: skip
    terminal.print_table(f"one client's round; {model}, {parameters:,} parameters, batch {batch}",
           ["algorithm", "down", "up", "kept", "traffic", "×avg", "grad", "fwd", "GFLOP", "×avg "], cells,
           spare=("×avg", "×avg "))  # fmt: skip
    terminal.show_text("down, up and kept: multiples of the model; traffic: bytes down and up; grad: gradients (a "
                       "forward and a backward pass); fwd: additional forward passes; ×avg: compared with "
                       "FedAvg")  # fmt: skip


@app.command()
def trace(algorithm: Annotated[str, typer.Argument(help="Algorithm, as for steppe run.")],
          problem: Annotated[Path, typer.Option("--problem", "-p", help="JSON file with the quadratics.")],
          sets: Set = [], add: Add = [], debug: Debug = False) -> None:  # noqa: B006  # fmt: skip
    """Run an algorithm on a federation of quadratics and print every round's state as JSON (float64)."""
    from steppe.engine.quadratics import read_problem
    from steppe.engine.quadratics import trace as run_trace
    from steppe.read_config import format_option, parse_option
    from steppe.registry import find_entry, list_settings
    from steppe.settings import split_algorithm

    checked = read_problem(problem)
    name, own_sets, parts = split_algorithm(algorithm)
    settings, own = {}, list_settings(find_entry(name))
    for text in (*own_sets, *sets):
        key, value = parse_option(text, own)
        if not key.startswith("settings."):
            raise SteppeError(f"{format_option(text)}: {key} belongs to the problem file here, like lr and momentum.")
        settings[key.removeprefix("settings.")] = value
    print(json.dumps(run_trace(name, checked, settings, [*parts, *add])))
