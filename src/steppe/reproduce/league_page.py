"""Write the league's page: what was chosen, the table of each column, the contrasts, and what was not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from steppe.report.markdown_latex import make_markdown_environment
from steppe.report.table import Table
from steppe.reproduce import factorial
from steppe.reproduce.factorial import ENOUGH
from steppe.reproduce.intervals import compare_blocks, estimate
from steppe.reproduce.league import find_column, list_arms, read_league
from steppe.reproduce.league_outcome import Standing, format_score, write_sections
from steppe.reproduce.league_runs import find_missing_runs, find_order, find_standings
from steppe.reproduce.rows import Row, describe_devices


def make_tables(rows: Sequence[Row], scale: str = "paper") -> list[Table]:
    """Return the table of tuning, and one of each column that has a run."""
    found = find_standings(rows, scale)
    columns = [_make_column(found, c) for c in read_league()["column"]]
    parts = [factorial.make_table(found, find_column(c)) for c in read_league()["factorial"]["columns"]]
    return [t for t in (make_tuning(rows, scale), *columns, *parts) if t.rows]


def make_tuning(rows: Sequence[Row], scale: str = "paper") -> Table:
    """Return the candidates of each arm with their scores on held-out data, in the order of the axis."""
    made = []
    for arm in list_arms(scale):
        scores = arm.score_candidates(rows)
        if all(s is None for s in scores.values()):
            continue
        chosen = arm.choose(rows)
        in_order = sorted(scores.items(), key=lambda pair: (pair[0].other, pair[0].at))
        told = "; ".join(f"{arm.name(c).replace(',', ', ')}: {format_score(s)}" for c, s in in_order)
        edge = "" if chosen is None else "yes" if arm.is_at_edge(chosen, rows) else "no"
        made.append([arm.title, told, arm.name(chosen).replace(",", ", ") if chosen else "not all run", edge])
    return Table("Tuning", ["arm", "candidates, % of held-out data", "chosen", "at the edge"], made)


def _make_column(found: Sequence[Standing], column: dict[str, Any]) -> Table:
    ran = [f for f in found if f["column"] == column["id"] and (f["mean"] or f["failed"])]
    ran.sort(key=lambda f: -(e.mean if (e := estimate(f["mean"].values())) else -1.0))
    head = ["arm", "chosen", "+ EMA, %", "global model, %", "EMA gains", "λ1", "trace", "bytes", "FLOPs",
            "vectors kept per client", "seconds per run"]  # fmt: skip
    rows = []
    for f in ran:
        gain = compare_blocks(f["mean"], f["model"])
        failed = f"; failed: {len(f['failed'])}" if f["failed"] else ""
        costs = [f"{f['bytes_x']:.2f}×", f"{f['flops_x']:.2f}×", f"{f['kept']:.2g}", _show(f["seconds"], 1)]
        title = f["title"] + (" *" if f["ours"] else "")
        rows.append([title, f["chosen"].replace(",", ", "), _show(f["mean"]) + failed, _show(f["model"]),
                     f"{gain}" if gain else "", _show(f["lambda1"], 1), _show(f["trace"], 0), *costs])  # fmt: skip
    return Table(column["title"], head, rows)


def _show(by_block: dict[int, float], digits: int = 2) -> str:
    found = estimate(by_block.values())
    return found.format(digits) if found else ""


def list_missing(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Say for every column which arms have fewer blocks than planned; arms that never ran together."""
    found, told = find_standings(rows, scale), []
    for column in read_league()["column"]:
        here = [f for f in found if f["column"] == column["id"] and not f["earlier"]]
        counts = {f["title"]: len(f["mean"]) + len(f["failed"]) for f in here}
        few = [f"{f['title']} ({n} of {f['blocks']})" for f, n in zip(here, counts.values(), strict=True)
               if 0 < n < f["blocks"]]  # fmt: skip
        none = [title for title, n in counts.items() if n == 0]
        if len(none) == len(counts):
            told.append(f"{column['title']}: no arm.")
        elif few or none:
            parts = [", ".join(few)] if few else []
            parts += ["not " + ", ".join(none)] if none else []
            told.append(f"{column['title']}: {'; '.join(parts)}.")
    return told


def list_next(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Say in which order the missing runs come, and how many of each are known already."""
    order = read_league()["order"]
    counts = Counter(job.stage[0] for job in find_missing_runs(rows, scale, [], {}))
    waiting: dict[int, list[str]] = {}  # further candidates of what was chosen before
    for arm in (a for a in list_arms(scale) if a.choose(rows)):
        place = min(find_order(arm, c) for c in arm.columns)
        missing = [c for c, score in arm.score_candidates(rows).items() if score is None]
        waiting.setdefault(place, []).extend(
            f", {arm.name(c)} of {arm.title} in tuning, and then its blocks" for c in missing
        )
    told = [f"{one['what']}: {_count_runs(counts[i])}{''.join(waiting.get(i, []))}" for i, one in enumerate(order)
            if counts[i]]  # fmt: skip
    rest = sum(n for i, n in counts.items() if i >= len(order))
    told += [f"all else: {_count_runs(rest)} and those that follow from their results"] if rest else []
    return told


def _count_runs(n: int) -> str:
    return f"{n} run{'s' if n > 1 else ''}"


def render_markdown(rows: Sequence[Row], scale: str = "paper") -> str:
    league, tables, missing = read_league(), make_tables(rows, scale), list_missing(rows, scale)
    devices = {device for f in find_standings(rows, scale) for device in f["devices"].values()}
    return make_markdown_environment("steppe.reproduce").get_template("league.md.jinja").render(
        league=league, scale=scale, tables=tables, sections=write_sections(rows, scale) if tables else {},
        titles={a.id: a.title for a in list_arms(scale)}, tuned_on=find_column(league["tuning"]["column"])["title"],
        enough=ENOUGH, devices=describe_devices(devices) if devices else "", missing=missing,
        next=list_next(rows, scale) if missing else [])  # fmt: skip


def render_files(rows: Sequence[Row], scale: str = "paper") -> dict[str, str]:
    return {"league.md": render_markdown(rows, scale)}
