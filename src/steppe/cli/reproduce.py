"""`steppe reproduce`: run published tables again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import terminal
from steppe.cli.options import Debug, Json, On, Out, app, take_number
from steppe.core.errors import SteppeError, quote, suggest_name

if TYPE_CHECKING:
    from steppe.reproduce.missing_runs import CellJob

ALONE = ("league", "survey", "list", "tables", "check")


@app.command()
def reproduce(
    tables: Annotated[list[str], typer.Argument(help="Tables, such as fedsol-table1; league; survey; or list "
                      "(show all tables), tables (write all from the rows), check (compare tables with rows).")],
    cells: Annotated[list[str], typer.Option("--cells", metavar="GLOB", help="Cells to run, such as "
                     "'cifar10/lda-0.1/*'; may be repeated, in the order in which they should run.")] = [],  # noqa: B006
    seeds: Annotated[int, take_number("--seeds", max=10_000, help="Runs per cell, with seeds 0, 1, …")] = 1,
    scale: Annotated[str, typer.Option("--scale", help="Scale: paper, or tiny (embedded digits, a minute).")] = "paper",
    device: Annotated[str, typer.Option("--device", help="Device: cpu, cuda or auto.")] = "auto",
    jobs: Annotated[int, take_number("--jobs", "-j", help="Number of parallel runs, each in its own "
                    "process; several may share one GPU. With 1, they run in this process.")] = 1,
    sharing: Annotated[int, typer.Option("--sharing", min=0, metavar="PROCESSES", help="Total number of processes on "
                       "this device, if other commands use it too; recorded device seconds are divided by it.")] = 0,
    budget: Annotated[float | None, typer.Option("--budget", min=0, metavar="SECONDS", help="Time limit: start only "
                      "runs that should finish within it, and stop those that are still running at its end.")] = None,
    tried: Annotated[bool, typer.Option("--tried", help="Also run the tables' alternative recipes.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="List the missing runs in their order, with rough times, "
                    "without running them.")] = False,
    data_folder: Annotated[str | None, typer.Option("--data-folder", help="Folder of the data sets (default: "
                                                                          "$STEPPE_DATA or ./data).")] = None,
    results: Annotated[Path | None, typer.Option("--results", help="Folder of the result rows.")] = None,
    formats: Annotated[str, typer.Option("--formats", metavar="KIND,…", help="Formats to write: md, tex, html, "
                       "json.")] = "md",
    on: On = None, out: Out = None, as_json: Json = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Reproduce published tables: run the cells that are missing, then write our numbers next to the paper's."""
    from steppe.engine.devices import find_device
    from steppe.jobs.places import find_places
    from steppe.jobs.queue import Queue
    from steppe.jobs.queue_progress import QueueProgress
    from steppe.jobs.ray_places import count_sharing
    from steppe.report.formats import pluralize
    from steppe.reproduce import league_runs, missing_runs, publish, recipes, rows, survey
    from steppe.reproduce.run_stage import run_stage

    kinds = [kind.strip() for kind in formats.split(",")]
    for kind in kinds:
        if kind not in publish.KINDS:
            raise SteppeError(
                f"--formats {formats}: there is no format {quote(kind)}{suggest_name(kind, publish.KINDS)}"
            )
    if tables == ["list"]:
        _list(as_json, [rows.find_ours(), *([results] if results else [])])
        return
    if tables in (["tables"], ["check"]):
        rows_in, tables_in = missing_runs.find_folders(out, results, "paper")
        ours = []
        if tables_in == out or not missing_runs.CHECKOUT.is_dir():
            tables_in, ours = tables_in / "reproductions", [rows.find_ours()]  # the pages about all tables are above it
        _write_all(tables == ["check"], rows_in, tables_in, kinds, ours)
        return
    is_league, is_survey = tables == ["league"], tables == ["survey"]
    alone = is_league or is_survey
    tables = list(dict.fromkeys(tables))
    for name in [] if alone else tables:  # refuse an unknown name before anything runs
        if name in ALONE:
            raise SteppeError(f"{name} cannot be combined with tables: steppe reproduce {name}")
        if name not in recipes.list_tables():
            raise SteppeError(f"there is no table {quote(name)}{suggest_name(name, [*recipes.list_tables(), *ALONE])}")
        recipes.load_table(name, scale)
    rows_in, tables_in = missing_runs.find_folders(out, results, scale)
    known_in = [rows.find_ours(), rows_in] if scale == "paper" else [rows_in]
    machine: dict[str, object] = {"device": device, "data_folder": data_folder}

    def read_known() -> list[rows.Row]:
        return rows.read_folders(known_in, scale, check=True)

    stages: list[Callable[[], list[CellJob]]]  # the runs of a stage may depend on the rows of the previous stage
    if is_league:
        stages = [lambda: league_runs.find_missing_runs(read_known(), scale, cells, machine)]
    elif is_survey:
        entrants = survey.select_entrants(cells, scale)
        stages = [
            lambda: survey.find_tuning_runs(entrants, read_known(), machine, cells),
            lambda: survey.find_final_runs(entrants, read_known(), seeds, machine, cells),
        ]
    else:
        stages = [lambda: missing_runs.find_missing_runs(tables, scale, cells, seeds, tried, read_known(), machine)]
    if dry:
        _show_missing([j for stage in stages for j in missing_runs.sort_as_run(stage())], read_known(), as_json)
        return
    if on is None:
        find_device(device)
    failed: dict[str, str] = {}
    parallel = count_sharing(on) if on else jobs  # processes on one device
    go_on = terminal.explain_interrupt("the same command continues with the runs that are missing")
    with go_on, QueueProgress() as progress, Queue(find_places(jobs, device, on), progress, budget) as queue:
        for stage in stages:
            failed |= run_stage(stage, queue, rows_in, scale, max(sharing, parallel), read_known(), is_league)
    not_run = [job.label for job in queue.waiting]
    outcome = _show_all(tables, read_known(), scale, kinds, tables_in, quiet=as_json)
    if as_json:
        print(json.dumps({"tables": outcome, "not_run": not_run, "failed": failed}))
    if not_run:
        runs = pluralize(len(not_run), "run")
        print(f"{runs} did not fit into the budget; the same command continues there", file=sys.stderr)
    if failed:
        raise SteppeError("\n".join(f"{label}: {reason}" for label, reason in failed.items()))


