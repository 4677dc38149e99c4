"""Write the league's page: what was chosen, the table of each column, the contrasts, and what was not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from steppe.report.markdown_latex import escape_markdown as md
from steppe.report.markdown_latex import render_markdown_table
from steppe.report.table import Table
from steppe.reproduce import factorial
from steppe.reproduce.factorial import ENOUGH
from steppe.reproduce.intervals import compare_blocks, estimate
from steppe.reproduce.league import find_column, list_arms, read_league
from steppe.reproduce.league_outcome import Standing, format_score, write_sections
from steppe.reproduce.league_runs import find_missing_runs, find_order, find_standings
from steppe.reproduce.rows import Row, describe_devices

INTRODUCTION = """Methods get the same number of candidates, are tuned on held-out data, and are then compared on the
same blocks. An arm is a method with what was chosen for it. A block is one seed with its own draw of the partition and
of the clients of every round. "+ EMA" is the running mean of a method's global models. "Ours" is our composition that
was best on held-out data. More methods, with one seed each, are in [the survey](survey.md)."""
NEXT = """## What is run next

One command runs everything, in this order, and may be stopped and started again. With a budget it starts nothing that
would not end in time:

    steppe reproduce league --jobs 8 --budget 1500"""


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


def describe(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Return how arms are tuned and evaluated, from the league's own file."""
    league = read_league()
    tuning, titles = league["tuning"], {a.id: a.title for a in list_arms(scale)}
    whole = titles[league["factorial"]["of"]]
    contrasts = ", ".join(f"ours − ({titles[c]} + EMA)" for c in league["contrasts"])
    devices = {device for f in find_standings(rows, scale) for device in f["devices"].values()}
    return [
        "Every run has the FedAvg paper's CNN, 10 of 100 clients per round and FedSoL's local recipe, unless a column "
        f"says otherwise; {league['rounds']} rounds; bf16 in the student's passes.",
        "A block is one seed: of the initial model, the batches, the draw of the partition and the schedule of the "
        "clients, the same for all arms.",
        f"Every run also evaluates the running mean of the global models (keep = {league['keep']:g}): + EMA.",
        "Each arm has six candidates: three on its own axis, one with local momentum 0 (with a clip, if the paper has "
        "no momentum), and two that depend on their results, so that the chosen value lies between others. Up to two "
        "more follow if it is still at the edge. Five were planned at first: the sixth was added after 31 runs "
        "of tuning and one of a block (FedAvg's) were known, the further two after the first results were.",
        f"Candidates are trained on {100 - 100 * tuning['set']['validation']:.0f} % of the training data of "
        f"{find_column(tuning['column'])['title']}, on a separate partition, for as many rounds as in the final runs, "
        "and chosen by the running mean's accuracy on the rest. The test set is not used. All columns use the "
        "candidates that were chosen there.",
        "Accuracies are means of the last ten rounds on the test set. Every number is a mean over blocks ± half of its "
        "95 % interval (Student's t), with the number of blocks in brackets; differences are paired by block.",
        "An interval covers other draws of partition, schedule and seed, with these settings and these data. It covers "
        "neither the choice of the settings (one run per candidate) nor other data or networks. It assumes that "
        "differences have a normal distribution, which 3 or 6 blocks cannot show: fewer than 95 % of such intervals "
        "may contain the true difference. With fewer blocks than planned, a verdict is preliminary.",
        f"Named in commit {league['named_in']}, before the commit of every row: {contrasts}. A win is at least "
        f"{league['worth']:g} points and an interval without 0. The rule that it takes {ENOUGH} blocks was added "
        "later. Only these contrasts are corrected for their number; all other intervals are not.",
        "Ours were composed with knowledge of the survey, which has the same test set with another seed. * marks them.",
        "λ1 and trace are the global model's after the last round, on at most 5,000 training samples; bytes and FLOPs "
        f"are multiples of FedAvg's, traced{'; ' + describe_devices(devices) if devices else ''}.",
        f"The effect of each part is computed from all combinations of the parts of {whole}. They, and the dual of "
        "the head (the CNN's last 5,130 numbers), have the settings and the local rate that were chosen for it ('like "
        "it' in the table) and are not tuned. Three blocks were planned for each; "
        f"{_list_more_blocks(titles)}, which was decided after two were known.",
    ]


def _list_more_blocks(titles: dict[str, str]) -> str:
    return ", ".join(f"{titles[arm]} has {n}" for arm, n in read_league()["factorial"]["more_blocks"].items())


def render_markdown(rows: Sequence[Row], scale: str = "paper") -> str:
    parts = [f"# {read_league()['title']}", INTRODUCTION, "    steppe reproduce league"]
    if scale != "paper":
        parts.append("This is the tiny scale, on the embedded digits: the numbers say nothing about the methods.")
    tables = make_tables(rows, scale)
    for heading, sentences in (write_sections(rows, scale) if tables else {}).items():
        parts += [f"## {heading}", _format_bullets(sentences)] if sentences else []
    parts += ["## How it is done", _format_bullets(describe(rows, scale))]
    for table in tables:
        parts += [f"## {md(table.title)}", render_markdown_table(table)]
    missing = list_missing(rows, scale)
    parts += ["## Not run", _format_bullets(missing)] if missing else []
    parts += (
        [NEXT, "\n".join(f"{i}. {md(line)}" for i, line in enumerate(list_next(rows, scale), 1))] if missing else []
    )
    return "\n\n".join(parts) + "\n"


def _format_bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {md(s)}" for s in sentences)


def render_files(rows: Sequence[Row], scale: str = "paper") -> dict[str, str]:
    return {"league.md": render_markdown(rows, scale)}
