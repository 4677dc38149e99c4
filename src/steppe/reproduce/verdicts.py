"""Compare a table with the rows: our number, the difference and a verdict per cell, and ranks per column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import StatisticsError, correlation, fmean, stdev
from typing import Any

from steppe.reproduce.recipes import Cell, Table, add_shortened
from steppe.reproduce.rows import Row, count_seconds, find_statistic, has_statistic, is_on_gpu

BAND = 1.5  # points, or two of the paper's standard deviations if that is more
INSIDE, OUTSIDE, FAILED = "inside", "outside", "paper says failed"
NOT_RUN, NOT_JUDGED = "not run", "not judged"
NOT_MEASURED = "not measured"  # how far the draw of the partition moves a column
DRAW = "draw"  # not a statistic: the same number, compared with a band that includes the draw of the partition
BESIDE = ("last", "mean_of_last_ten", "best")
CLASSES = {"cifar100": 100, "tiny-imagenet": 200, "pathmnist": 9, "tissuemnist": 8}  # of the others: 10


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
    seconds: float  # of the GPU, however many processes shared it; those of a CPU do not count
    origins: list[str]  # machines, versions and commits
    on_cpu: int = 0  # number of its runs on a CPU

    @property
    def ours(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def is_at_chance(self) -> bool:
        """Return whether our training came to nothing: at most a point above the share of one class."""
        return self.ours is not None and self.ours <= 100 / CLASSES.get(self.cell.config.data, 10) + 1

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
    spread = _compute_spread(table, by_recipe)
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
            found.append(_make_finding(table, cell, mine, spread.get(cell.column)))
    return found


def _compute_spread(table: Table, by_recipe: dict[str, dict[int, list[Row]]]) -> dict[str, float]:
    """Return the standard deviation over draws of the partition, of one method and one seed, if there are three."""
    values: dict[str, list[float]] = {}
    for cell in table.cells:
        for row in by_recipe.get(cell.hash, {}).get(0, [])[-1:] if cell.row in table.draws else []:
            if (v := find_statistic(row, cell.statistic)) is not None:
                values.setdefault(cell.column, []).append(100 * v)
    return {column: stdev(several) for column, several in values.items() if len(several) > 2}


def _make_finding(table: Table, cell: Cell, rows: dict[int, Row], spread: float | None) -> Finding:
    scale = 100.0 if table.unit == "%" else 1.0

    def over(statistic: str) -> list[float]:
        return [scale * v for r in rows.values() if (v := find_statistic(r, statistic)) is not None]

    failed = [r["failed"] for r in rows.values() if "failed" in r]
    band = _choose_band(table, cell)
    std = (cell.published.std if cell.published else None) or 0.0
    wide = None if spread is None else max(band, 2 * sqrt(std**2 + spread**2))
    verdicts = {s: _judge(table, cell, over(s), failed, band) for s in (cell.statistic, *table.also) if s != DRAW}
    if DRAW in table.also:
        by_draw = NOT_MEASURED if wide is None else _judge(table, cell, over(cell.statistic), failed, wide)
        verdicts = {s: verdicts.get(s, by_draw) for s in (cell.statistic, *table.also)}
    seconds = sum(map(count_seconds, rows.values()))
    beside = {s: fmean(v) for s in BESIDE if table.unit == "%" and (v := over(s))}
    return Finding(cell, list(rows), over(cell.statistic), failed, beside, band, verdicts.pop(cell.statistic), verdicts,
                   seconds, sorted({_describe_origin(r) for r in rows.values() if "hardware" in r}),
                   sum("hardware" in r and not is_on_gpu(r) for r in rows.values()))  # fmt: skip


def _describe_origin(row: Row) -> str:
    commit, _, changed = (row.get("commit") or "").partition("+")
    commit = f"commit {commit[:12]}{' and ' + changed if changed else ''}" if commit else "no commit known"
    return f"{row['hardware']}, torch {row['versions'].get('torch', '?')}, {commit}"


def _choose_band(table: Table, cell: Cell) -> float:
    std = cell.published.std if cell.published and table.runs > 2 else None  # one or two runs are too few
    return max(2 * (std or 0.0), BAND if table.band is None else table.band)


def can_be_judged(table: Table, cell: Cell) -> bool:
    """Return whether a number is printed that can be compared, and a band is fixed for this quantity."""
    paper = cell.published
    return paper is not None and not (paper.failed or paper.at_least) and (table.unit == "%" or table.band is not None)


def _judge(table: Table, cell: Cell, values: list[float], failed: list[str], band: float) -> str:
    paper = cell.published
    if not values and not failed:
        return NOT_RUN
    if paper is not None and paper.failed:
        return FAILED
    if paper is None or not can_be_judged(table, cell):
        return NOT_JUDGED
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


def compare_claimed(table: Table, found: Sequence[Finding], instead: str = "") -> list[tuple[float, float]]:
    """Return the paper's margin and ours wherever it has the first row of its claim above the second and both were run.

    Differences of accuracies, ratios of anything else. Training of ours that came to nothing confirms no claim, and
    its comparisons are left out. `instead`: an alternative recipe, in place of its row.
    """
    if table.unit != "%":
        return [(p / q, a.ours / b.ours) for a, b, p, q in _list_claimed(table, found, instead) if a.ours and b.ours]
    return [(p - q, a.ours - b.ours) for a, b, p, q in _list_claimed(table, found, instead)
            if a.ours is not None and b.ours is not None and not (a.is_at_chance or b.is_at_chance)]  # fmt: skip


def count_at_chance(table: Table, found: Sequence[Finding]) -> int:
    """Return how many comparisons are left out because a run of ours came to nothing."""
    return sum(table.unit == "%" and (a.is_at_chance or b.is_at_chance) for a, b, *_ in _list_claimed(table, found))


def _list_claimed(
    table: Table, found: Sequence[Finding], instead: str = ""
) -> Iterator[tuple[Finding, Finding, float, float]]:
    """Yield every pair of the claim that was run and that the paper has in this order, with its numbers."""
    main = {(f.cell.column, f.cell.row): f for f in found if not f.cell.of}
    if instead:
        other = {(f.cell.column, f.cell.of): f for f in found if f.cell.row == instead}
        row = next((of for _, of in other), "")
        main = {k: f for k, f in main.items() if k[1] != row} | other
    for column in table.columns:
        for a, b in ((main.get((column, x)), main.get((column, y))) for x, y in table.compared):
            if not a or not b or not (p := a.cell.published) or not (q := b.cell.published):
                continue
            if a.ours is not None and b.ours is not None and p.value > q.value and not p.failed and not q.failed:
                yield a, b, p.value, q.value


def compare_in_figure(table: Table, found: Sequence[Finding]) -> list[float]:
    """Return our margins of a claim that the paper shows in a figure, without a number."""
    main = {(f.cell.column, f.cell.row): f for f in found if not f.cell.of and f.cell.published is None}
    pairs = ((main.get((c, x)), main.get((c, y))) for c in table.columns for x, y in table.compared)
    return [a.ours - b.ours for a, b in pairs if a and b and a.ours is not None and b.ours is not None]


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
    try:
        return correlation(_rank(a), _rank(b))
    except StatisticsError:
        return None


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


def _rank(values: Sequence[float]) -> list[float]:
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]
