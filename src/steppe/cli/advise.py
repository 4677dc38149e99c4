"""`steppe advise`: choose a method by the rows of the league, the survey and the published tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli import terminal
from steppe.cli.options import Debug, Json, app, take_number
from steppe.core.errors import SteppeError

LEGEND = ("undecided: the runs do not show which is better; behind: less accurate; beyond limits: more accurate, but "
          "it costs more than you allow; bytes and FLOPs: multiples of FedAvg's; kept: vectors of the model's size "
          "that a client keeps")  # fmt: skip


@app.command()
def advise(
    clients: Annotated[int | None, take_number("--clients", help="Total number of clients.")] = None,
    per_round: Annotated[int | None, take_number("--per-round", help="Clients per round.")] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Partition nearest to the clients' data, such as "
                         "'lda(0.1)'.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Data set nearest to the clients' data, such as "
                                                            "cifar10.")] = None,
    stateless: Annotated[bool, typer.Option("--stateless", help="Consider only methods that keep no state on "
                                                                "clients.")] = False,
    max_bytes: Annotated[float | None, typer.Option("--max-bytes", min=0, help="Largest traffic allowed, as a multiple "
                         "of FedAvg's.")] = None,
    max_flops: Annotated[float | None, typer.Option("--max-flops", min=0, help="Most FLOPs allowed, as a multiple "
                         "of FedAvg's.")] = None,
    results: Annotated[Path | None, typer.Option("--results", help="Folder with further result rows.")] = None,
    as_json: Json = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Recommend the method that did best within your limits, in the setting nearest to your federation."""
    from steppe.reproduce import rows
    from steppe.reproduce.advice import Wish
    from steppe.reproduce.advice import advise as answer
    from steppe.reproduce.method_results import collect_evidence, list_tuned, list_uncompared

    if clients and per_round and per_round > clients:
        raise SteppeError(f"--per-round is {per_round}, but there are only {clients} clients: lower --per-round.")
    if results and not results.is_dir():
        raise SteppeError(f"--results {results}: there is no such folder.")
    wish = Wish(clients, per_round, partition, data, stateless, max_bytes, max_flops)
    known = rows.read_folders([rows.find_ours(), *([results] if results else [])], check=True)
    told = answer(wish, collect_evidence(known), list_uncompared(known), list_tuned(known))
    if as_json:
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    _show(told)


def _show(told: dict[str, Any]) -> None:
    from steppe.reproduce.choose_page import format_distance

    if (best := told["advice"]) is None:
        for gap in told["gaps"]:
            terminal.show_text(terminal.escape(f"no evidence: {gap}"))
        return
    terminal.show_text(f"[bold]{terminal.escape(best['method'])}[/]: {format_number(best)}; {_format_costs(best)}")
    terminal.show(terminal.escape(f"  {best['run']}"))
    terminal.show("  (add your own --data, --model, --partition and --clients)\n")
    counts = [e["seeds"] for e in (best, *told["level"], *told["others"])]
    runs = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
    unit = "block" if told["source"] == "league" else "seed"
    terminal.show_text(terminal.escape(f"evidence: {told['source']}, {told['setting']}, {runs} "
                                       f"{unit}{'s' if max(counts) > 1 else ''} per method; the best of "
                                       f"{told['compared']} there, so its lead is probably a little too "
                                       "large"))  # fmt: skip
    for gap in told["gaps"]:
        terminal.show_text(terminal.escape(f"- {gap}"))
    verdicts = {"undecided": told["level"], "behind": told["others"], "beyond limits": told["beyond_limits"]}
    rows = [[e["method"], _format_accuracy(e), verdict, f"{e['bytes']:g}×", f"{e['flops']:g}×", f"{e['kept']:g}",
             format_distance(e) if verdict == "undecided" else ""]
            for verdict, several in verdicts.items() for e in several]  # fmt: skip
    if rows:
        terminal.show("")
        head = ["method", "accuracy, %", "verdict", "bytes", "FLOPs", "kept", "points from the answer"]
        terminal.print_table("other methods in this setting", head, rows, spare=(head[-1],))
        terminal.show_text(LEGEND)


def format_number(e: dict[str, Any]) -> str:
    """Return an accuracy, and how far it is from FedAvg's."""
    gains = ""
    for name, key in (("FedAvg", "over_fedavg"), ("FedAvg + EMA", "over_fedavg_ema")):
        if (over := e[key]) is not None:
            half = f" ± {e[f'{key}_half_width']:.2f}" if e[f"{key}_half_width"] is not None else ""
            gains += f", {abs(over):.2f}{half} points {'above' if over >= 0 else 'below'} {name}"
    return f"{_format_accuracy(e)} %{gains}"


def _format_accuracy(e: dict[str, Any]) -> str:
    return f"{e['accuracy']:.2f}" + (f" ± {e['half_width']:.2f}" if e["half_width"] is not None else "")


def _format_costs(e: dict[str, Any]) -> str:
    kept = f"{e['kept']:g} vector{'' if e['kept'] == 1 else 's'}" if e["kept"] >= 0.005 else "nothing"
    return f"{e['bytes']:g}× bytes, {e['flops']:g}× FLOPs, {kept} kept by each client"
