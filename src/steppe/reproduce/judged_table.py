"""A published table compared with our rows: verdicts, the claim, the tables and the sentences above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from steppe.report.table import Table as Printed
from steppe.reproduce.costs import compare_costs
from steppe.reproduce.intervals import CHANCE
from steppe.reproduce.recipes import Table, format_printed
from steppe.reproduce.rows import Row
from steppe.reproduce.verdicts import (
    FAILED,
    INSIDE,
    NOT_JUDGED,
    NOT_RUN,
    OUTSIDE,
    Finding,
    can_be_judged,
    compare_claimed,
    compare_in_figure,
    compare_with_paper,
    correlate_ranks,
    count_at_chance,
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
        judged = [f.also[statistic] for f in main if f.also[statistic] in (INSIDE, OUTSIDE)]
        told += f"; by the {NAMES[statistic]} {judged.count(INSIDE)} of {len(judged)} inside"
    left_out = " (runs on a CPU are not counted)" if any(f.on_cpu for f in found) else ""
    return f"{len(main)} cells: {told}; {sum_seconds(found):.0f} seconds of the device{left_out}"


def sum_seconds(found: Sequence[Finding]) -> float:
    """Return the GPU's seconds; cells that share a run share its time."""
    return sum({(f.cell.hash, s): f.seconds / len(f.seeds) for f in found for s in f.seeds}.values())


def judge_claim(table: Table, found: Sequence[Finding]) -> str:
    """Return whether the paper's claim holds in our rows: the order, and the size of the margin."""
    if only_order := compare_in_figure(table, found):
        return (f"Claim of the paper: {table.claim}. It prints no numbers. In our runs "
                f"{sum(o > 0 for o in only_order)} of {len(only_order)} comparisons that were run favour it, by "
                f"{fmean(only_order):.2f} points on average.")  # fmt: skip
    if not (pairs := compare_claimed(table, found)):
        return ""
    holds, same = weigh_claim(table, pairs)
    told = (f"Claim of the paper: {table.claim}. In our runs the order {holds}: {same} of {len(pairs)} comparisons "
            f"that favour it in print, and that were run, favour it here, {_say_margin(table, pairs)}."
            f"{_say_decided(table, pairs)}")  # fmt: skip
    if left_out := count_at_chance(table, found):
        told += f" {left_out} more are not counted, because a run of ours stayed at chance, which confirms nothing."
    if table.instead and (other := compare_claimed(table, found, table.instead)):
        told += (f" {table.beware} With {table.instead} instead it {weigh_claim(table, other)[0]}: "
                 f"{weigh_claim(table, other)[1]} of {len(other)}, {_say_margin(table, other)}.")  # fmt: skip
    elif table.beware:
        told += f" {table.beware}"
    order = [r["spearman"] for r in correlate_ranks(table, found) if r["spearman"] is not None]
    if order:
        told += (f" Rank correlation of all methods with the paper's order: at least 0.9 in "
                 f"{sum(o >= 0.9 for o in order)} of {len(order)} rankings, the lowest {min(order):+.2f}.")  # fmt: skip
    return told


def summarize_claim(table: Table, found: Sequence[Finding]) -> str:
    """Return in a few words whether the claim's order holds; empty if nothing was run."""
    if only_order := compare_in_figure(table, found):
        return f"{sum(o > 0 for o in only_order)} of {len(only_order)}, of a figure"
    if not (pairs := compare_claimed(table, found)):
        return ""
    far = f" ({sum(o >= CHANCE for _, o in pairs)} by {CHANCE:g} points)" if table.unit == "%" else ""
    return "{}: {} of {}".format(*weigh_claim(table, pairs), len(pairs)) + far + (
        f"; {left_out} left out" if (left_out := count_at_chance(table, found)) else "")  # fmt: skip


def weigh_claim(table: Table, pairs: Sequence[tuple[float, float]]) -> tuple[str, int]:
    """Return whether the claim holds, and in how many comparisons."""
    same = sum(o > (0.0 if table.unit == "%" else 1.0) for _, o in pairs)
    return "holds" if same == len(pairs) else "holds for the most part" if 3 * same > 2 * len(pairs) else (
        "does not hold"), same  # fmt: skip


