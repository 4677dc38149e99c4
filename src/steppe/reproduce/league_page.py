"""Write the league's page: what was chosen, the table of each column, the contrasts, and what was not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from steppe.report.markdown_latex import escape_markdown as md
from steppe.report.markdown_latex import render_markdown_table
from steppe.report.report_tables import Table
from steppe.report.seeds import compare_pairs, format_p
from steppe.reproduce import factorial
from steppe.reproduce.costs import compare_costs
from steppe.reproduce.intervals import LEVEL, Interval, compare_blocks, correct_by_holm, estimate
from steppe.reproduce.league import (
    CANDIDATES,
    MOST,
    NAME,
    Arm,
    choose_ours,
    find_column,
    find_missing_runs,
    find_standings,
    find_strong,
    list_arms,
    read_league,
)
from steppe.reproduce.rows import Row

NEXT = """## What is run next

One command runs everything, in this order, and may be stopped and started again. With a budget it starts nothing that
would not end in time:

    steppe reproduce league --jobs 8 --budget 1500"""
Standing = dict[str, Any]
ENOUGH = 3  # blocks: an interval over two says nothing


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
        scores, _ = arm.tried(rows)
        if all(s is None for s in scores.values()):
            continue
        chosen = arm.choose(rows)
        in_order = sorted(scores.items(), key=lambda pair: (pair[0].other, pair[0].at))
        told = "; ".join(f"{arm.name(c)}: {_score(s)}" for c, s in in_order)
        edge = "" if chosen is None else "yes" if arm.is_at_edge(chosen, rows) else "no"
        made.append([arm.title, told, arm.name(chosen) if chosen else "not all run", edge])
    return Table("Tuning", ["arm", "candidates, % of held-out data", "chosen", "at the edge"], made)


def _score(value: float | None) -> str:
    return "not run" if value is None else "failed" if value < 0 else f"{100 * value:.2f}"


def _make_column(found: Sequence[Standing], column: dict[str, Any]) -> Table:
    ran = [f for f in found if f["column"] == column["id"] and (f["mean"] or f["failed"])]
    ran.sort(key=lambda f: -(e.mean if (e := estimate(f["mean"].values())) else -1.0))
    head = ["arm", "chosen", "+ EMA, %", "global model, %", "EMA gains", "λ1", "trace", "bytes", "FLOPs",
            "vectors kept per client", "seconds per run"]  # fmt: skip
    rows = []
    for f in ran:
        gain = compare_blocks(f["mean"], f["model"])
        failed = f"; failed: {len(f['failed'])}" if f["failed"] else ""
        costs = [f"{f['bytes_x']:.2f}×", f"{f['flops_x']:.2f}×", f"{f['kept']:.2g}", _show(f["seconds"])]
        title = f["title"] + (" *" if f["ours"] else "")
        rows.append([title, f["chosen"], _show(f["mean"]) + failed, _show(f["model"]), f"{gain}" if gain else "",
                     _show(f["lambda1"]), _show(f["trace"]), *costs])  # fmt: skip
    return Table(column["title"], head, rows)


def _show(by_block: dict[int, float]) -> str:
    return str(estimate(by_block.values()) or "")


def compare_arms(found: Sequence[Standing], column: str, ours: str, others: Sequence[str]) -> dict[str, Interval]:
    """Return contrasts of a column: the running mean of ours minus that of each, by block."""
    mean = {f["arm"]: f["mean"] for f in found if f["column"] == column}
    pairs = {other: compare_blocks(mean[ours], mean[other]) for other in others if other in mean}
    return {other: pair for other, pair in pairs.items() if pair is not None}


def write_outcome(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Say which arm is ours, and what the named contrasts are in each column that has them."""
    ours, league = choose_ours(rows, scale), read_league()
    if ours is None:
        return write_progress(rows, scale)
    mine = [a for a in list_arms(scale) if a.ours]
    told = [
        f"By held-out data, ours is {ours.title}: the best of {len(mine)} arms of ours with {CANDIDATES} candidates "
        f"each. A method that it is compared with has {CANDIDATES}, or up to {MOST} if the best is at the edge."
    ]
    titles = {a.id: a.title for a in list_arms(scale)}
    found = find_standings(rows, scale)
    told += _write_contrasts(rows, found, ours, scale)
    further = [a.id for a in list_arms(scale) if a.id not in (ours.id, *league["contrasts"])]
    for column in league["column"]:
        for other, pair in compare_arms(found, column["id"], ours.id, further).items():
            told.append(f"Not named beforehand, {column['title']}: ours − ({titles[other]} + EMA) = {_signed(pair)}.")
    return [*told, *_name_strong(rows, ours, scale), *_name_failures(rows, scale)]


