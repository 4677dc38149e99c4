"""The performance page's tables come from a result file; those that are committed must be readable by it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from benchmarks import gpu_tables, gpu_transformers, tables

FOLDER = Path(__file__).parents[2] / "benchmarks/results"
RESULTS = sorted(FOLDER.glob("cpu*.json"))


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


def test_gpu_targets_are_judged_by_the_figures() -> None:
    def told(name: str, best: float) -> str:
        row = {"job": name, "best": best, "median": best, "flops": 1e12, "first_round": 1.0, "peak_GiB": None}
        timed = {"cnn fedavg tf32": {"best": 0.1}, "hand-written loop, plain": {"best": 1.0}}
        return gpu_tables.line(row, timed, {"tf32_TFLOPs": 400.0})[-1]

    assert told("cnn fedavg tf32", 0.1) == "0.12 met, aim 0.06 missed"
    assert told("cnn fedavg tf32", 0.13) == "0.12 missed, aim 0.06 missed"
    assert told("cnn fedlesam tf32", 0.109) == "1.1 of FedAvg met"
    assert told("cnn fedlesam tf32", 0.111) == "1.1 of FedAvg missed"


def test_a_gpu_report_tells_what_is_missing() -> None:
    report = json.loads((FOLDER / "gpu-h200.json").read_text())
    report["rows"] = [{"job": "cnn fedsam tf32", "failed": "out of memory"}, report["rows"][3]]
    report |= {"growth": {}, "flatness": {}}
    text = gpu_tables.markdown(report)
    assert "Left out: cnn fedsam tf32 (out of memory)." in text
    assert "| nan |" in text  # no plain loop to compare with


@pytest.mark.parametrize("name", tables.BEGIN)
def test_the_page_has_what_the_committed_results_say(name: str) -> None:
    page = tables.PAGES.get(name, tables.PAGE).read_text()
    begin, text = tables.BEGIN[name], "Not measured yet."
    if (FOLDER / name).exists():
        begin, text = tables.tables(json.loads((FOLDER / name).read_text()))
    assert begin == tables.BEGIN[name]
    assert tables.written(page, begin, text) == page


UNITS = r"(?:ms|µs|s|seconds?|minutes?|CPU-\w+|[TG]FLOP/s|[TG]FLOP|TB/s|[GM]i?B|GB)"
SETTINGS = {"120 s", "128 MiB"}  # of programs: a limit, and the size of a piece


def test_no_figure_of_the_page_is_typed_by_hand() -> None:
    """Outside the marks there is no table, and nothing that was measured in seconds, bytes or operations per second."""
    page = tables.PAGE.read_text()
    prose = re.sub(r"<!-- begin: .*?<!-- end -->", "", page, flags=re.DOTALL)
    assert page.count("<!-- begin: ") == len(tables.PARTS) - len(tables.PAGES)
    assert [line for line in prose.splitlines() if line.startswith("|")] == []
    assert {m.replace("\n", " ") for m in re.findall(rf"\d[\d,.]*\s{UNITS}\b", prose)} <= SETTINGS


def test_the_least_time_of_a_transformer_by_hand() -> None:
    """6 · 3,211,264 · 40,960 · 10 operations at 400 TFLOP/s: 19.73 ms; 310 · 41.94 MB · 10 at 4 TB/s: 32.51 ms."""
    found = gpu_transformers.estimate_bound({"tf32_TFLOPs": 400.0, "bf16_TFLOPs": 800.0, "copy_TBs": 4.0})
    cells = [line.strip("| ").split(" | ")[1:] for line in found[4:]]
    # Attention: 3.5 · 4 · 128 · 40,960 · 256 · 4 / 2 · 10 = 0.376 T; update: 9 · 4 · 33,236,480 · 10 bytes = 11.97 GB.
    assert cells == [["19.7", "9.9"], ["0.9", "0.5"], ["32.5", "16.3"], ["3.0", "3.0"], ["56.2", "29.6"]]


def test_only_what_is_between_the_marks_is_renewed() -> None:
    one, other, *_ = tables.BEGIN.values()
    page = f"before\n{one}\nold\n{tables.END}\nbetween\n{other}\nkept\n{tables.END}\nafter\n"
    assert tables.written(page, one, "new") == page.replace("old", "new")
    assert tables.written(page, other, "new") == page.replace("kept", "new")
