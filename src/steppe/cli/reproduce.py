"""`steppe reproduce`: published tables, run again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli import terminal
from steppe.cli.app import Debug, Json, Out, app
from steppe.core.errors import SteppeError, nearest

ALONE = ("league", "list", "tables", "check")


@app.command()
def reproduce(
    tables: Annotated[list[str], typer.Argument(help="Tables, such as fedsol-table1; league; or list "
                      "(what there is), tables (write all from the rows), check (are they what the rows say).")],
    cells: Annotated[list[str], typer.Option("--cells", metavar="GLOB", help="Only these, such as 'cifar10/lda-0.1/*'; "
                     "may be repeated.")] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each cell, with seeds 0, 1, …")] = 1,
    scale: Annotated[str, typer.Option("--scale", help="paper, or tiny: the embedded digits, in a minute.")] = "paper",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at once; several may share one GPU.")] = 1,
    sharing: Annotated[int, typer.Option("--sharing", min=0, metavar="PROCESSES", help="Processes on this device in "
                       "all, where other commands use it too: seconds of the device are divided by it.")] = 0,
    budget: Annotated[float | None, typer.Option("--budget", min=0, metavar="SECONDS", help="Start nothing that would "
                      "not end in this time, and count what then still runs as not run.")] = None,
    tried: Annotated[bool, typer.Option("--tried", help="Also the alternative recipes of the tables.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and run nothing.")] = False,
    data_folder: Annotated[str | None, typer.Option("--data-folder", help="Default: $STEPPE_DATA or ./data.")] = None,
    results: Annotated[Path | None, typer.Option("--results", help="The folder of the rows.")] = None,
    out: Out = None, as_json: Json = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Published tables beside ours: run the cells that are missing, then write the tables."""
    from steppe.engine.devices import find_device
    from steppe.reproduce import league, league_page, missing_runs, publish, recipes, rows, work

    if tables == ["list"]:
        _list(as_json, [Path("results"), *([results] if results else [])])
        return
    if tables in (["tables"], ["check"]):
        _all_tables(tables == ["check"], *missing_runs.folders(out, results, "paper"))
        return
    is_league = tables == ["league"]
    tables = list(dict.fromkeys(tables))
    for name in [] if is_league else tables:  # an unknown name is told before anything runs
        if name in ALONE:
            raise SteppeError(f"{name} is a command of its own: steppe reproduce {name}")
        if name not in recipes.names():
            raise SteppeError(f"there is no table {name!r}{nearest(name, [*recipes.names(), *ALONE])}")
        recipes.table(name, scale)
    rows_in, tables_in = missing_runs.folders(out, results, scale)
    places = [Path("results"), rows_in] if scale == "paper" else [rows_in]
    machine: dict[str, object] = {"device": device, "data_folder": data_folder} | ({"workers": 0} if jobs > 1 else {})

    def known() -> list[rows.Row]:
        return rows.known(places, scale)

    stages: list[Callable[[], list[work.Job]]]
    if is_league:
        entrants = league.chosen(cells, scale)
        stages = [
            lambda: league.tuning(entrants, known(), machine),
            lambda: league.finals(entrants, known(), seeds, machine),
        ]
    else:
        stages = [lambda: missing_runs.needed(tables, scale, cells, seeds, tried, known(), machine)]
    if dry:
        told = [{"run": j.label, "recipe": j.key[0], "cells": [f"{c.table} {c.id}" for c in j.cells]}
                for stage in stages for j in stage()]  # fmt: skip
        lines = [f"{t['recipe']}  {t['run']}" for t in told] or ["nothing is missing"]
        print(json.dumps(told, indent=1) if as_json else "\n".join(lines))
        return
    find_device(device)

    def keep(job: work.Job, row: rows.Row) -> None:
        first = job.cells[0]
        rows.append(rows_in / f"{first.table}.jsonl", {"table": first.table, "cell": first.id, "scale": scale, **row,
                                                      "processes": max(sharing, row["processes"])})  # fmt: skip

    not_run, failed = work.in_stages(stages, jobs, budget, keep, _say)
    told_all: dict[str, Any] = {}
    written: list[Path] = []
    if is_league:
        told_all["league"] = league.standings(known(), scale)
        written += publish.write(league_page.texts(known(), scale), tables_in)
    for table in [] if is_league else [recipes.table(name, scale) for name in tables]:
        found = publish.findings(table, known())
        told_all[table.name] = publish.facts(table, found, scale)
        written += publish.write(publish.texts(table, found, scale), tables_in)
        if not as_json:
            _show(table, found)
    if as_json:
        print(json.dumps({"tables": told_all, "not_run": [j.label for j in not_run], "failed": failed}))
    else:
        if is_league:
            _show_league(told_all["league"])
        if scale == "tiny":
            terminal.show(publish.TINY)
        terminal.show(f"written: {', '.join(map(str, written))}")
    if not_run:
        _say(f"{len(not_run)} runs were not made for want of time; the same command goes on with them")
    if failed:
        raise SteppeError("\n".join(f"{label}: {reason}" for label, reason in failed.items()))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _all_tables(only_check: bool, results: Path, tables: Path) -> None:
    """Everything that is made from rows, in a checkout: its tables, their index, and the league's page beside them."""
    from steppe.reproduce import audit, league_page, publish, rows

    page = tables.parent / "league.md"
    if only_check:
        audit.check(results, tables, page)
        terminal.show(f"every row in {results} traces to a recipe, and {tables} is what the rows say")
        return
    known = rows.known([results])
    texts = league_page.texts(known, folder=f"{tables.name}/")
    publish.write({"league.md": texts.pop("league.md")}, page.parent)
    written = publish.write({**publish.everything(known), **texts}, tables)
    terminal.show(f"wrote {page} and {len(written)} files in {tables}")


