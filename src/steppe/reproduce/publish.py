"""Write a table compared with the paper, only from rows: Markdown, LaTeX, HTML, JSON, and lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steppe.core.atomic_write import write_atomically
from steppe.report.environments import make_environment
from steppe.report.markdown_latex import escape_latex as tex
from steppe.report.markdown_latex import make_markdown_environment
from steppe.report.markdown_latex import render_latex_document as document
from steppe.report.markdown_latex import render_latex_table as tabular
from steppe.report.seeds import join_words
from steppe.reproduce import choose_page, league_page, survey_page
from steppe.reproduce.judged_table import (
    judge_table,
    make_tables,
    sum_seconds,
    summarize,
    summarize_claim,
    write_introduction,
)
from steppe.reproduce.missing_runs import NOT_AT_HAND, UNKNOWN
from steppe.reproduce.recipes import USUAL, Published, Table, list_tables
from steppe.reproduce.recipes import load_table as named
from steppe.reproduce.rows import Row
from steppe.reproduce.verdicts import (
    FAILED,
    INSIDE,
    NOT_JUDGED,
    OUTSIDE,
    Finding,
    correlate_ranks,
    find_explanations,
)

KINDS = ("md", "tex", "html", "json")
BEGIN, END = "<!-- begin: steppe reproduce tables -->", "<!-- end -->"

UNDEFINED = "the paper does not define it"


def format_command(table: Table, scale: str, glob: str = "") -> str:
    return " ".join(["steppe reproduce", table.name, *([f"--cells '{glob}'"] if glob else []),
                     *(["--scale", scale] if scale != "paper" else [])])  # fmt: skip


def render_markdown(table: Table, found: Sequence[Finding], scale: str = "paper") -> str:
    return make_markdown_environment("steppe.reproduce").get_template("table.md.jinja").render(
        table=table, introduction=write_introduction(table, found, scale), command=format_command(table, scale),
        notes=_list_notes(table, scale), tables=make_tables(table, found, scale))  # fmt: skip


def _list_notes(table: Table, scale: str) -> tuple[str, ...]:
    """Return the table's notes, which are about rows at the paper's scale."""
    return table.notes if scale == "paper" else ()


def render_latex(table: Table, found: Sequence[Finding], scale: str = "paper") -> str:
    told = [*write_introduction(table, found, scale), *_list_notes(table, scale)]
    return document(
        table.title, [*map(tex, told), *(tabular(part) for part in make_tables(table, found, scale) if part.rows)]
    )


def render_html(table: Table, found: Sequence[Finding], scale: str = "paper") -> str:
    """Return a page without scripts, which loads nothing else."""
    return make_environment("steppe.report", html=True).get_template("table.html.jinja").render(
        title=table.title, introduction=write_introduction(table, found, scale), notes=_list_notes(table, scale),
        command=format_command(table, scale), tables=make_tables(table, found, scale))  # fmt: skip


def collect_facts(table: Table, found: Sequence[Finding], scale: str = "paper") -> dict[str, Any]:
    """Return everything as JSON, for programs."""
    return {
        "table": table.name, "title": table.title, "source": table.source, "scale": scale, "statistic": table.statistic,
        "unit": table.unit, "notes": list(table.notes), "summary": summarize(table, found),
        "ranks": correlate_ranks(table, found) if scale == "paper" else [],
        "cells": [{
            "cell": f.cell.id, "column": f.cell.column, "row": f.cell.row, "recipe": f.cell.hash,
            **({"tried_for": f.cell.of, "why": f.cell.why} if f.cell.of else {}), "statistic": f.cell.statistic,
            "paper": _list_published(f.cell.published), "ours": _round(f.ours), "std": _round(f.std),
            "difference": _round(f.difference), "band": _round(f.band), "verdict": f.verdict, "also": f.also,
            "seeds": f.seeds, "values": [_round(v) for v in f.values], "failed": f.failed,
            "beside": {k: _round(v) for k, v in f.beside.items()}, "seconds": round(f.seconds, 1),
            "origins": f.origins, "command": format_command(table, scale, f.cell.id),
            "changes": {k: v for k, v in f.cell.config.model_dump(mode="json").items() if v != USUAL[k]},
        } for f in found],
    }  # fmt: skip


def _list_published(paper: Published | None) -> dict[str, Any] | None:
    return None if paper is None else {k: v for k, v in asdict(paper).items() if v not in (None, False)}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def render_files(table: Table, found: Sequence[Finding], scale: str = "paper",
          kinds: Sequence[str] = ("md",)) -> dict[str, str]:  # fmt: skip
    """Return the table's files by name, of these kinds."""
    made = {"md": render_markdown, "tex": render_latex, "html": render_html, "json": _render_json}
    return {f"{table.name}.{kind}": made[kind](table, found, scale) for kind in kinds}


def _render_json(table: Table, found: Sequence[Finding], scale: str) -> str:
    return json.dumps(collect_facts(table, found, scale), indent=1, ensure_ascii=False) + "\n"


def render_index(found: dict[str, list[Finding]]) -> str:
    """Return all tables with their counts, those with a run first; the others have no page."""
    names = sorted(found, key=lambda name: not has_page(found[name]))  # otherwise as they are
    return (
        make_markdown_environment("steppe.reproduce")
        .get_template("index.md.jinja")
        .render(summary=summarize_all(found), lines=[_make_index_line(named(name), found[name]) for name in names])
    )