def _show_missing(jobs: list[CellJob], known: list[Any], as_json: bool) -> None:
    """Print the missing runs in the order in which one process makes them, and how long they take."""
    from steppe.data.named_datasets import check_files
    from steppe.reproduce.missing_runs import estimate_seconds

    for data, folder in dict.fromkeys((job.config.data, job.config.data_folder) for job in jobs):
        try:
            check_files(data, folder)
        except SteppeError as error:
            print(f"missing: {error}", file=sys.stderr)
    seconds, told = estimate_seconds(jobs, known)
    if as_json:
        missing = [{"run": j.label, "recipe": j.recipe, "cells": [f"{c.table} {c.id}" for c in j.cells],
                    "seconds": None if s is None else round(s, 1)}
                   for j, s in zip(jobs, seconds, strict=True)]  # fmt: skip
        print(json.dumps(missing, indent=1))
        return
    times = ("?" if s is None else f"{s:.0f} s" for s in seconds)
    lines = [f"{job.recipe}  {time:>7}  {job.label}" for job, time in zip(jobs, times, strict=True)]
    print("\n".join([*lines, *told] if lines else ["nothing is missing"]))


def _show_all(tables: list[str], known: list[Any], scale: str, kinds: list[str], where: Path,
              quiet: bool) -> dict[str, Any]:  # fmt: skip
    """Write the tables, the league or the survey from the rows, show them, and return what is found."""
    from steppe.reproduce import judged_table, league_page, league_runs, publish, recipes, survey, survey_page

    found_all: dict[str, Any] = {}
    written: list[Path] = []
    if tables == ["league"]:
        found_all["league"] = league_runs.find_standings(known, scale)
        written += publish.write_files(league_page.render_files(known, scale), where)
    elif tables == ["survey"]:
        found_all["survey"] = survey.rank_entrants(known, scale)
        written += publish.write_files(survey_page.render_files(known, scale, kinds=kinds), where)
    for table in [] if found_all else [recipes.load_table(name, scale) for name in tables]:
        found = judged_table.judge_table(table, known, scale)
        found_all[table.name] = publish.collect_facts(table, found, scale)
        written += publish.write_files(publish.render_files(table, found, scale, kinds), where)
        if not quiet:
            _show(table, found, scale)
    if quiet:
        return found_all
    if tables == ["league"]:
        _show_league(known, scale)
    elif tables == ["survey"]:
        _show_survey(found_all["survey"], scale)
    if scale == "tiny":
        terminal.show(judged_table.TINY)
    terminal.show(f"written: {', '.join(map(str, written))}")
    return found_all


