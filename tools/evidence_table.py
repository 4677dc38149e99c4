"""Write the README's table of evidence from the files with the figures: python -m tools.evidence_table"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.references.test_library import ENTRIES

from steppe.algorithms import CATALOGUE
from steppe.reproduce import survey
from steppe.reproduce.publish import judge_table
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
    return [claim, "to 1e-10 in float64, states included", "`tests/references`"]


def describe_speed() -> list[str]:
    measured = json.loads((ROOT / "benchmarks/results/gpu-h200.json").read_text())
    best = {row["job"]: row["best"] for row in measured["rows"] if isinstance(row.get("best"), float)}
    ours, plain = best["cnn fedavg tf32"], best["hand-written loop, plain"]
    others = f"a plain PyTorch loop {plain:.2f} s"
    if "pfl-research" in best:
        others += f", pfl-research {best['pfl-research']:.2f} s"
    return [f"a round of FedAvg on CIFAR-10, one {measured['versions']['hardware']}", f"{ours:.3f} s; {others}",
            "[speed](docs/performance.md)"]  # fmt: skip


def describe_reproductions(rows: list[Row]) -> list[str]:
    counts = []
    for name, title in JUDGED.items():
        verdicts = [f.verdict for f in judge_table(load_table(name), rows) if not f.cell.of]
        inside, judged = verdicts.count(INSIDE), verdicts.count(INSIDE) + verdicts.count(OUTSIDE)
        counts.append(f"{title}: {inside} of {judged} judged cells are inside the band")
    return ["published tables, run again", "; ".join(counts), "[every cell](docs/reproductions.md)"]


def describe_survey(rows: list[Row]) -> list[str]:
    """Compare the best composition with the best published method and FedAvg, where one seed of each was run."""
    found = [s for s in survey.rank_entrants(rows) if s["accuracy"] is not None and s["column"] == "lda-0.1"]
    ours = max((s for s in found if s["composition"]), key=lambda s: s["accuracy"])
    best = max((s for s in found if not s["composition"]), key=lambda s: s["accuracy"])
    plain = next(s for s in found if s["title"] == "FedAvg")

    def tell(one: dict[str, Any]) -> str:
        return f"{one['title']} {one['accuracy']:.1f} % at {one['flops_x']:.2f}× FedAvg's FLOPs"

    seeds = max(len(s["seeds"]) for s in found)
    return [f"CIFAR-10, LDA(0.1): {len(found)} methods and compositions, {seeds} seed{'s' * (seeds > 1)}, local "
            "momentum 0.9 for all",
            f"{tell(ours)}; best published method: {tell(best)}; FedAvg {plain['accuracy']:.1f} % (more without "
            "momentum: the league judges again, by blocks)",
            "[survey](docs/survey.md), [league](docs/league.md)"]  # fmt: skip


def describe_kills() -> list[str]:
    kills = json.loads((ROOT / "tools/results/reliability.json").read_text())["kills"]
    measured = f"{kills['survived']} of {kills['tried']} equal an undisturbed run to the bit"
    return ["`kill -9` at a random moment, then resume", measured, "[reliability](docs/reliability.md)"]


def make_table() -> str:
    rows = read_folders([ROOT / "results"])
    lines = [["claim", "measured", "where"], ["---"] * 3, describe_numbers(), describe_speed(),
             describe_reproductions(rows), describe_survey(rows), describe_kills()]  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def renew_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{make_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(renew_table(page.read_text("utf-8")), "utf-8")
    print(make_table())