def summarize_all(found: dict[str, list[Finding]]) -> str:
    """Return a sentence on all cells of accuracy together; costs are traced, and cannot miss by chance."""
    main = [f for name, several in found.items() if named(name).unit == "%" for f in several
            if not f.cell.of and f.cell.published]  # fmt: skip
    inside, outside = (sum(f.verdict == v for f in main) for v in (INSIDE, OUTSIDE))
    reach = [f for f in main if f.seeds or not _explain_unreachable(f)]
    ran = sum(bool(f.seeds) for f in main)
    return (f"Of {len(main)} printed accuracies, {len(reach)} are in reach, {ran} were run, and {inside} of the "
            f"{inside + outside} that can be judged are inside their band: cells that share a run count in every "
            "table.")  # fmt: skip


def _make_index_line(t: Table, several: list[Finding]) -> list[str]:
    main = [f for f in several if not f.cell.of]
    ran = [f for f in main if f.seeds]
    inside, outside = (sum(f.verdict == v for f in main) for v in (INSIDE, OUTSIDE))
    doubtful = sum(f.verdict == OUTSIDE and f.cell.id in t.doubtful for f in main)
    explained = sum(id_ not in t.doubtful for id_ in find_explanations(t, several))
    why = [e for f in main if not f.seeds and (e := _explain_unreachable(f))]
    seeds = " or ".join(map(str, sorted({len(f.seeds) for f in ran})))
    kinds = {"failed in print": sum(f.verdict == FAILED for f in main),
             "not judged": sum(f.verdict == NOT_JUDGED for f in main)}  # fmt: skip
    return [f"[{t.name}]({t.name}.md)" if ran else t.name, t.title.partition(": ")[2] or t.title,
            f"{len(ran)} of {len(main)}" + f" ({seeds})" * bool(ran),
            f"{inside} of {inside + outside}" if inside + outside else "",
            _count(outside, {"explained": explained, "doubtful": doubtful}) if outside else "",
            ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n),
            _count(len(main) - len(ran), {_join_reasons(why): len(why)}),
            f"{sum_seconds(several):.0f}" if any(len(f.seeds) > f.on_cpu for f in ran) else "",
            summarize_claim(t, several)]  # fmt: skip


def _join_reasons(why: Sequence[str]) -> str:
    return UNDEFINED if UNDEFINED in why else f"without files of {join_words(list(dict.fromkeys(why)))}"


def _count(number: int, of_these: dict[str, int]) -> str:
    """
    >>> _count(18, {"explained": 9, "doubtful": 0}), _count(64, {"without SVHN": 64}), _count(0, {"": 0})
    ('18: 9 explained', '64: without SVHN', '')
    """
    if not number:
        return ""
    kinds = [kind if n == number else f"{n} {kind}" for kind, n in of_these.items() if n]
    return f"{number}{': ' * bool(kinds)}{', '.join(kinds)}"


def renew_index(page: Path, index: str) -> dict[str, str]:
    """Return the page above the folder of tables with the index between its marks; nothing if there is no such page."""
    if not page.exists() or BEGIN not in (text := page.read_text("utf-8")):
        return {}
    _, summary, table, *_ = index.split("\n\n")
    before, rest = text.split(BEGIN)
    made = f"{summary}\n\n{table.replace('](', '](reproductions/')}"
    return {page.name: f"{before}{BEGIN}\n{made}\n{END}{rest.split(END, 1)[1]}"}


def _explain_unreachable(f: Finding) -> str:
    """Return why a cell cannot be run (what is missing, or not defined); an empty text if it can."""
    if f.cell.statistic == UNKNOWN:
        return UNDEFINED
    data = f.cell.config.data
    return NOT_AT_HAND.get(data, "")


def has_page(found: Sequence[Finding]) -> bool:
    return any(f.seeds for f in found)


def render_all(rows: Sequence[Row], kinds: Sequence[str] = ("md",)) -> dict[str, str]:
    """Return all files of the folder of tables, from rows at the paper's scale."""
    found = {name: judge_table(named(name), rows) for name in list_tables()}
    pages = {
        k: v for name, f in found.items() if has_page(f) for k, v in render_files(named(name), f, kinds=kinds).items()
    }
    return {**pages, "README.md": render_index(found)}


def render_everything(rows: Sequence[Row], tables: Path, kinds: Sequence[str] = ("md",)) -> dict[Path, str]:
    """Return all that is made from rows: the pages above the folder of tables, and what is in it."""
    survey = survey_page.render_files(rows, folder=f"{tables.name}/", kinds=kinds)
    above = {"survey.md": survey.pop("survey.md")} | league_page.render_files(rows)
    inside = render_all(rows, kinds) | survey
    above |= renew_index(tables.with_suffix(".md"), inside["README.md"]) | choose_page.render_files(rows)
    return {tables.parent / k: v for k, v in above.items()} | {tables / k: v for k, v in inside.items()}


def write_files(files_: Mapping[str, str] | Mapping[Path, str], out: Path = Path()) -> list[Path]:
    for name, text in files_.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, lambda aside, text=text: aside.write_text(text, "utf-8"))  # type: ignore[misc]
    return [out / name for name in files_]