def _write_all(only_check: bool, results: Path, tables: Path, kinds: list[str], ours: list[Path]) -> None:
    """Write everything made from rows: the tables, their index, and the pages next to their folder."""
    from steppe.reproduce import audit, publish, rows

    if only_check:
        audit.check_rows(results, tables, *ours)
        places = " and ".join(str(place) for place in (*ours, results) if place.is_dir())
        terminal.show(f"every row in {places} belongs to a recipe, and {tables} agrees with the rows")
        return
    written = publish.write_files(
        publish.render_everything(rows.read_folders([*ours, results], check=True), tables, kinds)
    )
    above = [str(path.relative_to(tables.parent)) for path in written if not path.is_relative_to(tables)]
    terminal.show(f"wrote {', '.join(above)} in {tables.parent} and {len(written) - len(above)} files in {tables}")


def _list(as_json: bool, places: list[Path]) -> None:
    from steppe.reproduce import missing_runs, recipes, rows

    known: dict[str, list[rows.Row]] = {}
    for row in rows.read_folders(places, check=True):
        known.setdefault(row["recipe"], []).append(row)

    def is_there(cell: recipes.Cell) -> bool:
        return cell.statistic in missing_runs.TRACED or any(
            rows.has_statistic(r, cell.statistic) for r in known.get(cell.hash, [])
        )

    tables = [recipes.load_table(name) for name in recipes.list_tables()]
    counts: list[dict[str, Any]] = [{"table": t.name, "title": t.title, "source": t.source, "cells": len(t.main),
             "run": sum(map(is_there, t.main)), "tried": len(t.cells) - len(t.main)}
            for t in tables]  # fmt: skip
    if as_json:
        print(json.dumps(counts, indent=1))
        return
    terminal.print_table("published tables", ["table", "cells", "run here", "what"],
                         [[t["table"], str(t["cells"]), str(t["run"]), t["title"]] for t in counts])  # fmt: skip
    terminal.show(
        "also: league (some methods, tuned alike, over several draws), survey (all methods under one protocol, one "
        "seed)"
    )


def _show(table: Any, found: Any, scale: str) -> None:
    from steppe.reproduce import judged_table

    terminal.show(f"\n[bold]{terminal.escape(table.title)}[/]")
    for part in judged_table.make_tables(table, found, scale):
        ran = [row for row in part.rows if any(row[1:])]
        if part.title in table.columns.values():  # show only columns with runs, cell by cell
            place = part.columns.index("verdict")
            ran = [row for row in ran if row[place] != "not run"]
        if ran:
            terminal.print_table(
                part.title, part.columns, ran, ("recipe", "seconds", "seeds", "best", "last ten", "last")
            )
    terminal.show(terminal.escape(judged_table.summarize(table, found)))


def _show_league(known: list[dict[str, Any]], scale: str) -> None:
    from steppe.reproduce import league_outcome, league_page

    for part in league_page.make_tables(known, scale):
        terminal.print_table(part.title, part.columns, part.rows, ("trace", "λ1", "global model, %"))
    for sentence in league_outcome.write_outcome(known, scale):
        terminal.show(terminal.escape(sentence))


def _show_survey(found: list[dict[str, Any]], scale: str) -> None:
    from steppe.reproduce import recipes, survey_page

    for column in recipes.read_table_file("survey")["column"]:
        part = survey_page.make_table(found, column["id"], column["title"])
        if part.rows:
            terminal.print_table(part.title, part.columns, part.rows, ("seconds", "best", "last"))
        if scale == "paper":
            terminal.show(survey_page.write_verdict(found, column["id"]))
