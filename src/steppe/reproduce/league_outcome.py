"""Say what the league shows: what ours is ahead of, behind, or level with, and what is known about its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steppe.report.seeds import compare_pairs, format_p, join_words
from steppe.reproduce import factorial
from steppe.reproduce.costs import compare_costs
from steppe.reproduce.factorial import ENOUGH
from steppe.reproduce.intervals import LEVEL, Interval, compare_blocks, correct_by_holm, estimate
from steppe.reproduce.league import (
    CANDIDATES,
    MOST,
    NAME,
    Arm,
    choose_ours,
    find_column,
    find_strong,
    list_arms,
    read_league,
)
from steppe.reproduce.league_runs import find_standings
from steppe.reproduce.rows import Row

Standing = dict[str, Any]


def format_score(value: float | None) -> str:
    return "not run" if value is None else "failed" if value < 0 else f"{100 * value:.2f}"


def compare_arms(found: Sequence[Standing], column: str, ours: str, others: Sequence[str]) -> dict[str, Interval]:
    """Return contrasts of a column: the running mean of ours minus that of each, by block."""
    mean = {f["arm"]: f["mean"] for f in found if f["column"] == column}
    pairs = {other: compare_blocks(mean[ours], mean[other]) for other in others if other in mean}
    return {other: pair for other, pair in pairs.items() if pair is not None}


def write_outcome(rows: Sequence[Row], scale: str = "paper") -> list[str]:
    """Return the sentences of all sections."""
    return [sentence for section in write_sections(rows, scale).values() for sentence in section]


def write_sections(rows: Sequence[Row], scale: str = "paper") -> dict[str, list[str]]:
    """Say which arm is ours, what it is ahead of and what not, and what is known about its parts, by heading."""
    ours, league = choose_ours(rows, scale), read_league()
    if ours is None:
        return {"Outcome": [write_progress(rows, scale)]}
    arms = list_arms(scale)
    chosen = (
        f"Ours, chosen on held-out data, is {ours.title}: the best of {sum(a.ours for a in arms)} arms of ours with "
        f"{CANDIDATES} candidates each. A method with which it is compared has {CANDIDATES}, or up to {MOST} if the "
        "best is at the edge."
    )
    found = find_standings(rows, scale)
    tuned = [a for a in arms if a is not ours and a.id not in league["contrasts"] and not a.like]
    others = []
    for column in league["column"]:
        for other, pair in compare_arms(found, column["id"], ours.id, [a.id for a in tuned]).items():
            title = next(a.title for a in tuned if a.id == other)
            others.append(f"Not named beforehand, {column['title']}: ours − ({title} + EMA) = {_format_signed(pair)}: "
                          f"{_judge(pair, named=False)}.")  # fmt: skip
    untuned = [s for column in league["column"] for s in _list_untuned(found, column, ours, scale)]
    return {
        "Outcome": [chosen, *_summarize(found, ours, scale), *_name_failed_blocks(found),
                    *_compare_seconds(found, ours), *_write_parts(found)],
        "Contrasts": [*_write_contrasts(rows, found, ours, scale), *others],
        "Arms that are not tuned, and what failed": [*untuned, *_name_strong(rows, ours, scale),
                                                     *_name_failures(rows, scale)],
    }  # fmt: skip


def format_costs(f: Standing) -> str:
    """Return the costs of an arm where they are not FedAvg's; empty if all are."""
    several = [f"{f['bytes_x']:.2f}× bytes"] * (f["bytes_x"] > 1.005)
    several += [f"{f['flops_x']:.2f}× FLOPs"] * (f["flops_x"] > 1.005)
    several += [f"{f['kept']:.2g} vector{'s' * (f['kept'] > 1)} kept"] * (f["kept"] > 1e-3)
    return ", ".join(several)


def _summarize(found: Sequence[Standing], ours: Arm, scale: str) -> list[str]:
    """Say in a sentence for each column what ours is ahead of, what it is behind, and what is undecided."""
    told = []
    for column in read_league()["column"]:
        costs = {f["arm"]: format_costs(f) for f in found if f["column"] == column["id"]}
        parts = []
        for kind, several in sort_comparisons(found, column["id"], ours, scale).items():
            each = [f"{arm.title} ({'; '.join(filter(None, [f'{pair.mean:+.2f}', costs[arm.id]]))})"
                    for arm, pair in several.items()]  # fmt: skip
            parts += [f"{kind} {join_words(each)}"] if each else []
        if parts:
            told.append(f"{column['title']}, in short: ours ({costs[ours.id]}) is {'; '.join(parts)}. Points of the "
                        "running means.")  # fmt: skip
    return told


def compare_seconds(found: Sequence[Standing], column: str, ours: str) -> Interval | None:
    """Return how many times FedAvg's seconds a run of ours took, over the blocks that both have on one kind of GPU."""
    mine, theirs = ({b: (f["devices"][b], s) for f in found if f["column"] == column and f["arm"] == arm
                     for b, s in f["seconds"].items()} for arm in (ours, "fedavg"))  # fmt: skip
    both = sorted(b for b in mine.keys() & theirs.keys() if mine[b][0] == theirs[b][0])
    return estimate([mine[b][1] / theirs[b][1] for b in both])