def _write_contrasts(rows: Sequence[Row], found: Sequence[Standing], ours: Arm, scale: str) -> list[str]:
    """Say what the contrasts named beforehand are, each also corrected for the number of those that were run."""
    league, arms = read_league(), {a.id: a for a in list_arms(scale)}
    columns = [c["id"] for c in league["column"]]
    mean = {(f["column"], f["arm"]): f["mean"] for f in found}
    pairs = {(c, other): pair for c in columns
             for other, pair in compare_arms(found, c, ours.id, league["contrasts"]).items()}  # fmt: skip
    chances = {(c, other): p for c, other in pairs
               if (test := compare_pairs(mean[c, ours.id], mean[c, other])) and (p := test.p) is not None}  # fmt: skip
    corrected = dict(zip(chances, correct_by_holm([*chances.values()]), strict=True))
    told = []
    for (column, other), pair in pairs.items():
        arm, here, key = arms[other], find_column(column)["title"], (column, other)
        chance = f", p {format_p(chances[key])}, corrected {format_p(corrected[key])}" if key in chances else ""
        chosen = arm.choose(rows)
        edge = f", but {arm.title} has a value at the edge of those tried" if (
            pair.mean > 0 and pair.count >= ENOUGH and chosen and arm.is_at_edge(chosen, rows)) else ""  # fmt: skip
        told.append(f"{here}: ours − ({arm.title} + EMA) = {_signed(pair)}{chance}: {_judge(pair)}{edge}.")
    if chances:
        planned = len(columns) * len(league["contrasts"])
        left = sum(p * planned < 1 - LEVEL for p in chances.values())
        told.append(
            f"Corrected by Holm's method for the {len(chances)} contrasts above that have a p-value. For all "
            f"{planned} that are planned, Bonferroni's would leave {left or 'none'} of them decided. Both "
            "assume that differences between blocks have a normal distribution, which so few cannot show."
        )
    return told


def _name_strong(rows: Sequence[Row], ours: Arm, scale: str) -> list[str]:
    """Name the arms without a block that do better on held-out data than every arm that ours was compared with."""
    told = []
    best = max(s for s in ours.tried(rows)[0].values() if s is not None)
    for arm, score in find_strong(rows, scale).items():
        tried = sum(s is not None for s in arm.tried(rows)[0].values())
        flops = compare_costs(arm.cell(arm.middle(False), None).config)["flops_x"]
        told.append(f"Not compared with ours yet, though it may be as good: {arm.title} + EMA, at {flops:.2f} times "
                    f"FedAvg's FLOPs, has {_score(score)} % of held-out data with the best of the {tried} "
                    f"candidates that were run; ours has {_score(best)} %, one run each.")  # fmt: skip
    return told


def _name_failures(rows: Sequence[Row], scale: str) -> list[str]:
    """Name the candidates whose training broke down."""
    failed = [f"{arm.title} ({arm.name(c)})" for arm in list_arms(scale) for c, s in arm.tried(rows)[0].items()
              if s is not None and s < 0]  # fmt: skip
    return [f"Training broke down, while tuning: {'; '.join(failed)}."] if failed else []


