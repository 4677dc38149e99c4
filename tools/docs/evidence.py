"""Read the runs of each method, in the reproduced tables and in the league, from the committed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.docs.tables import make_table

from steppe.config import Config, resolve
from steppe.reproduce import league, league_outcome, recipes, rows, verdicts
from steppe.reproduce.intervals import estimate

DOCS = Path(__file__).parents[2] / "docs"
FEW = 8  # rows that need not be folded
STATISTICS = ("running_mean_of_last_ten", "mean_of_last_ten")  # the first that a row has


@dataclass(frozen=True)
class Evidence:
    """One cell that was run."""

    page: str  # in docs/
    title: str
    where: str
    config: Config
    paper: str
    ours: str
    verdict: str
    seeds: int
    entry: str  # of the catalogue


def read_evidence() -> list[Evidence]:
    """Return every cell of a table or of the league that was run."""
    known = rows.read_folders([rows.find_ours()])
    return [*_reproduced(known), *_surveyed(known)]


def _reproduced(known: Sequence[rows.Row]) -> list[Evidence]:
    found = []
    for name in recipes.list_tables():
        table = recipes.load_table(name)
        for one in verdicts.compare_with_paper(table, known):
            if one.ours is None and not one.failed:
                continue
            ours = "broke down" if one.ours is None else f"{one.ours:.4g}" + (f" ± {one.std:.2g}" if one.std else "")
            where = f"{table.rows[one.cell.row]}; {table.columns[one.cell.column]}"
            verdict = f"tried: {one.cell.why}" if one.cell.of else one.verdict
            page, paper = f"reproductions/{name}.md", str(one.cell.published or "–")
            found.append(Evidence(page, table.title, where, one.cell.config, paper, ours, verdict, len(one.seeds),
                                  one.cell.config.algorithm))  # fmt: skip
    return found


def _surveyed(known: Sequence[rows.Row]) -> list[Evidence]:
    """Return what was trained under one protocol and tested (not what was tuned on held-out data)."""
    several: dict[tuple[str, str], list[rows.Row]] = {}
    for row in known:
        tested = not row["config"].get("validation") and "failed" not in row
        if tested and row["table"] not in recipes.list_tables() and (DOCS / f"{row['table']}.md").exists():
            several.setdefault((row["table"], row["cell"]), []).append(row)
    found, named = [], _find_named(known)
    for (table, cell), mine in several.items():
        values = [next((v for s in STATISTICS if (v := rows.find_statistic(row, s)) is not None), 0.0) for row in mine]
        title = (DOCS / f"{table}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
        ours = str(estimate([100 * v for v in values])).partition(" (")[0]
        config = resolve(mine[0]["config"])
        where = f"{cell}; local rate {config.lr:g}, momentum {config.momentum:g}"
        where += f", clip {config.clip:g}" if config.clip else ""
        where += "; running mean" if STATISTICS[0] in mine[0] else ""
        found.append(Evidence(f"{table}.md", title, where, config, "–", ours, "–",
                              len({row["seed"] for row in mine}),
                              named.get(mine[0]["recipe"], mine[0]["config"]["algorithm"])))  # fmt: skip
    return found


def _find_named(known: Sequence[rows.Row]) -> dict[str, str]:
    """Return the entries of the catalogue that arms of the league became, by the recipes of their rows."""
    arms = [(a, c) for a in league.list_arms() if "entry" in a.content and (c := a.choose(known)) is not None]
    return {arm.cell(chosen, c).hash: arm.content["entry"] for arm, chosen in arms for c in arm.columns}


def tell_league(name: str) -> str:
    """Return what the league found about the entry that one of its arms became; empty for every other entry."""
    if name not in (a.content.get("entry") for a in league.list_arms()):
        return ""
    told = league_outcome.write_outcome(rows.read_folders([rows.find_ours()]))
    return "Gains, losses and what is open, by [the league](../league.md):\n\n" + "\n".join(f"- {t}" for t in told)


def show(found: Sequence[Evidence], folder: str) -> str:
    """Return a table for each page of evidence; `folder` leads from the page to docs/."""
    if not found:
        return "No table that contains it has been run."
    blocks = []
    for page in dict.fromkeys(e.page for e in found):
        mine = [e for e in found if e.page == page]
        lines = [[e.where, e.paper, e.ours, e.verdict, str(e.seeds)] for e in mine]
        table = make_table(["row", "paper", "here", "verdict", "seeds"], lines)
        title = f"**[{mine[0].title}]({folder}{page})**"
        title += "" if page.startswith("reproductions/") else ", mean ± half of its 95 % interval over seeds, in %"
        blocks.append(f"{title}\n\n{table if len(mine) <= FEW else _fold(table, len(mine))}")
    if any(e.verdict in (verdicts.INSIDE, verdicts.OUTSIDE) for e in found):
        rule = f"[what a verdict means]({folder}explanation/measurements.md#verdicts-of-reproductions)"
        blocks.insert(0, "A verdict says whether our number is in a band around the paper's: two of its standard "
                         "deviations, or 1.5 points if that is more, unless the table fixes another band. A ± "
                         f"over clients, or over one or two runs, does not widen it: {rule}. Our own ± is the "
                         "standard deviation over seeds.")  # fmt: skip
    return "\n\n".join(blocks)


def _fold(table: str, count: int) -> str:
    """Return a long table that opens on a click."""
    return f'??? note "{count} rows"\n\n' + "\n".join(f"    {line}" for line in table.splitlines())
