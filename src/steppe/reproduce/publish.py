"""Write a table compared with the paper, only from rows: Markdown, LaTeX, HTML, JSON, and lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from steppe.core.atomic_write import write_atomically
from steppe.report.markdown_latex import escape_latex as tex
from steppe.report.markdown_latex import escape_markdown as md
from steppe.report.markdown_latex import render_latex_document as document
from steppe.report.markdown_latex import render_latex_table as tabular
from steppe.report.markdown_latex import render_markdown_table as markdown_table
from steppe.reproduce.judged_table import judge_table, make_tables, sum_seconds, summarize, write_introduction
from steppe.reproduce.missing_runs import UNKNOWN
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

# Data sets whose files were not available: cells that need them cannot be run.
NOT_AT_HAND = {"svhn": "SVHN", "cinic10": "CINIC-10", "pathmnist": "PathMNIST", "tissuemnist": "TissueMNIST",
               "tiny-imagenet": "Tiny-ImageNet"}  # fmt: skip


def format_command(table: Table, scale: str, glob: str = "") -> str:
    return " ".join(["steppe reproduce", table.name, *([f"--cells '{glob}'"] if glob else []),
                     *(["--scale", scale] if scale != "paper" else [])])  # fmt: skip


def render_markdown(table: Table, found: Sequence[Finding], scale: str = "paper") -> str:
    parts = [
        f"# {md(table.title)}",
        *map(md, write_introduction(table, found, scale)),
        f"    {format_command(table, scale)}",
    ]
    parts += ["\n".join(f"- {md(note)}" for note in notes)] if (notes := _notes(table, scale)) else []
    for part in make_tables(table, found, scale):
        parts += [f"## {md(part.title)}", markdown_table(part), *([md(part.note)] if part.note else [])]
    return "\n\n".join(parts) + "\n"


def _notes(table: Table, scale: str) -> tuple[str, ...]:
    """Return the table's notes, which are about rows at the paper's scale."""
    return table.notes if scale == "paper" else ()


def render_latex(table: Table, found: Sequence[Finding], scale: str = "paper") -> str:
    told = [*write_introduction(table, found, scale), *_notes(table, scale)]
    return document(
        table.title, [*map(tex, told), *(tabular(part) for part in make_tables(table, found, scale) if part.rows)]
    )


def render_html(table: Table, found: Sequence[Finding], scale: str = "paper") -> str:
    """Return a page without scripts, which loads nothing else."""
    here = Environment(loader=PackageLoader("steppe.report"), trim_blocks=True, lstrip_blocks=True, autoescape=True)
    return here.get_template("table.html.jinja").render(
        title=table.title, introduction=write_introduction(table, found, scale), notes=_notes(table, scale),
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
            "paper": _published(f.cell.published), "ours": _rounded(f.ours), "std": _rounded(f.std),
            "difference": _rounded(f.difference), "band": _rounded(f.band), "verdict": f.verdict, "also": f.also,
            "seeds": f.seeds, "values": [_rounded(v) for v in f.values], "failed": f.failed,
            "beside": {k: _rounded(v) for k, v in f.beside.items()}, "seconds": round(f.seconds, 1),
            "origins": f.origins, "command": format_command(table, scale, f.cell.id),
            "changes": {k: v for k, v in f.cell.config.model_dump(mode="json").items() if v != USUAL[k]},
        } for f in found],
    }  # fmt: skip


def _published(paper: Published | None) -> dict[str, Any] | None:
    return None if paper is None else {k: v for k, v in asdict(paper).items() if v not in (None, False)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def render_files(table: Table, found: Sequence[Finding], scale: str = "paper",
          kinds: Sequence[str] = ("md",)) -> dict[str, str]:  # fmt: skip
    """Return the table's files by name, of these kinds."""
    made = {"md": render_markdown, "tex": render_latex, "html": render_html, "json": _json}
    return {f"{table.name}.{kind}": made[kind](table, found, scale) for kind in kinds}


