"""Write a table compared with the paper, only from rows: Markdown, LaTeX, HTML, JSON, and lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from steppe.core.write_aside import write_aside
from steppe.report.report_tables import Table as Printed
from steppe.report.texts import escape_latex as tex
from steppe.report.texts import escape_markdown as md
from steppe.report.texts import render_latex_document as document
from steppe.report.texts import render_latex_table as tabular
from steppe.report.texts import render_markdown_table as markdown_table
from steppe.reproduce.costs import compare_costs
from steppe.reproduce.missing_runs import UNKNOWN
from steppe.reproduce.recipes import USUAL, Published, Table, list_tables
from steppe.reproduce.recipes import load_table as named
from steppe.reproduce.rows import Row
from steppe.reproduce.verdicts import (
    FAILED,
    INSIDE,
    NOT_JUDGED,
    NOT_RUN,
    OUTSIDE,
    Finding,
    compare_claimed,
    compare_with_paper,
    correlate_ranks,
    find_explanations,
)

MARKS = {INSIDE: "✓", OUTSIDE: "✗", FAILED: "†", NOT_JUDGED: "", NOT_RUN: ""}
NAMES = {"mean_of_last_ten": "mean of the last ten rounds", "mean_of_last_fifty": "mean of the last fifty rounds",
         "best": "best round", "last": "last round", "draw": "wider band, with the draw of the partition",
         "personal.5.mean": "mean of the clients' own models (last, last ten, best: the global one's)"}  # fmt: skip
TINY = ("This is the tiny scale: the embedded digits, a small network and few rounds. Its numbers say nothing about "
        "the paper, so no cell gets a verdict.")  # fmt: skip
KINDS = ("md", "tex", "html", "json")
BEGIN, END = "<!-- begin: steppe reproduce tables -->", "<!-- end -->"

# Data sets whose files were not available: cells that need them cannot be run.
NOT_AT_HAND = {"svhn": "SVHN", "cinic10": "CINIC-10", "pathmnist": "PathMNIST", "tissuemnist": "TissueMNIST",
               "tiny-imagenet": "Tiny-ImageNet"}  # fmt: skip

STYLE = """:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; white-space: nowrap; }
th, td { padding: 0.2rem 0.6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
.note { font-size: 0.9rem; }
"""


def trace_table_costs(table: Table) -> dict[str, dict[str, float]]:
    """Return the values of a cost table's cells, which need no training."""
    asked = [c for c in table.cells if c.statistic in ("bytes_x", "flops_x")]
    return {c.hash: compare_costs(c.config) for c in asked}


def judge_table(table: Table, rows: Sequence[Row], scale: str = "paper") -> list[Finding]:
    """Compare every cell with the paper; at the tiny scale no cell gets a verdict."""
    found = compare_with_paper(table, rows, trace_table_costs(table))
    if scale == "paper":
        return found
    return [replace(f, verdict=NOT_JUDGED if f.seeds else NOT_RUN, also=dict.fromkeys(f.also, "")) for f in found]


def summarize(table: Table, found: Sequence[Finding]) -> str:
    """Return one sentence of counts."""
    main = [f for f in found if not f.cell.of]
    counts = {v: sum(f.verdict == v for f in main) for v in (INSIDE, OUTSIDE, FAILED, NOT_JUDGED, NOT_RUN)}
    told = ", ".join(f"{n} {v}" for v, n in counts.items() if n)
    for statistic in [s for s in table.also if any(f.also[s] for f in main)]:
        told += f"; by the {NAMES[statistic]} {sum(f.also[statistic] == INSIDE for f in main)} inside"
    return f"{len(main)} cells: {told}; {sum_seconds(found):.0f} seconds of the device"


def sum_seconds(found: Sequence[Finding]) -> float:
    """Return the device's seconds; cells that share a run share its time."""
    return sum({(f.cell.hash, s): f.seconds / len(f.seeds) for f in found for s in f.seeds}.values())


def judge_claim(table: Table, found: Sequence[Finding]) -> str:
    """Return whether the paper's claim holds in our rows: the order, and the size of the margin."""
    if not (pairs := compare_claimed(table, found)):
        return ""
    nothing, by = (0.0, "by {} points") if table.unit == "%" else (1.0, "by a factor of {}")
    same, paper, ours = sum(o > nothing for _, o in pairs), *(fmean(side) for side in zip(*pairs, strict=True))
    holds = (
        "holds" if same == len(pairs) else "holds for the most part" if 3 * same > 2 * len(pairs) else "does not hold"
    )
    told = (f"Claim of the paper: {table.claim}. In our runs it {holds}: {same} of {len(pairs)} comparisons that "
            f"favour it in print, and that were run, favour it here, {by.format(f'{ours:.2f}')} on average where the "
            f"paper has {paper:.2f}.")  # fmt: skip
    order = [r["spearman"] for r in correlate_ranks(table, found) if r["spearman"] is not None]
    if order:
        told += (f" Rank correlation of all methods with the paper's order: at least 0.9 in "
                 f"{sum(o >= 0.9 for o in order)} of {len(order)} rankings, the lowest {min(order):+.2f}.")  # fmt: skip
    return told


def make_tables(table: Table, found: Sequence[Finding], scale: str = "paper") -> list[Printed]:
    """Return one grid with all columns, then every column cell by cell, the ranks, and what else was tried."""
    ran = [c for c in table.columns if any(f.cell.column == c and f.seeds for f in found)]
    parts = [_grid(table, found, ran, scale)] if ran else []
    for column, title in table.columns.items():
        mine = [f for f in found if f.cell.column == column and not f.cell.of]
        parts.append(Printed(title, _columns(table), [_line(table, f) for f in mine]))
    order = correlate_ranks(table, found) if scale == "paper" else []
    if order:
        rows = [[table.columns[r["column"]] + (f", {r['group']}" if r["group"] else ""), f"{r['methods']} of {r['of']}",
                 _signed(r["spearman"]), _signed(r["kendall"])] for r in order]  # fmt: skip
        note = "1: the same order; −1: the reverse. Only methods that were run are ranked."
        head = ["column", "methods", "Spearman", "Kendall"]
        parts.append(Printed("Order of the methods compared with the paper's", head, rows, note))
    if misses := [f for f in found if not f.cell.of and f.verdict == OUTSIDE]:
        explained = find_explanations(table, found)
        rows = [[f"{table.columns[f.cell.column]}: {table.rows[f.cell.row]}", *_line(table, f)[1:4],
                 _found_out(table, f, explained, found)] for f in misses]  # fmt: skip
        note = "Alternative recipes were chosen after the miss was seen; they do not change a cell's verdict."
        parts.append(Printed("Misses", ["cell", "paper", "ours", "difference", "what was found"], rows, note))
    tried = [f for f in found if f.cell.of]
    if tried:
        rows = [[f"{table.columns[f.cell.column]}: {f.cell.row}", f.cell.why, *_line(table, f)[1:]] for f in tried]
        parts.append(Printed("What else was tried", ["cell", "change", *_columns(table)[1:]], rows))
    return parts


def _found_out(table: Table, f: Finding, explained: dict[str, Finding], found: Sequence[Finding]) -> str:
    if f.cell.id in table.doubtful:
        return f"doubtful in print: {table.doubtful[f.cell.id]}"
    if by := explained.get(f.cell.id):
        return f"explained: {_line(table, by)[2]} with {by.cell.row} ({by.cell.why})"
    tried = [
        t for t in found if t.cell.of == f.cell.row and t.cell.column == f.cell.column and t.difference is not None
    ]
    if not tried:
        return "not explained"
    nearest = min(tried, key=lambda t: abs(t.difference or 0.0))
    return f"not explained; nearest of {len(tried)} tried: {_line(table, nearest)[2]} with {nearest.cell.row}"


def _grid(table: Table, found: Sequence[Finding], columns: list[str], scale: str) -> Printed:
    main = {(f.cell.row, f.cell.column): f for f in found if not f.cell.of}
    rows = []
    for row, title in table.rows.items():
        cells = [main.get((row, c)) for c in columns]
        if any(cells):
            rows.append([title, *("" if f is None else _brief(table, f) for f in cells)])
    missing = [title for c, title in table.columns.items() if c not in columns]
    marks = "✓ inside the band, ✗ outside, † the paper says failed, " if scale == "paper" else ""
    note = f"Ours / the paper's. {marks}– not run."
    return Printed("All columns that were run" if missing else "All columns",
                   ["", *(table.columns[c] for c in columns)], rows,
                   note + (f" Not run: {'; '.join(missing)}." if missing else ""))  # fmt: skip


def _brief(table: Table, f: Finding) -> str:
    paper = "?" if f.cell.published is None else str(f.cell.published).partition(" ±")[0]
    ours = "–" if not f.seeds else "failed" if f.ours is None else _number(table, f.ours)
    return f"{ours} / {paper} {MARKS[f.verdict]}".rstrip()


def _columns(table: Table) -> list[str]:
    beside = ["last", "last ten", "best"] if table.unit == "%" else []
    also = [f"by {NAMES.get(s, s)}" for s in table.also]
    return ["", "paper", "ours", "difference", "band", "verdict", *also, *beside, "seeds", "seconds", "recipe"]


def _line(table: Table, f: Finding) -> list[str]:
    ours = "failed" if f.ours is None and f.failed else "" if f.ours is None else _number(table, f.ours)
    if f.std is not None:
        ours += f" ± {_number(table, f.std)}"
    if f.failed and f.ours is not None:
        ours += f" ({len(f.failed)} failed)"
    beside = [_number(table, f.beside[s]) if s in f.beside else "" for s in ("last", "mean_of_last_ten", "best")]
    difference = "" if f.difference is None else f"{f.difference:+.2f}"
    return [table.rows[f.cell.row], "?" if f.cell.published is None else str(f.cell.published), ours, difference,
            "" if f.verdict in (FAILED, NOT_JUDGED) else f"{f.band:.2f}", f.verdict, *f.also.values(),
            *(beside if table.unit == "%" else []), ", ".join(map(str, f.seeds)), f"{f.seconds:.0f}" if f.seeds else "",
            f.cell.hash]  # fmt: skip


def _number(table: Table, value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def write_introduction(table: Table, found: Sequence[Finding], scale: str) -> list[str]:
    """Return the paragraphs above the tables."""
    unit = {"%": "Accuracies in %.", "×": "Multiples of FedAvg's."}.get(table.unit, "")
    usual = NAMES.get(table.statistic, table.statistic)
    told = [judge_claim(table, found)] if scale == "paper" and compare_claimed(table, found) else []
    told += [f"Source: {table.source}.", f"{summarize(table, found)}."]
    origins = sorted({o for f in found for o in f.origins})
    told += [f"Run on {'; '.join(origins)}."] if origins else []
    if scale != "paper":
        told.append(TINY)
    if table.unit == "%" and scale == "paper":
        told.append(f"{unit} The {usual} is compared, averaged over seeds if there are several. The band is two of the "
                    "paper's standard deviations or 1.5 points, whichever is larger (1.5 points if the deviation comes "
                    "from fewer than three runs, or none is given).")  # fmt: skip
    elif unit:
        told.append(unit)
    ran = {f.cell.row for f in found if f.cell.of}
    left = list(dict.fromkeys(f"{c.row} ({c.why})" for c in table.cells if c.of and c.row not in ran))
    if left and scale == "paper":
        told.append(f"Alternative recipes (--tried) that were not run in any column: {'; '.join(left)}.")
    return told


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
    above = write_introduction(table, found, scale)
    body = [f"<h1>{escape(table.title)}</h1>", *(f"<p>{escape(p)}</p>" for p in above),
            f"<pre>{escape(format_command(table, scale))}</pre>",
            "<ul>" + "".join(f"<li>{escape(n)}</li>" for n in _notes(table, scale)) + "</ul>"]  # fmt: skip
    for part in make_tables(table, found, scale):
        head = "".join(f'<th scope="col">{escape(c)}</th>' for c in part.columns)
        rows = "".join(f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(v)}</td>" for v in rest)
                       + "</tr>" for first, *rest in part.rows)  # fmt: skip
        body.append(f'<h2>{escape(part.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
                    f'<tbody>{rows}</tbody></table></div><p class="note">{escape(part.note)}</p>')  # fmt: skip
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>{escape(table.title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
            + "\n".join(body) + "\n</main>\n</body>\n</html>\n")  # fmt: skip


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
        write_aside(out / name, lambda aside, text=text: aside.write_text(text, "utf-8"))  # type: ignore[misc]
    return [out / name for name in files_]