def _list(as_json: bool, places: list[Path]) -> None:
    from steppe.reproduce import missing_runs, recipes, rows

    known: dict[str, list[rows.Row]] = {}
    for row in rows.known(places):
        known.setdefault(row["recipe"], []).append(row)

    def there(cell: recipes.Cell) -> bool:
        return cell.statistic in missing_runs.TRACED or any(
            rows.answers(r, cell.statistic) for r in known.get(cell.hash, [])
        )

    tables = [recipes.table(name) for name in recipes.names()]
    told: list[dict[str, Any]] = [{"table": t.name, "title": t.title, "source": t.source, "cells": len(t.main),
             "run": sum(map(there, t.main)), "tried": len(t.cells) - len(t.main)}
            for t in tables]  # fmt: skip
    if as_json:
        print(json.dumps(told, indent=1))
        return
    terminal.print_table("published tables", ["table", "cells", "run here", "what"],
                         [[t["table"], str(t["cells"]), str(t["run"]), t["title"]] for t in told])  # fmt: skip
    terminal.show("and league: all methods under one protocol, tuned on held-out training data")


def _show(table: Any, found: Any) -> None:
    from steppe.reproduce import publish

    terminal.show(f"\n[bold]{terminal.escaped(table.title)}[/]")
    for part in publish.printed(table, found):
        ran = [row for row in part.rows if any(row[1:])]
        if part.title in table.columns.values():  # cell by cell only where something was run
            place = part.columns.index("verdict")
            ran = [row for row in ran if row[place] != "not run"]
        if ran:
            terminal.print_table(
                part.title, part.columns, ran, ("recipe", "seconds", "seeds", "best", "last ten", "last")
            )
    terminal.show(terminal.escaped(publish.summary(table, found)))


def _show_league(found: list[dict[str, Any]]) -> None:
    from steppe.reproduce import league_page, recipes

    for column in recipes.read("league")["column"]:
        part = league_page.printed(found, column["id"], column["title"])
        if part.rows:
            terminal.print_table(part.title, part.columns, part.rows, ("seconds", "seeds", "gradients", "best", "last"))
        terminal.show(league_page.verdict(found, column["id"]))