def _compare_seconds(found: Sequence[Standing], ours: Arm) -> list[str]:
    """Say how long ours takes: FLOPs do not count what reads and writes memory alone."""
    each = {c["title"]: compare_seconds(found, c["id"], ours.id) for c in read_league()["column"]}
    told = [f"{times} on {title}" for title, times in each.items() if times is not None]
    shared = all(d.endswith("shared") for f in found if f["arm"] == ours.id for d in f["devices"].values())
    where = "on a shared GPU" if shared else "on the same kind of GPU"
    return [f"Seconds of a run of ours as multiples of FedAvg's, both {where}: {', '.join(told)}."] * bool(told)


def sort_comparisons(
    found: Sequence[Standing], column: str, ours: Arm, scale: str = "paper"
) -> dict[str, dict[Arm, Interval]]:
    """Return what ours is ahead of in a column, what it is behind, and what is undecided, over enough blocks.

    All tuned methods of others, whether the contrast was named beforehand or not.
    """
    others = {a.id: a for a in list_arms(scale) if not (a.ours or a.like)}
    kinds: dict[str, dict[Arm, Interval]] = {"ahead of": {}, "behind": {}, "undecided against": {}}
    for other, pair in compare_arms(found, column, ours.id, list(others)).items():
        if pair.count >= ENOUGH:
            kind = "undecided against" if not pair.excludes_zero else "ahead of" if pair.mean > 0 else "behind"
            kinds[kind][others[other]] = pair
    return kinds


def _write_contrasts(rows: Sequence[Row], found: Sequence[Standing], ours: Arm, scale: str) -> list[str]:
    """Say what the contrasts named beforehand are, each also corrected for the number of those that were run.

    If a further candidate has changed what an arm is compared with, the contrast is open until it is run again. The one
    that was made before is shown, and counted in the correction.
    """
    league, arms = read_league(), {a.id: a for a in list_arms(scale)}
    mean = {(f["column"], f["arm"]): f["mean"] for f in found}
    names = {(f["column"], f["arm"]): f["chosen"] for f in found if f["earlier"]}
    pairs: dict[tuple[str, str], Interval] = {}
    for c in (column["id"] for column in league["column"]):
        several = [f["arm"] for other in league["contrasts"] for f in found
                   if f["column"] == c and (f["arm"] == other or f["arm"].startswith(f"{other}/"))]  # fmt: skip
        pairs |= {(c, other): pair for other, pair in compare_arms(found, c, ours.id, several).items()}
    chances = {(c, other): p for c, other in pairs
               if (test := compare_pairs(mean[c, ours.id], mean[c, other])) and (p := test.p) is not None}  # fmt: skip
    corrected = dict(zip(chances, correct_by_holm([*chances.values()]), strict=True))

    def say(key: tuple[str, str]) -> str:
        chance = f", p {format_p(chances[key])}, corrected {format_p(corrected[key])}" if key in chances else ""
        return f" = {_format_signed(pairs[key])}{chance}: {_judge(pairs[key])}"

    told = []
    for column, other in dict.fromkeys((c, o.partition("/")[0]) for c, o in pairs):
        arm, start = arms[other], f"{find_column(column)['title']}: ours − ({arms[other].title} + EMA"
        chosen = arm.choose(rows)
        at_edge = chosen is not None and arm.is_at_edge(chosen, rows)
        if (column, other) in pairs:
            edge = f", but {arm.title} has a value at the edge of those tried"
            told.append(f"{start}){say((column, other))}{edge * (at_edge and pairs[column, other].count >= ENOUGH)}.")
        for key in (k for k in names if k in pairs and k[0] == column and k[1].startswith(f"{other}/")):
            now = f"{arm.name(chosen)}{', at the edge of those tried' * at_edge}" if chosen else "not known"
            told.append(f"{start}, {names[key]}){say(key)}. This is no longer the choice of {arm.title}: on "
                        f"held-out data it is now {now}, and the contrast is open until that is run.")  # fmt: skip
    if chances:
        planned = len(league["column"]) * len(league["contrasts"])
        left = sum(p * planned < 1 - LEVEL for p in chances.values())
        told.append(
            f"Corrected by Holm's method for the {len(chances)} contrasts above that have a p-value. For all "
            f"{planned} that are planned, Bonferroni's would leave {left or 'none'} of them decided. Both "
            "assume that differences between blocks have a normal distribution, which so few cannot show."
        )
    return told


def _list_untuned(found: Sequence[Standing], column: dict[str, Any], ours: Arm, scale: str) -> list[str]:
    """Compare ours with the arms that have the settings of another one."""
    untuned = {a.id: a.title for a in list_arms(scale) if a.like}
    pairs = compare_arms(found, column["id"], ours.id, list(untuned))
    if not pairs:
        return []
    each = ", ".join(f"{untuned[other]} {_format_signed_short(pair)}" for other, pair in pairs.items())
    return [f"{column['title']}, points of ours above arms that are not tuned, with the blocks in brackets (fewer than "
            f"{ENOUGH} decide nothing): {each}."]  # fmt: skip