def _say_margin(table: Table, pairs: Sequence[tuple[float, float]]) -> str:
    paper, ours = (fmean(side) for side in zip(*pairs, strict=True))
    if table.unit != "%":
        return f"by a factor of {ours:.2f} on average where the paper has {paper:.2f}"
    return f"by {ours:.2f} points on average where the paper has {paper:.2f}, {ours / paper:.1f} times its margin"


def _say_decided(table: Table, pairs: Sequence[tuple[float, float]]) -> str:
    """Say how many differences of accuracies are larger than chance makes them, for the claim and against it."""
    if table.unit != "%":
        return ""
    far = [sum(sign * o >= CHANCE for _, o in pairs) for sign in (1, -1)]
    return (f" Counting only differences of {CHANCE:g} points or more, which are seldom chance between single runs, "
            f"{far[0] or 'none'} favour it and {far[1] or 'none'} contradict it.")  # fmt: skip


def make_tables(table: Table, found: Sequence[Finding], scale: str = "paper") -> list[Printed]:
    """Return one grid with all columns, then every column cell by cell, the ranks, and what else was tried."""
    ran = [c for c in table.columns if any(f.cell.column == c and f.seeds for f in found)]
    parts = [_make_grid(table, found, ran, scale)] if ran else []
    for column, title in table.columns.items():
        mine = [f for f in found if f.cell.column == column and not f.cell.of]
        parts.append(Printed(title, _list_columns(table), [_make_line(table, f) for f in mine]))
    order = correlate_ranks(table, found) if scale == "paper" else []
    if order:
        rows = [[table.columns[r["column"]] + (f", {r['group']}" if r["group"] else ""), f"{r['methods']} of {r['of']}",
                 _format_signed(r["spearman"]), _format_signed(r["kendall"])] for r in order]  # fmt: skip
        note = "1: the same order; −1: the reverse. Only methods that were run are ranked."
        head = ["column", "methods", "Spearman", "Kendall"]
        parts.append(Printed("Order of the methods compared with the paper's", head, rows, note))
    if misses := [f for f in found if not f.cell.of and f.verdict == OUTSIDE]:
        explained = find_explanations(table, found)
        rows = [[f"{table.columns[f.cell.column]}: {table.rows[f.cell.row]}", *_make_line(table, f)[1:4],
                 _explain_miss(table, f, explained, found)] for f in misses]  # fmt: skip
        note = "Alternative recipes were chosen after the miss was seen; they do not change a cell's verdict."
        parts.append(Printed("Misses", ["cell", "paper", "ours", "difference", "what was found"], rows, note))
    tried = [f for f in found if f.cell.of]
    if tried:
        rows = [[f"{table.columns[f.cell.column]}: {f.cell.row}", f.cell.why, *_make_line(table, f)[1:]] for f in tried]
        parts.append(Printed("What else was tried", ["cell", "change", *_list_columns(table)[1:]], rows))
    return parts


def _explain_miss(table: Table, f: Finding, explained: dict[str, Finding], found: Sequence[Finding]) -> str:
    if f.cell.id in table.doubtful:
        return f"doubtful in print: {table.doubtful[f.cell.id]}"
    if by := explained.get(f.cell.id):
        return f"explained: {_make_line(table, by)[2]} with {by.cell.row} ({by.cell.why})"
    tried = [
        t for t in found if t.cell.of == f.cell.row and t.cell.column == f.cell.column and t.difference is not None
    ]
    if not tried:
        return "not explained"
    nearest = min(tried, key=lambda t: abs(t.difference or 0.0))
    return f"not explained; nearest of {len(tried)} tried: {_make_line(table, nearest)[2]} with {nearest.cell.row}"


