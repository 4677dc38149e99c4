"""The tables of the GPU part of docs/performance.md, from the file that `make bench-gpu` writes."""

from __future__ import annotations

from typing import Any

from benchmarks.growth import WORDS as AXES

BASE = "cnn fedavg tf32"
SECONDS = {  # seconds per round: the target, and the aim
    "cnn fedavg tf32": (0.12, 0.06),
    "cnn fedavg bf16": (0.12, 0.06),
    "cnn fedsol adaptive all tf32": (0.30, 0.15),
    "cnn fedsol adaptive all bf16": (0.30, 0.15),
    "resnet18-gn fedsmoo tf32": (0.9, 0.45),
    "resnet18-gn fedsmoo bf16": (0.9, 0.45),
}
FULL = (60, 25)
TIMES_FEDAVG = {"cnn fedsol head tf32": 1.5, "cnn fedlesam tf32": 1.1}
FLATNESS = 20  # seconds for five eigenvalues and the trace


def markdown(report: dict[str, Any]) -> str:
    """Return all tables of one run of `make bench-gpu`."""
    v, roofs, rows = report["versions"], report["roofs"], report["rows"]
    timed = {r["job"]: r for r in rows if "best" in r and "seconds" not in r}
    lines = [
        f"{v['hardware']}, Python {v['python']}, torch {v['torch']}; commit {(v['commit'] or 'unknown')[:10]}"
        f"{', ' + report['when'][:10] if 'when' in report else ''}. Data: "
        f"{report['data']}. Roofs measured in the same run: {roofs['fp32_TFLOPs']:.0f} TFLOP/s in fp32, "
        f"{roofs['tf32_TFLOPs']:.0f} in TF32, {roofs['bf16_TFLOPs']:.0f} in bf16, {roofs['copy_TBs']:.1f} TB/s. "
        "Targets and ratios refer to the best rounds. TFLOP/s count the operations of training, but the time includes "
        "evaluation; the roof is that of a matrix product in the precision in the job's name.",
        "",
        "| job | best s | median s | of plain | of FedAvg | TFLOP/s | of the roof | first s | GiB | targets |",
        "|---" * 10 + "|",
    ]
    for r in rows:
        if r["job"] in timed:
            lines += ["| " + " | ".join(line(r, timed, roofs)) + " |"]
    lines += ["", *(full(r) for r in rows if "seconds" in r)]
    if left_out := [f"{r['job']} ({r[why]})" for r in rows for why in ("skipped", "failed") if why in r]:
        lines += ["", "Left out: " + "; ".join(left_out) + "."]
    if report.get("growth"):
        lines += ["", *growth(report["growth"])]
    if report.get("flatness"):
        lines += ["", flatness(report["flatness"])]
    return "\n".join(lines)


def line(r: dict[str, Any], timed: dict[str, Any], roofs: dict[str, float]) -> list[str]:
    """Return the cells of one job's row."""
    best, name = r["best"], r["job"]
    base, plain = (timed[j]["best"] if j in timed else float("nan") for j in (BASE, "hand-written loop, plain"))
    rate = r["flops"] / best / 1e12
    roof = next((roofs[f"{p}_TFLOPs"] for p in ("fp32", "tf32", "bf16") if p in name), None)
    targets = ""
    if name in SECONDS:
        must, aim = SECONDS[name]
        targets = f"{must} {met(best, must)}, aim {aim} {met(best, aim)}"
    elif name in TIMES_FEDAVG:
        targets = f"{TIMES_FEDAVG[name]} of FedAvg {met(best / base, TIMES_FEDAVG[name])}"
    return [name, f"{best:.4f}", f"{r['median']:.4f}", f"{best / plain:.3f}",
            f"{best / base:.2f}", f"{rate:.1f}", "" if roof is None else f"{rate / roof:.0%}",
            f"{r['first_round']:.1f}", f"{r['peak_GiB']:.1f}" if r["peak_GiB"] else "", targets]  # fmt: skip


def full(r: dict[str, Any]) -> str:
    """Return a line on a full run."""
    must, aim = FULL
    return (f"{r['job'].capitalize()}, compile caches {r['caches']}: **{r['seconds']:.1f} s** (target {must}: "
            f"{met(r['seconds'], must)}; aim {aim}: {met(r['seconds'], aim)}), {r['first_round']:.0f} of them the "
            f"first round, {r['later_rounds']:.0f} the others; {r['with_start']:.0f} s with imports.")  # fmt: skip


def growth(axes: dict[str, Any]) -> list[str]:
    """Return one line per axis: milliseconds per round at each size."""
    base = axes["base"]
    lines = [f"Milliseconds per round (SCAFFOLD, no evaluation, {axes['lanes']} lanes; otherwise {base['clients']:,} "
             f"clients, {base['per_round']} per round, {base['steps']} local steps):", ""]  # fmt: skip
    for axis in ("per_round", "clients", "steps", "width"):
        each = sorted(axes.get(axis, {}).items(), key=lambda item: int(item[0]))
        lines.append(f"- {AXES[axis]}: " + ", ".join(f"{int(n):,}: {1e3 * r['seconds']:.1f}" for n, r in each))
    return lines


def flatness(report: dict[str, Any]) -> str:
    """Return a paragraph on the eigenvalues and the trace of the Hessian."""
    ours, other, trace = report["ours"], report["eigsh"], report["trace"]
    return (f"The Hessian of the CNN ({report['parameters'] / 1e6:.1f} M parameters) on {report['images']:,} CIFAR-10 "
            f"images ({report['data']}), {report['product']:.3f} s per product: five eigenvalues in "
            f"{ours['seconds']:.1f} s ({ours['products']} products; scipy's eigsh {other['seconds']:.1f} s, "
            f"{other['products']}), the trace by {trace['products']} probes in {trace['seconds']:.1f} s, together with "
            f"the first product {report['seconds']:.1f} s (target {FLATNESS} s: "
            f"{met(report['seconds'], FLATNESS)}).")  # fmt: skip


def met(value: float, target: float) -> str:
    """Return whether a target is met, as a word."""
    return "met" if value <= target else "missed"