def _write_parts(found: Sequence[Standing]) -> list[str]:
    """Say which parts of the whole are known to be needed."""
    told = []
    whole = next(f["title"] for f in found if f["arm"] == read_league()["factorial"]["of"]).partition(" ")[0]
    for column, (shown, unknown) in factorial.find_needed(found).items():
        adds = factorial.find_last_effects(found, column)
        each = ", ".join(f"{name} {_format_signed_short(effect)}" for name, effect in adds.items())
        if adds:
            told.append(f"{find_column(column)['title']}, points that each part of {whole} adds to all its others, "
                        f"with the blocks in brackets: {each}. Shown to be needed: {join_words(shown) or 'none'}; "
                        f"open: {join_words(unknown) or 'none'}.{_doubt_parts(whole, adds)}")  # fmt: skip
    return told


def _doubt_parts(whole: str, adds: dict[str, Interval]) -> str:
    """Say without which parts the others did better: the whole was chosen on held-out data, not by this."""
    worse = [f"without {name} ({-e.mean:.2f} points, {_count_blocks(e.count)})" for name, e in adds.items()
             if e.mean < 0]  # fmt: skip
    return f" So far, {whole} has more {join_words(worse)} and may be better that way." * bool(worse)


def _name_strong(rows: Sequence[Row], ours: Arm, scale: str) -> list[str]:
    """Name the arms without a block that do better on held-out data than every arm that ours was compared with."""
    told = []
    best = max(ours.list_scores(rows).values())
    for arm, score in find_strong(rows, scale).items():
        tried = len(arm.list_scores(rows))
        flops = compare_costs(arm.cell(arm.middle(False), None).config)["flops_x"]
        told.append(f"Not compared with ours yet, though it may be as good: {arm.title} + EMA, at {flops:.2f} times "
                    f"FedAvg's FLOPs, has {format_score(score)} % of held-out data with the best of the {tried} "
                    f"candidates that were run; ours has {format_score(best)} %, one run each.")  # fmt: skip
    return told


def _name_failed_blocks(found: Sequence[Standing]) -> list[str]:
    """Name the arms whose training broke down in a block: no comparison has that block."""
    each = [f"{f['title']} on {find_column(f['column'])['title']} ({len(f['failed'])} of "
            f"{_count_blocks(len(f['failed']) + len(f['mean']))})" for f in found if f["failed"]]  # fmt: skip
    return [f"Training broke down in blocks: {'; '.join(each)}. Means and differences leave these out, so they say too "
            "much for these arms."] * bool(each)  # fmt: skip


def _name_failures(rows: Sequence[Row], scale: str) -> list[str]:
    """Name the candidates whose training broke down."""
    failed = [f"{arm.title} ({arm.name(c)})" for arm in list_arms(scale) for c, s in arm.list_scores(rows).items()
              if s < 0]  # fmt: skip
    return [f"Training broke down, while tuning: {'; '.join(failed)}."] if failed else []


def write_progress(rows: Sequence[Row], scale: str = "paper") -> str:
    """Say how much of the first tier is tuned; its scores are in the table of tuning."""
    first = [a for a in list_arms(scale) if a.tier == 1]
    done, seed = sum(len(a.list_scores(rows)) for a in first), read_league()["tuning"]["seed"]
    blocks = sum(r.get("table") == NAME and r["seed"] != seed for r in rows)
    return (f"Tuning is not complete: {done} of {CANDIDATES * len(first)} runs of the {len(first)} arms are done. So "
            f"none of ours is chosen, no contrast was made, and nothing is claimed. Runs of blocks: {blocks}, shown "
            "once their arm is tuned.")  # fmt: skip


def _format_signed(pair: Interval) -> str:
    blocks = _count_blocks(pair.count)
    if pair.ends is None:
        return f"{pair.mean:+.2f} points, {blocks}, no interval"
    return f"{pair.mean:+.2f} points, interval {pair.ends[0]:+.2f} to {pair.ends[1]:+.2f}, {blocks}"


def _count_blocks(n: int) -> str:
    return f"{n} block{'s' if n > 1 else ''}"


def _format_signed_short(pair: Interval) -> str:
    return f"{pair.mean:+.2f}{'' if pair.half is None else f' ± {pair.half:.2f}'} ({pair.count})"


def _judge(pair: Interval, named: bool = True) -> str:
    """Return the verdict; what was not named beforehand can be ahead, but cannot win."""
    worth = read_league()["worth"]
    if pair.count < ENOUGH:
        return "too few blocks to decide"
    if not pair.excludes_zero:
        return "undecided"
    if pair.mean < 0:
        return "ours loses" if named else "ours is behind"
    if not named:
        return "ours is ahead"
    return "ours wins" if pair.mean >= worth else f"ours is ahead, by less than {worth:g} points"
