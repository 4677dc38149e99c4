"""The tables of docs/performance.md and docs/how-to/scale.md: `python -m benchmarks.tables FILE [--write]`.

No figure is typed by hand: `--write` replaces the text between the two marks of that part in the document. Outside the
marks docs/performance.md has no table and no measured time, memory or rate (tests/benchmarks/test_tables.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import cohorts, gpu_switches, gpu_tables, gpu_transformers, scale_tables
from benchmarks.contenders import WORDS
from benchmarks.framework import PROGRAMS, TARGET
from benchmarks.gpu_tables import met
from benchmarks.growth import WORDS as AXES
from benchmarks.race import TARGETS

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs/performance.md"
PAGES = {"scale.json": Path(__file__).parents[1] / "docs/how-to/scale.md"}  # of the others, PAGE
PARTS = ("cpu.json", "gpu-h200.json", "gpu-cohorts.json", "gpu-transformers.json", "gpu-switches.json", "scale.json")
BEGIN = {part: f"<!-- begin: python -m benchmarks.tables {part} -->" for part in PARTS}
END = "<!-- end -->"


def tables(report: dict[str, Any]) -> tuple[str, str]:
    """Return the mark of the part to which a report belongs, and its tables."""
    if "roofs" in report:
        return BEGIN["gpu-h200.json"], gpu_tables.markdown(report)
    if "per_round" in report or "million" in report:
        return BEGIN["scale.json"], scale_tables.markdown(report)
    if report.get("kind") == "transformers":
        roofs = json.loads((RESULTS / "gpu-h200.json").read_text())["roofs"]
        return BEGIN["gpu-transformers.json"], gpu_transformers.markdown(report, roofs)
    if report.get("kind") == "switches":
        return BEGIN["gpu-switches.json"], gpu_switches.markdown(report)
    if "rows" in report:
        return BEGIN["gpu-cohorts.json"], cohorts.markdown(report)
    return BEGIN["cpu.json"], markdown(report)


def markdown(report: dict[str, Any]) -> str:
    """Return all tables of one run of `make bench`, on a CPU."""
    about, roof = report["about"], report["roof"]
    loads = [f"{v[0]:.1f}" for k in ("before", "after") if (v := about.get(f"load_average_{k}"))]
    lines = [
        f"{about['cpu']}, {about['cores']} cores ({about['instructions']}), {about['system']}, "
        f"Python {about['python']}, torch {about['torch']}; commit {(about['commit'] or 'unknown')[:10]}"
        f"{' with changes' if about['changed_since_commit'] else ''}, {about['when'][:10]}. Data: {about['data']}. "
        f"Load average before and after: {', '.join(loads) or 'unknown'}. Roof of one core, measured in the same run: "
        f"{roof['convolution']:.0f} GFLOP/s in a convolution, {roof['matrix product']:.0f} in a matrix product.",
    ]
    for algorithm, results in report["rounds"].items():
        lines += ["", *competition(algorithm, results)]
    if left_out := report.get("left_out"):
        lines += ["", "Left out: " + "; ".join(f"{WORDS[name]} ({why})" for name, why in left_out.items()) + "."]
    if "framework_cpu_seconds" in report:
        each = ", ".join(f"{PROGRAMS[n]} {s:.3f}" for n, s in report["framework_cpu_seconds"].items())
        lines += ["", f"CPU-seconds per round with zero local epochs (target {TARGET}): {each}."]
    if "profile" in report:
        lines += ["", *profile(report["profile"])]
    if "precision" in report:
        lines += ["", *precision(report["precision"])]
    if "growth" in report:
        lines += ["", *growth(report["growth"])]
    if "flatness" in report:
        lines += ["", flatness(report["flatness"])]
    if seconds := report.get("stage_seconds"):
        each = ", ".join(f"{stage} {s / 60:.1f}" for stage, s in seconds.items())
        lines += ["", f"Minutes per measurement: {each}; together {sum(seconds.values()) / 60:.0f}."]
    return "\n".join(lines)


def competition(algorithm: str, results: dict[str, Any]) -> list[str]:
    """Return the table of all contenders on one algorithm, and the comparison with the targets."""
    plain, mine, target = results["plain"], results["workers"], TARGETS[algorithm]
    rows = [f"| {algorithm}, {len(plain['times'])} timed rounds each | best s | median s | of plain (best) | (median) "
            "| CPU-s | of the roof | peak MB of one process | accuracy |", "|---" * 9 + "|"]  # fmt: skip
    for name, r in results.items():
        cells = (f"{r['best']:.2f}", f"{r['median']:.2f}", f"{r['ratio_best']:.2f}", f"{r['ratio_median']:.2f}",
                 f"{r['cpu_seconds']:.2f}", f"{r['of_roof']:.0%}", f"{max(r['peak_mb'].values()):.0f}",
                 f"{r['accuracy']:.3f}")  # fmt: skip
        rows.append(f"| {WORDS[name]} | " + " | ".join(cells) + " |")
    memory = max(mine["peak_mb"].values()) / max(plain["peak_mb"].values())
    ratio, starts = mine.get("ratio_starts", mine["ratio_best"]), ""
    if "starts" in mine:
        each = [", ".join(f"{s:.2f}" for s in r["starts"]) for r in (plain, mine)]
        starts = f" Best rounds of {len(mine['starts'])} starts: plain {each[0]}; ours {each[1]}; compared by medians."
    return [*rows, "", f"One process per core: **{ratio:.2f}** of the plain loop's time (target {target}: "
            f"{met(ratio, target)}; aim 0.65: {met(ratio, 0.65)}) and {memory:.2f} of its memory (target 1.5: "
            f"{met(memory, 1.5)}).{starts}"]  # fmt: skip


def profile(found: dict[str, Any], shown: int = 14) -> list[str]:
    """Return the times of one local step, and its most expensive kernels."""
    step, kernels = found["step"], found["kernels"]
    rows = ["One local step of FedAvg, one thread, CPU-milliseconds: "
            + ", ".join(f"{WORDS.get(name, name)} {ms:.1f}" for name, ms in step.items()) + ". The kernels of ours:",
            "", "| kernel and shapes | ms per step, wall time |", "|---|---|"]  # fmt: skip
    rows += [f"| {name} | {ms:.2f} |" for name, ms in list(kernels.items())[:shown]]
    rest = sum(list(kernels.values())[shown:])
    return [*rows, f"| all others | {rest:.2f} |", f"| together | {sum(kernels.values()):.2f} |"]


def precision(runs: dict[str, Any]) -> list[str]:
    """Return the table of test accuracies per precision."""
    rounds = len(next(iter(runs.values()))["accuracy"])
    numbers = " | ".join(str(i + 1) for i in range(rounds))
    rows = [f"| FedAvg, test accuracy after round | {numbers} | s per round |", "|---" * (rounds + 2) + "|"]
    for name, run in runs.items():
        cells = [*(f"{a:.4f}" for a in run["accuracy"]), f"{min(run['seconds']):.2f}"]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def growth(axes: dict[str, Any]) -> list[str]:
    """Return one line per axis: milliseconds per round at each size."""
    lines = ["Milliseconds per round (SCAFFOLD on a small perceptron, one thread):", ""]
    for axis, sizes in axes.items():
        cells = []
        for n, r in sizes.items():
            size = f"{r['parameters'] / 1e6:.2g} M" if axis == "hidden" else f"{int(n):,}"
            cells.append(f"{size}: {1e3 * r['seconds']:.1f}")
        lines.append(f"- {AXES[axis]}: " + ", ".join(cells))
    return lines


def flatness(report: dict[str, Any]) -> str:
    """Return a paragraph on the eigenvalues and the trace of the Hessian."""
    ours, other, trace = report["ours"], report["eigsh"], report["trace"]
    share = ours["seconds"] / other["seconds"]
    return (f"Top five eigenvalues of the FedAvg-CNN's Hessian on {report['images']:,} CIFAR-10 images "
            f"({report['data']}), {report['product']:.1f} s per product: ours {ours['seconds']:.0f} s with "
            f"{ours['products']} products, "
            f"scipy's eigsh {other['seconds']:.0f} s with {other['products']}: **{share:.2f}** of its time (target 1: "
            f"{met(share, 1)}). The trace from {trace['products']} probes takes {trace['seconds']:.0f} s more "
            f"({trace['value']:.3g} ± {trace['error']:.2g}).")  # fmt: skip


def written(page: str, begin: str, tables: str) -> str:
    """Return the page with new tables between a pair of marks."""
    before, rest = page.split(begin)
    return before + begin + "\n" + tables + "\n" + END + rest.split(END, 1)[1]


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    options.add_argument("file", type=Path, help="a JSON file of benchmarks.cpu or benchmarks.gpu")
    options.add_argument("--write", action="store_true", help="write the tables into their page")
    chosen = options.parse_args()
    begin, text = tables(json.loads(chosen.file.read_text()))
    if chosen.write:
        page = next((PAGES[part] for part in PAGES if BEGIN[part] == begin), PAGE)
        page.write_text(written(page.read_text(), begin, text))
    else:
        print(text)


if __name__ == "__main__":
    main()
