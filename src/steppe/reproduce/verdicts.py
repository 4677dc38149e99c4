"""Compare a table with the rows: our number, the difference and a verdict per cell, and ranks per column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from steppe.reproduce.recipes import Cell, Table, add_shortened
from steppe.reproduce.rows import Row, find_statistic, has_statistic

BAND = 1.5  # points, or two of the paper's standard deviations if that is more
INSIDE, OUTSIDE, FAILED, NOT_RUN, NOT_JUDGED = (
    "inside",
    "outside",
    "paper says failed",
    "not run",
    "not judged",
)
DRAW = "draw"  # not a statistic: the same number, compared with a band that includes the draw of the partition
BESIDE = ("last", "mean_of_last_ten", "best")


@dataclass(frozen=True)
class Finding:
    """A cell compared with the paper. Numbers are in the table's unit; a list has one number per seed."""

    cell: Cell
    seeds: list[int]
    values: list[float]
    failed: list[str]  # why seeds failed
    beside: dict[str, float]
    band: float
    verdict: str
    also: dict[str, str]  # verdicts by the other statistics that the table names
    seconds: float  # of the GPU, however many processes shared it
    origins: list[str]  # machines, versions and commits

    @property
    def ours(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        paper = self.cell.published
        return None if self.ours is None or paper is None else self.ours - paper.value


def compare_with_paper(
    table: Table, rows: Iterable[Row], costs: dict[str, dict[str, float]] | None = None
) -> list[Finding]:
    """Return every cell of the table; tried recipes only where they were run. `costs`: traced ones, by recipe.

    A tried recipe that equals the cell's own (another precision, on the digits) does not count as an alternative.
    """
    by_recipe: dict[str, dict[int, list[Row]]] = {}
    for row in add_shortened(rows, table.cells):
        by_recipe.setdefault(row["recipe"], {}).setdefault(row["seed"], []).append(row)
    own = {(c.column, c.row): c.hash for c in table.main}
    spread = _spread(table, by_recipe)
    found = []
    for cell in table.cells:
        if cell.of and cell.hash == own[cell.column, cell.of]:
            continue
        mine: dict[int, Row] = {}
        for seed, several in sorted(by_recipe.get(cell.hash, {}).items()):
            good = [r for r in several if has_statistic(r, cell.statistic)]
            if good:
                mine[seed] = good[-1]
        if costs and cell.hash in costs:  # known without training
            mine = {0: {"seconds": {"total": 0.0}, **costs[cell.hash]}}
        if mine or not cell.of:
            found.append(_finding(table, cell, mine, spread.get(cell.column, 0.0)))
    return found


def _spread(table: Table, by_recipe: dict[str, dict[int, list[Row]]]) -> dict[str, float]:
    """Return the standard deviation over draws of the partition, of one method and one seed, if there are three."""
    values: dict[str, list[float]] = {}
    for cell in table.cells:
        for row in by_recipe.get(cell.hash, {}).get(0, [])[-1:] if cell.row in table.draws else []:
            if (v := find_statistic(row, cell.statistic)) is not None:
                values.setdefault(cell.column, []).append(100 * v)
    return {column: stdev(several) for column, several in values.items() if len(several) > 2}


def _finding(table: Table, cell: Cell, rows: dict[int, Row], spread: float) -> Finding:
    scale = 100.0 if table.unit == "%" else 1.0

    def over(statistic: str) -> list[float]:
        return [scale * v for r in rows.values() if (v := find_statistic(r, statistic)) is not None]

    failed = [r["failed"] for r in rows.values() if "failed" in r]
    band = _band(table, cell)
    std = (cell.published.std if cell.published else None) or 0.0
    wide = max(band, 2 * sqrt(std**2 + spread**2))
    verdicts = {s: _verdict(table, cell, over(cell.statistic), failed, wide) if s == DRAW else
                _verdict(table, cell, over(s), failed, band) for s in (cell.statistic, *table.also)}  # fmt: skip
    seconds = sum(r["seconds"]["total"] / max(r.get("processes", 1), 1) for r in rows.values())
    beside = {s: fmean(v) for s in BESIDE if table.unit == "%" and (v := over(s))}
    return Finding(cell, list(rows), over(cell.statistic), failed, beside, band, verdicts.pop(cell.statistic), verdicts,
                   seconds, sorted({_origin(r) for r in rows.values() if "hardware" in r}))  # fmt: skip


def _origin(row: Row) -> str:
    commit, _, changed = (row.get("commit") or "").partition("+")
    commit = f"commit {commit[:12]}{' and ' + changed if changed else ''}" if commit else "no commit known"
    return f"{row['hardware']}, torch {row['versions'].get('torch', '?')}, {commit}"


def _band(table: Table, cell: Cell) -> float:
    std = cell.published.std if cell.published and table.runs > 2 else None  # one or two runs are too few
    return max(2 * (std or 0.0), BAND if table.band is None else table.band)


def _verdict(table: Table, cell: Cell, values: list[float], failed: list[str], band: float) -> str:
    paper = cell.published
    # No number is printed, none that can be compared, or no band is fixed for this quantity.
    if paper is None or (table.unit != "%" and table.band is None) or paper.at_least:
        return NOT_JUDGED if values or failed else NOT_RUN
    if not values and not failed:
        return NOT_RUN
    if paper.failed:
        return FAILED
    return INSIDE if values and not failed and abs(fmean(values) - paper.value) <= band + 1e-9 else OUTSIDE


def correlate_ranks(table: Table, found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return how well our order of the methods agrees with the paper's, for each column and group of rows."""
    told = []
    for column in table.columns:
        for group in dict.fromkeys(table.groups.values()):
            mine = [f for f in found if f.cell.column == column and table.groups[f.cell.row] == group and not f.cell.of]
            # Failed training ranks below everything else.
            pairs = [(f.cell.published.value, -1.0 if f.failed else f.ours) for f in mine
                     if f.cell.published and (f.ours is not None or f.failed)]  # fmt: skip
            if len(pairs) < 3:
                continue
            paper, ours = [p for p, _ in pairs], [float(o) for _, o in pairs if o is not None]
            told.append({"column": column, "group": group, "methods": len(pairs), "of": len(mine),
                         "spearman": spearman(paper, ours), "kendall": kendall(paper, ours)})  # fmt: skip
    return told


def compare_claimed(table: Table, found: Sequence[Finding]) -> list[tuple[float, float]]:
    """Return the paper's margin and ours wherever it has the first row of its claim above the second and both were run.

    Differences of accuracies, ratios of anything else.
    """
    main = {(f.cell.column, f.cell.row): f for f in found if not f.cell.of}
    told = []
    for column in table.columns:
        for a, b in ((main.get((column, x)), main.get((column, y))) for x, y in table.compared):
            if not a or not b or not (p := a.cell.published) or not (q := b.cell.published):
                continue
            if a.ours is not None and b.ours is not None and p.value > q.value and not p.failed and not q.failed:
                percent = table.unit == "%"
                told.append((p.value - q.value, a.ours - b.ours) if percent else (p.value / q.value, a.ours / b.ours))
    return told


def find_explanations(table: Table, found: Sequence[Finding]) -> dict[str, Finding]:
    """Return the cells that are outside, each with the first of the table's recipes for it that is inside."""
    tried = {(f.cell.column, f.cell.of, f.cell.row): f for f in found if f.cell.of and f.verdict == INSIDE}
    outside = [f.cell for f in found if not f.cell.of and f.verdict == OUTSIDE]
    inside = {c.id: [tried[k] for r in table.explains if (k := (c.column, c.row, r)) in tried] for c in outside}
    return {id_: several[0] for id_, several in inside.items() if several}


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the correlation of the ranks, with equal ranks for equal values; None if one side is constant.

    >>> spearman([1, 2, 3], [10, 30, 20])
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    mx, my = fmean(x), fmean(y)
    spread = sqrt(sum((v - mx) ** 2 for v in x) * sum((v - my) ** 2 for v in y))
    return sum((v - mx) * (w - my) for v, w in zip(x, y, strict=True)) / spread if spread else None


def kendall(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return τ-b: concordant minus discordant pairs, corrected for ties; None if one side is constant."""
    same = tied_a = tied_b = pairs = 0
    for i in range(len(a)):
        for j in range(i):
            x, y = a[i] - a[j], b[i] - b[j]
            pairs += 1
            tied_a += x == 0
            tied_b += y == 0
            same += (x * y > 0) - (x * y < 0)
    spread = sqrt((pairs - tied_a) * (pairs - tied_b))
    return same / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]
