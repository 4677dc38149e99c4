"""`steppe advise`: choose a method by the rows of the league, the survey and the published tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli import terminal
from steppe.cli.options import Debug, Json, app
from steppe.core.errors import SteppeError


@app.command()
def advise(
    clients: Annotated[int | None, typer.Option("--clients", min=1, help="Total number of clients.")] = None,
    per_round: Annotated[int | None, typer.Option("--per-round", min=1, help="Clients per round.")] = None,
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
    if told["advice"] is not None:
        best = told["advice"]
        terminal.show(terminal.escape(f"{best['method']}: {format_number(best)}, {_format_costs(best)}"))
        terminal.show(terminal.escape(f"  {best['run']}"))
        for e in told["others"]:  # one number each is enough for what is behind
            e |= {"over_fedavg": None, "over_fedavg_ema": None}
        counts = [e["seeds"] for e in (best, *told["level"], *told["others"])]
        runs = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
        unit = "block" if told["source"] == "league" else "seed"
        units = f"{unit}{'s' if max(counts) > 1 else ''} per method"
        terminal.show(terminal.escape(f"evidence: {told['source']}, {told['setting']}, {runs} {units}; the best of "
                                      f"{told['compared']} there, so its lead is probably "
                                      "a little too large"))  # fmt: skip
        for gap in told["gaps"]:
            terminal.show(terminal.escape(f"  but: {gap}"))
        for name, several in (("not told apart from it", told["level"]), ("behind it", told["others"]),
                              ("better, beyond the limits", told["beyond_limits"])):  # fmt: skip
            if several:
                each = "; ".join(f"{e['method']} ({format_number(e)}, {_format_costs(e)})" for e in several)
                terminal.show(terminal.escape(f"{name}: {each}"))
        if told["dominated"]:
            terminal.show(
                terminal.escape(f"less accurate there than a method that costs no more: {', '.join(told['dominated'])}")
            )
    for gap in told["gaps"] if told["advice"] is None else []:
        terminal.show(terminal.escape(f"no evidence: {gap}"))


def format_number(e: dict[str, Any]) -> str:
    """Return an accuracy, and how far it is from FedAvg's."""
    width = f" ± {e['half_width']:.2f}" if e["half_width"] is not None else ""
    gains = ""
    if (below := e.get("below")) is not None:
        half = f" ± {e['below_half_width']:.2f}" if e["below_half_width"] is not None else ""
        gains += f", {abs(below):.2f}{half} points {'below' if below >= 0 else 'above'} it"
    for name, key in (("FedAvg", "over_fedavg"), ("FedAvg + EMA", "over_fedavg_ema")):
        if (over := e[key]) is not None:
            half = f" ± {e[f'{key}_half_width']:.2f}" if e[f"{key}_half_width"] is not None else ""
            gains += f", {abs(over):.2f}{half} points {'above' if over >= 0 else 'below'} {name}"
    return f"{e['accuracy']:.2f}{width} %{gains}"


def _format_costs(e: dict[str, Any]) -> str:
    kept = f"{e['kept']:g} vector{'' if e['kept'] == 1 else 's'} kept" if e["kept"] >= 0.005 else "nothing kept"
    return f"{e['bytes']:g}× bytes, {e['flops']:g}× FLOPs, {kept}"