def write_progress(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Say how far the first tier is, and what its scores on held-out data are so far: no result, one run each."""
    first = [a for a in list_arms(scale) if a.tier == 1]
    scores = {a: {c: s for c, s in a.tried(rows)[0].items() if s is not None} for a in first}
    done, seed = sum(map(len, scores.values())), read_league()["tuning"]["seed"]
    blocks = sum(r.get("table") == NAME and r["seed"] != seed for r in rows)
    told = [f"Tuning is not complete: {done} of {CANDIDATES * len(first)} runs of the {len(first)} arms are done. So "
            f"none of ours is chosen, no contrast was made, and nothing is claimed. Runs of blocks: {blocks}, shown "
            "once their arm is tuned."]  # fmt: skip
    best = sorted(((max(s.values()), a.title) for a, s in scores.items() if s), key=lambda pair: -pair[0])
    if best:
        told.append("Best of each arm on held-out data so far, one run per candidate: "
                    + ", ".join(f"{title} {_score(score)}" for score, title in best) + " %.")  # fmt: skip
    moved = []
    for arm, s in ((a, s) for a, s in scores.items() if "fourth" not in a.content):
        other, usual = s.get(arm.middle(True)), s.get(arm.middle(False))
        if other is not None and usual is not None and usual >= 0:
            moved.append(f"{arm.title} " + ("fails" if other < 0 else f"{100 * (other - usual):+.2f}"))
    if moved:
        told.append("Local momentum 0 with ten times the rate, instead of 0.9 and nothing else, changes the score on "
                    f"held-out data by so many points, one run each: {', '.join(moved)}.")  # fmt: skip
    return told


def _signed(pair: Interval) -> str:
    blocks = f"{pair.count} block{'s' if pair.count > 1 else ''}"
    if pair.ends is None:
        return f"{pair.mean:+.2f} points, {blocks}, no interval"
    return f"{pair.mean:+.2f} points, interval {pair.ends[0]:+.2f} to {pair.ends[1]:+.2f}, {blocks}"


def _judge(pair: Interval) -> str:
    worth = read_league()["worth"]
    if pair.count < ENOUGH:
        return "too few blocks to decide"
    if not pair.excludes_zero:
        return "not decided"
    if pair.mean < 0:
        return "ours loses"
    return "ours wins" if pair.mean >= worth else f"ours is ahead, by less than {worth:g} points"


def list_missing(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Say for every column which arms have fewer blocks than planned; arms that never ran together."""
    found, told = find_standings(rows, scale), []
    for column in read_league()["column"]:
        here = [f for f in found if f["column"] == column["id"]]
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
    waiting = [f"{arm.name(c)} of {arm.title}, and then its blocks" for arm in list_arms(scale) if arm.choose(rows)
               for c, score in arm.tried(rows)[0].items() if score is None]  # fmt: skip
    told = [f"tuning: {one}" for one in waiting]
    told += [f"{one['what']}: {_count_runs(counts[i])}" for i, one in enumerate(order) if counts[i]]
    rest = sum(n for i, n in counts.items() if i >= len(order))
    told += [f"all else: {_count_runs(rest)} and those that follow from their results"] if rest else []
    return told


def _count_runs(n: int) -> str:
    return f"{n} run{'s' if n > 1 else ''}"


def describe(scale: str = "paper") -> str:
    """Return how arms are tuned and evaluated, from the league's own file."""
    league = read_league()
    tuning, titles = league["tuning"], {a.id: a.title for a in list_arms(scale)}
    whole = titles[league["factorial"]["of"]]
    contrasts = ", ".join(f"ours − ({titles[c]} + EMA)" for c in league["contrasts"])
    return (
        "Every run has the FedAvg paper's CNN, 10 of 100 clients per round and FedSoL's local recipe, unless a "
        f"column says otherwise; {league['rounds']} rounds; bf16 in the student's passes. A block is one seed: of the "
        "initial model, the batches, the draw of the partition and the schedule of the clients, the same for all "
        f"arms. + EMA is the running mean of the global models (keep = {league['keep']:g}), which every run evaluates "
        "in addition to the global model itself. Each arm has six candidates: three on its own axis, one with local "
        "momentum 0 (with a clip, if the paper has no momentum), and two that depend on their results, so that the "
        "chosen value lies between others; up to two more follow if it is still at the edge. They are trained on "
        f"{100 - 100 * tuning['set']['validation']:.0f} % of "
        f"the training data of {find_column(tuning['column'])['title']}, on a separate partition, for as many rounds "
        "as in the final runs, and chosen by the running mean's accuracy on the rest; the test set is not used. All "
        "columns use the candidates that were chosen there. Accuracies are means of the last ten rounds on the test "
        "set. Every number is a mean over blocks ± half of its 95 % interval (Student's t), with the number of "
        f"blocks in brackets; differences are paired by block. Named in commit {league['named_in']}, before the commit "
        f"of every row: {contrasts}; a win is at least {league['worth']:g} points and an interval without 0. That "
        f"it takes {ENOUGH} blocks was added later. Ours were composed when the survey was known, which has the same "
        "test set with another seed. λ1 and trace are the global model's after the last "
        "round, on at most 5,000 training samples; bytes and FLOPs are multiples of FedAvg's, traced; seconds are of "
        "one H200, shared; * marks arms of ours. The effect of each part is computed from all combinations of the "
        f"parts of {whole}. They have the settings and the local rate that were chosen for it ('like it' in the "
        "table) and are not tuned; the same holds for the dual of the head, which is the CNN's last 5,130 numbers."
    )  # fmt: skip


def render_markdown(rows: Sequence[Row], scale: str = "paper") -> str:
    parts = [f"# {read_league()['title']}", md(describe(scale)), "    steppe reproduce league",
             "More methods, with one seed each, are in [the survey](survey.md)."]  # fmt: skip
    if scale != "paper":
        parts.append("This is the tiny scale, on the embedded digits: the numbers say nothing about the methods.")
    tables = make_tables(rows, scale)
    if tables:
        parts += ["## Outcome", "\n".join(f"- {md(s)}" for s in write_outcome(rows, scale))]
    for table in tables:
        parts += [f"## {md(table.title)}", render_markdown_table(table)]
    missing = list_missing(rows, scale)
    parts += ["## Not run", "\n".join(f"- {md(line)}" for line in missing)] if missing else []
    parts += (
        [NEXT, "\n".join(f"{i}. {md(line)}" for i, line in enumerate(list_next(rows, scale), 1))] if missing else []
    )
    return "\n\n".join(parts) + "\n"


def render_files(rows: Sequence[Row], scale: str = "paper") -> dict[str, str]:
    return {"league.md": render_markdown(rows, scale)}
