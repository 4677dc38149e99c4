"""Write the README's table of evidence from the files with the figures: python -m tools.evidence_table"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.references.test_library import ENTRIES

from steppe.algorithms import CATALOGUE
from steppe.report.seeds import join_words
from steppe.reproduce import factorial, league, league_outcome, league_runs
from steppe.reproduce.judged_table import judge_table
from steppe.reproduce.recipes import list_tables, load_table
from steppe.reproduce.rows import Row, read_folders
from steppe.reproduce.verdicts import INSIDE, OUTSIDE

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- evidence: begin -->", "<!-- evidence: end -->"
CHOSEN = "chosen after results were known"  # said by a table whose recipe was not fixed before its runs
ABLATIONS = "fedsol_ablation"  # one entry of the catalogue, counted apart


def describe_numbers() -> list[str]:
    compared, all_of_them = {name for name, _ in ENTRIES} - {ABLATIONS}, set(CATALOGUE) - {ABLATIONS}
    claim = f"{len(compared)} of the {len(all_of_them)} algorithms equal plain programs written from the formulas"
    return [
        claim,
        "every round's global and local models to 1e-10 in float64; test vectors, states included, to 1e-8",
        "`tests/references`",
    ]


def describe_speed() -> list[str]:
    measured = json.loads((ROOT / "benchmarks/results/gpu-h200.json").read_text())
    best = {row["job"]: row["best"] for row in measured["rows"] if isinstance(row.get("best"), float)}
    ours = f"{best['cnn fedavg tf32']:.3f} s in TF32, {best['cnn fedavg fp32']:.3f} s in float32"
    others = f"a plain PyTorch loop {best['hand-written loop, plain']:.2f} s in float32"
    others += f", one tuned by hand {best['hand-written loop, tuned']:.2f} s in TF32"
    if "pfl-research" in best:
        others += f", pfl-research {best['pfl-research']:.2f} s in TF32"
    at = measured["versions"]
    return [f"a round of FedAvg on CIFAR-10, one {at['hardware']}, commit {at['commit'][:10]}",
            f"{ours}; {others}", "[speed](docs/performance.md)"]  # fmt: skip


def describe_reproductions(rows: list[Row]) -> list[str]:
    """Count the judged cells of each table of accuracies; say where a setting was chosen with the results known."""
    counts, inside, judged, chosen = [], 0, 0, []
    for table in map(load_table, list_tables()):
        verdicts = [f.verdict for f in judge_table(table, rows) if not f.cell.of]
        here = verdicts.count(INSIDE), verdicts.count(INSIDE) + verdicts.count(OUTSIDE)
        if table.unit == "%" and here[1]:
            name = table.title.partition(":")[0]
            counts.append(f"{name} {here[0]} of {here[1]}")
            chosen += [name] if CHOSEN in table.beware else []
            inside, judged = inside + here[0], judged + here[1]
    told = f"{inside} of {judged} judged cells are inside the band: {', '.join(counts)}"
    told += f". In {join_words(chosen)}, the paper's own method has a setting that was {CHOSEN}" * bool(chosen)
    return ["published tables, run again", told, "[every cell](docs/reproductions.md)"]


def describe_league(rows: list[Row]) -> list[list[str]]:
    """Describe ours: every comparison over enough blocks, won or not, a row per federation; and what is open."""
    ours, found = league.choose_ours(rows), league_runs.find_standings(rows)
    assert ours is not None
    arms = {a.id: a for a in league.list_arms()}
    told = []
    for column in league.read_league()["column"]:
        costs = {f["arm"]: league_outcome.format_costs(f) for f in found if f["column"] == column["id"]}
        groups = []
        for kind, several in league_outcome.sort_comparisons(found, column["id"], ours).items():
            extra = {arm: f" with {costs[arm.id]}" * (kind != "ahead of" and bool(costs[arm.id])) for arm in several}
            each = [f"{arm.title} {pair.mean:+.1f} ± {pair.half:.1f} ({pair.count}){extra[arm]}"
                    for arm, pair in several.items()]  # fmt: skip
            groups += [f"{kind} {', '.join(each)}"] if each else []
        first = (
            f"our composition, {ours.title}, and methods tuned alike, all with a running mean; points, ± half of the "
        )
        first += "95 % interval (draws of partition, schedule and seed): "
        claim = ("the same on " if told else first) + column["title"]
        measured = "; ".join(groups)
        told += [[claim, measured, "[league](docs/league.md)"]] if groups else []
    mine = [a for a in arms.values() if a.ours]
    times = league_outcome.compare_seconds(found, "lda-0.1", ours.id)
    assert times is not None
    name = ours.title.partition(" ")[0]
    limits = (
        f"{name} has FedAvg's bytes and FLOPs, but {times.mean:.1f} times its GPU seconds and a vector kept per "
        f"client; it is the best of {len(mine)} of ours on held-out data. "
        f"Open: {'; '.join(_list_open(rows, found, name))}"
    )
    return [*told, ["limits of these two rows", limits, "[league](docs/league.md), [survey](docs/survey.md)"]]


def _list_open(rows: list[Row], found: list[dict[str, Any]], name: str) -> list[str]:
    """List the comparisons and parts of ours about which the rows decide nothing yet."""
    arms = {a.id: a for a in league.list_arms()}
    contrasts = [arms[c] for c in league.read_league()["contrasts"]]
    changed = {f["arm"].partition("/")[0] for f in found if f["earlier"]}
    at_edge = {a.id for a in contrasts if (chosen := a.choose(rows)) and a.is_at_edge(chosen, rows)}
    reasons = {
        "whose setting has changed since it was run": changed,
        "whose best value may be beyond its grid": at_edge,
    }
    told = [f"{arms[name].title}, {' and '.join(why for why, names in reasons.items() if name in names)}"
            for name in sorted(changed | at_edge)]  # fmt: skip
    needed = factorial.find_needed(found)
    told += [f"whether {name} needs its {join_words(unknown)}" for _, unknown in needed.values() if unknown]
    for column in needed:
        effects = factorial.find_last_effects(found, column)
        told += [f"without {part} it has {-e.mean:.1f} points more so far ({e.count})"
                 for part, e in effects.items() if e.mean < 0]  # fmt: skip
    return told + [f"{arm.title}, not compared yet" for arm in league.find_strong(rows)]


def describe_kills() -> list[str]:
    kills = json.loads((ROOT / "tools/results/reliability.json").read_text())["kills"]
    measured = f"{kills['survived']} of {kills['tried']} equal an undisturbed run to the bit"
    return ["`kill -9` at a random moment, then resume", measured, "[reliability](docs/reliability.md)"]


def make_table() -> str:
    rows = read_folders([ROOT / "results"])
    lines = [["claim", "measured", "where"], ["---"] * 3, describe_numbers(), describe_speed(),
             describe_reproductions(rows), *describe_league(rows), describe_kills()]  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def renew_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{make_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(renew_table(page.read_text("utf-8")), "utf-8")
    print(make_table())