def _make_grid(table: Table, found: Sequence[Finding], columns: list[str], scale: str) -> Printed:
    main = {(f.cell.row, f.cell.column): f for f in found if not f.cell.of}
    rows = []
    for row, title in table.rows.items():
        cells = [main.get((row, c)) for c in columns]
        if any(cells):
            rows.append([title, *("" if f is None else _format_brief(f) for f in cells)])
    missing = [title for c, title in table.columns.items() if c not in columns]
    marks = "✓ inside the band, ✗ outside, † the paper says failed, " if scale == "paper" else ""
    note = f"Ours / the paper's. {marks}– not run."
    return Printed("All columns that were run" if missing else "All columns",
                   ["", *(table.columns[c] for c in columns)], rows,
                   note + (f" Not run: {'; '.join(missing)}." if missing else ""))  # fmt: skip


def _format_brief(f: Finding) -> str:
    paper = "?" if f.cell.published is None else str(f.cell.published).partition(" ±")[0]
    ours = "–" if not f.seeds else "failed" if f.ours is None else format_printed(f.ours)
    return f"{ours} / {paper} {MARKS[f.verdict]}".rstrip()


def _list_columns(table: Table) -> list[str]:
    beside = ["last", "last ten", "best"] if table.unit == "%" else []
    also = [f"by {NAMES.get(s, s)}" for s in table.also]
    return ["", "paper", "ours", "difference", "band", "verdict", *also, *beside, "seeds", "seconds", "recipe"]


def _make_line(table: Table, f: Finding) -> list[str]:
    ours = "failed" if f.ours is None and f.failed else "" if f.ours is None else format_printed(f.ours)
    if f.std is not None:
        ours += f" ± {format_printed(f.std)}"
    if f.failed and f.ours is not None:
        ours += f" ({len(f.failed)} failed)"
    beside = [format_printed(f.beside[s]) if s in f.beside else "" for s in ("last", "mean_of_last_ten", "best")]
    difference = "" if f.difference is None else f"{f.difference:+.2f}"
    return [table.rows[f.cell.row], "?" if f.cell.published is None else str(f.cell.published), ours, difference,
            f"{f.band:.2f}" if can_be_judged(table, f.cell) else "", f.verdict, *f.also.values(),
            *(beside if table.unit == "%" else []), ", ".join(map(str, f.seeds)),
            f"{f.seconds:.0f}" if len(f.seeds) > f.on_cpu else "", f.cell.hash]  # fmt: skip


def _format_signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def write_introduction(table: Table, found: Sequence[Finding], scale: str) -> list[str]:
    """Return the paragraphs above the tables."""
    unit = {"%": "Accuracies in %.", "×": "Multiples of FedAvg's."}.get(table.unit, "")
    usual = NAMES.get(table.statistic, table.statistic)
    told = [claim] if scale == "paper" and (claim := judge_claim(table, found)) else []
    told += [f"Source: {table.source}.", f"{summarize(table, found)}."]
    machines: dict[str, list[str]] = {}
    for machine, _, commit in (o.rpartition(", ") for o in sorted({o for f in found for o in f.origins})):
        machines.setdefault(machine, []).append(commit)
    told += [f"Run on {'; '.join(f'{m}, {_join_commits(several)}' for m, several in machines.items())}."] * bool(
        machines
    )
    if scale != "paper":
        told.append(TINY)
    if table.unit == "%" and scale == "paper":
        told.append(f"{unit} The {usual} is compared, averaged over seeds if there are several. The band is two of the "
                    "paper's standard deviations or 1.5 points, whichever is larger (1.5 points if the deviation comes "
                    "from fewer than three runs, or none is given).")  # fmt: skip
    elif unit:
        told.append(unit)
    ran = {f.cell.row for f in found if f.cell.of}
    left: dict[str, list[str]] = {}
    for row, why in dict.fromkeys((c.row, c.why) for c in table.cells if c.of and c.row not in ran):
        left.setdefault(why, []).append(row)
    if left and scale == "paper":
        each = "; ".join(f"{', '.join(names)} ({why})" for why, names in left.items())
        told.append(f"Alternative recipes (--tried) that were not run in any column: {each}.")
    return told


def _join_commits(several: Sequence[str]) -> str:
    """
    >>> _join_commits(["commit 1", "commit 2", "no commit known"]), _join_commits(["commit 1"])
    ('commits 1, 2, no commit known', 'commit 1')
    """
    return several[0] if len(several) == 1 else "commits " + ", ".join(one.removeprefix("commit ") for one in several)
