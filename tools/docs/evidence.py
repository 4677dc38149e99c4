"""What was run of each method: rows of the reproduced tables and of the league, read from the committed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tools.docs.tables import make_table

from steppe.config import Config
from steppe.reproduce import league, recipes, rows, verdicts

LEAGUE = "league"


@dataclass(frozen=True)
class Evidence:
    """One cell that was run."""

    table: str  # the name of its page
    title: str
    where: str
    config: Config
    paper: str
    ours: str
    verdict: str
    seeds: int


def read_evidence() -> list[Evidence]:
    """Return every cell of a table or of the league that was run."""
    known = rows.read_folders([rows.find_ours()])
    return [*_reproduced(known), *_league(known)]


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
            found.append(Evidence(name, table.title, where, one.cell.config, str(one.cell.published or "–"),
                                  ours, verdict, len(one.seeds)))  # fmt: skip
    return found


def _league(known: Sequence[rows.Row]) -> list[Evidence]:
    """Return the entrants whose chosen candidate was tested."""
    by_recipe: dict[str, list[rows.Row]] = {}
    for row in known:
        by_recipe.setdefault(row["recipe"], []).append(row)
    found = []
    for entrant in league.list_entrants():
        tuning = [row for cell in entrant.tuning for row in by_recipe.get(cell.hash, [])]
        best = league.choose_candidate(entrant, tuning) if tuning else None
        if best is None:
            continue
        tested = {row["seed"]: row for row in by_recipe.get(entrant.final[best].hash, []) if "failed" not in row}
        values = [100 * v for row in tested.values() if (v := rows.find_statistic(row, league.TESTED)) is not None]
        if values:
            where = f"{entrant.title}; {entrant.column}"
            found.append(Evidence(LEAGUE, "The league", where, entrant.final[best].config, "–", f"{fmean(values):.4g}",
                                  f"chosen: {entrant.final[best].row.partition('/')[2]}", len(values)))  # fmt: skip
    return found


def show(found: Sequence[Evidence], folder: str) -> str:
    """Return a table of evidence; `folder` leads from the page to docs/."""
    if not found:
        return "No table with it has been run, and it is not among the tested entries of the league."
    pages = {e.table: "league.md" if e.table == LEAGUE else f"reproductions/{e.table}.md" for e in found}
    lines = [[f"[{e.title}]({folder}{pages[e.table]})", e.where, e.paper, e.ours, e.verdict, str(e.seeds)]
             for e in found]  # fmt: skip
    return make_table(["table", "row; column", "paper", "here", "verdict", "seeds"], lines)
