"""The performance page's tables come from a result file; those that are committed must be readable by it."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from benchmarks import tables

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("cpu*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.name)
def test_every_committed_result_becomes_a_table(path: Path) -> None:
    report = json.loads(path.read_text())
    text = tables.markdown(report)
    for algorithm, results in report["rounds"].items():
        rows = [line for line in text.splitlines() if line.startswith("| steppe") or "hand-written" in line]
        assert len([r for r in rows if r.startswith("|")]) >= len(results), algorithm
        mine, plain = (median(results[name].get("starts") or [results[name]["best"]]) for name in ("workers", "plain"))
        assert f"**{mine / plain:.2f}** of the plain loop's time" in text
    assert report["about"]["commit"][:10] in text


def test_targets_are_judged_by_the_figures() -> None:
    def told(best: float, peak: float) -> str:
        one = {"median": best, "times": [best], "cpu_seconds": 1.0, "of_roof": 0.5, "accuracy": 0.5}
        plain = {**one, "best": 1.0, "ratio_best": 1.0, "ratio_median": 1.0, "peak_mb": {"main": 100.0}}
        mine = {**one, "best": best, "ratio_best": best, "ratio_median": best, "peak_mb": {"main": 1.0, "child": peak}}
        return tables.competition("fedavg", {"plain": plain, "workers": mine})[-1]

    assert "target 0.75: met; aim 0.65: missed) and 1.20 of its memory (target 1.5: met)" in told(0.7, 120.0)
    assert "target 0.75: missed; aim 0.65: missed) and 1.60 of its memory (target 1.5: missed)" in told(0.76, 160.0)


def test_only_what_is_between_the_marks_is_renewed() -> None:
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"
    assert tables.written(page, "new") == f"before\n{tables.BEGIN}\nnew\n{tables.END}\nafter\n"
    assert tables.BEGIN in tables.PAGE.read_text()
