"""Write the README's table of evidence from the files with the figures: python -m tools.evidence_table"""

from __future__ import annotations

import json
from pathlib import Path

from tests.references.test_library import ENTRIES

from steppe.algorithms import CATALOGUE
from steppe.reproduce import league, league_page
from steppe.reproduce.judged_table import judge_table
from steppe.reproduce.recipes import load_table
from steppe.reproduce.rows import Row, read_folders
from steppe.reproduce.verdicts import INSIDE, OUTSIDE

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- evidence: begin -->", "<!-- evidence: end -->"
JUDGED = {"fedsol-table1": "FedSoL's Table 1", "man-accuracy": "MAN's table"}
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
    ours, plain = best["cnn fedavg tf32"], best["hand-written loop, plain"]
    others = f"a plain PyTorch loop {plain:.2f} s"
    if "pfl-research" in best:
        others += f", pfl-research {best['pfl-research']:.2f} s"
    at = measured["versions"]
    return [f"a round of FedAvg on CIFAR-10, one {at['hardware']}, commit {at['commit'][:10]}",
            f"{ours:.3f} s; {others}", "[speed](docs/performance.md)"]  # fmt: skip


def describe_reproductions(rows: list[Row]) -> list[str]:
    counts = []
    for name, title in JUDGED.items():
        verdicts = [f.verdict for f in judge_table(load_table(name), rows) if not f.cell.of]
        inside, judged = verdicts.count(INSIDE), verdicts.count(INSIDE) + verdicts.count(OUTSIDE)
        counts.append(f"{title}: {inside} of {judged} judged cells are inside the band")
    return ["published tables, run again", "; ".join(counts), "[every cell](docs/reproductions.md)"]


def describe_league(rows: list[Row]) -> list[str]:
    """Describe the named contrasts of the league, wins and losses, over enough blocks; and what is open."""
    ours, found = league.choose_ours(rows), league.find_standings(rows)
    assert ours is not None
    arms = {a.id: a for a in league.list_arms()}
    told = []
    for column in league.read_league()["column"]:
        pairs = league_page.compare_arms(found, column["id"], ours.id, league.read_league()["contrasts"])
        each = [f"{pair.mean:+.1f} ± {pair.half:.1f} points against {arms[other].title} ({pair.count})"
                for other, pair in pairs.items() if pair.count >= league_page.ENOUGH]  # fmt: skip
        told += [f"{column['title']}: {', '.join(each)}"] if each else []
    at_edge = [arms[c].title for c in league.read_league()["contrasts"]
               if (chosen := arms[c].choose(rows)) and arms[c].is_at_edge(chosen, rows)]  # fmt: skip
    open_ = [f"{', '.join(at_edge)} may do better, with a value beyond its grid"] if at_edge else []
    open_ += (
        [f"{', '.join(strong)} is not compared yet"] if (strong := [a.title for a in league.find_strong(rows)]) else []
    )
    return [f"our composition, {ours.title}, at FedAvg's bytes and FLOPs; all tuned alike, with a running mean, and "
            "paired over draws of partition, schedule and seed",
            "; ".join(told) + f". Open: {'; '.join(open_)}" * bool(open_),
            "[league](docs/league.md), [survey](docs/survey.md)"]  # fmt: skip


def describe_kills() -> list[str]:
    kills = json.loads((ROOT / "tools/results/reliability.json").read_text())["kills"]
    measured = f"{kills['survived']} of {kills['tried']} equal an undisturbed run to the bit"
    return ["`kill -9` at a random moment, then resume", measured, "[reliability](docs/reliability.md)"]


def make_table() -> str:
    rows = read_folders([ROOT / "results"])
    lines = [["claim", "measured", "where"], ["---"] * 3, describe_numbers(), describe_speed(),
             describe_reproductions(rows), describe_league(rows), describe_kills()]  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def renew_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{make_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(renew_table(page.read_text("utf-8")), "utf-8")
    print(make_table())
