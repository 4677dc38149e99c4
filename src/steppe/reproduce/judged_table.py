"""A published table compared with our rows: verdicts, the claim, the tables and the sentences above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from steppe.report.report_tables import Table as Printed
from steppe.reproduce.costs import compare_costs
from steppe.reproduce.recipes import Table
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
