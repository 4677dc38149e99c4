"""The command that trains one federation."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Add, ConfigFile, Debug, Json, Out, Rounds, Set, app
from steppe.core.metric import show_loss
from steppe.engine.progress import Progress, format_privacy


@app.command()
def run(algorithm: Annotated[str | None, typer.Argument(help="Algorithm from the catalogue (steppe list algorithms), "
                             "optionally with settings and parts, such as fedsam:rho=0.5+man; or your own, "
                             "FILE.py:NAME or MODULE:NAME.")] = None,
        config: ConfigFile = None, sets: Set = [], add: Add = [], rounds: Rounds = None, out: Out = None,  # noqa: B006
        resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
        measure: Annotated[list[str], typer.Option("--measure", metavar="NAME[:EVERY]", help="Measure flatness during "
                           "training, such as lambda1:10 for every tenth round; may be repeated.")] = [],  # noqa: B006
        track: Annotated[list[str], typer.Option("--track", metavar="NAME", help="Tracker that follows the run: "
                         "tensorboard, wandb (offline) or mlflow; may be repeated.")] = [],  # noqa: B006
        as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Train one federation and record everything in a folder."""
    from steppe.distributed.torchrun import is_first, join, run_on_first
    from steppe.engine.build import build_experiment
    from steppe.engine.result import check_converged
    from steppe.engine.rounds import simulate
    from steppe.report.figures import draw_histories
    from steppe.report.formats import name_tail, pluralize
    from steppe.runs.curves import list_curves
    from steppe.runs.records import describe_score, replace_non_finite

    join()
    for key, names in (("measure", measure), ("track", track)):
        sets = [*sets, f"--{key}={json.dumps(names, ensure_ascii=False)}"] if names else sets
    chosen, label, where = run_on_first(lambda: arguments.choose_run(algorithm, config, sets, add, rounds, out, resume))
    built = build_experiment(chosen)
    metric = built.task.metric
    how = f"continue with: steppe run --resume --out {where}" if is_first() else ""
    with terminal.explain_interrupt(how), Progress(chosen.rounds, quiet=not is_first(), metric=metric) as progress:
        progress.begin(label)
        result = simulate(built, where, resume, progress.round)
    if not is_first():
        return
    title = f"{label} on {chosen.data}, {chosen.partition}"
    shown = list_curves(built.task.metrics, chosen.judged_on)
    draw_histories({label: [result.history]}, where / "curves.png", shown, title)
    if as_json:
        print(json.dumps(replace_non_finite({"folder": str(where), **result.summary})))
        check_converged(result.summary, where)
        return
    s = result.summary
    said = f"{describe_score(s, metric)} after {pluralize(s['rounds'], 'round')}"
    if s["evaluations"] > 1:
        said += (f" (mean of the {name_tail([s['evaluations']])} {metric.number(s['mean_of_last_ten'])}, "
                 f"best {metric.number(s['best'])})")  # fmt: skip
    if not s["rounds"]:
        said = f"not trained; the initial model has {describe_score(s, metric)}"
    terminal.show(f"[bold]{label}[/]: {said}, {show_loss(s['loss'])}, {s['seconds']:.1f} s")
    for other in built.task.metrics[1:]:
        if found := s["metrics"].get(other.name):
            terminal.show(f"{other.text(found['last'])} (best {other.number(found['best'])})")
    if "epsilon" in s:
        terminal.show(f"privacy spent: {format_privacy(s)} at δ = {s['delta']:g} (one client added or removed)")
    if "refused" in s:
        terminal.show(f"{s['refused']} replies were refused; {where / 'rounds.jsonl'} has the clients and the reasons")
    if "missing" in s or "simulated_seconds" in s:
        took = f"; simulated time {s['simulated_seconds']:.0f} s" if "simulated_seconds" in s else ""
        terminal.show(f"replies missing or late: {s.get('missing', 0)}{took}")
    for epochs, own in s.get("personal", {}).items():
        after = f"after {epochs} epochs of fine-tuning" if epochs != "0" else "without fine-tuning"
        terminal.show(
            f"clients' own models {after}: {metric.pair(own['mean'], own['std'], 2)}{metric.unit} over clients"
        )
    terminal.show(f"records, model and curves.png are in {where}")
    check_converged(s, where)