def _json(table: Table, found: Sequence[Finding], scale: str) -> str:
    return json.dumps(collect_facts(table, found, scale), indent=1, ensure_ascii=False) + "\n"


def render_index(found: dict[str, list[Finding]]) -> str:
    """Return all tables with their counts; those without any run have no page."""
    lines = []
    for name, several in found.items():
        t, main = named(name), [f for f in several if not f.cell.of]
        ran = [f for f in main if f.seeds]
        counts = {v: sum(f.verdict == v for f in main) for v in (INSIDE, OUTSIDE, FAILED, NOT_JUDGED)}
        doubtful = sum(f.verdict == OUTSIDE and f.cell.id in t.doubtful for f in main)
        explained = sum(id_ not in t.doubtful for id_ in find_explanations(t, several))
        why = {f.cell.id: _unreachable(f) for f in main if not f.seeds and _unreachable(f)}
        numbers = (
            len(main),
            len(ran),
            *counts.values(),
            explained,
            doubtful,
            len(main) - len(ran) - len(why),
            len(why),
        )
        seeds = " or ".join(map(str, sorted({len(f.seeds) for f in ran})))
        lines.append([f"[{name}]({name}.md)" if has_page(several) else name, t.title, *map(str, numbers),
                      ", ".join(dict.fromkeys(why.values())), seeds, f"{sum_seconds(several):.0f}"])  # fmt: skip
    head = ["table", "what", "cells", "run", INSIDE, OUTSIDE, FAILED, NOT_JUDGED, "explained", "doubtful",
            "left to run", "not reachable", "why not", "seeds per cell", "GPU seconds"]  # fmt: skip
    table = "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *lines))
    return (f"# Published tables compared with ours\n\n{table}\n\nExplained and doubtful cells are outside the "
            "band. A cell is explained if another recipe, which was chosen after the miss was seen, is inside; it is "
            "doubtful if the paper contradicts its own number. Each table's page says what was found about its misses. "
            "GPU seconds are those of the rows: a run in several tables is counted in each, and runs without a row are "
            "not counted.\n\n"
            "Written from the rows in `results/` by `steppe reproduce tables`; "
            "[how to read them](../reproductions.md).\n")  # fmt: skip


def renew_index(page: Path, index: str) -> dict[str, str]:
    """Return the page above the folder of tables with the index between its marks; nothing if there is no such page."""
    if not page.exists() or BEGIN not in (text := page.read_text("utf-8")):
        return {}
    table = "\n".join(line for line in index.splitlines() if line.startswith("|"))
    before, rest = text.split(BEGIN)
    return {page.name: f"{before}{BEGIN}\n{table.replace('](', '](reproductions/')}\n{END}{rest.split(END, 1)[1]}"}


def _unreachable(f: Finding) -> str:
    """Return why a cell cannot be run; an empty text if it can."""
    if f.cell.statistic == UNKNOWN:
        return "the paper does not define it"
    data = f.cell.config.data
    return f"no files of {NOT_AT_HAND[data]}" if data in NOT_AT_HAND else ""


def has_page(found: Sequence[Finding]) -> bool:
    return any(f.seeds for f in found)


def render_all(rows: Sequence[Row], kinds: Sequence[str] = ("md",)) -> dict[str, str]:
    """Return all files of the folder of tables, from rows at the paper's scale."""
    found = {name: judge_table(named(name), rows) for name in list_tables()}
    pages = {
        k: v for name, f in found.items() if has_page(f) for k, v in render_files(named(name), f, kinds=kinds).items()
    }
    return {**pages, "README.md": render_index(found)}


def write_files(files_: dict[str, str], out: Path) -> list[Path]:
    for name, text in files_.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, lambda aside, text=text: aside.write_text(text, "utf-8"))  # type: ignore[misc]
    return [out / name for name in files_]
