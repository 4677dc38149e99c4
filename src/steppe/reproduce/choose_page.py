"""Write the page on which method to use: the answers of `steppe advise` to typical questions, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steppe.report.markdown_latex import make_markdown_environment
from steppe.report.table import Table
from steppe.reproduce.advice import Wish, advise, is_dominated
from steppe.reproduce.intervals import CHANCE
from steppe.reproduce.method_results import Evidence, Setting, collect_evidence, list_tuned, list_uncompared
from steppe.reproduce.rows import Row

QUESTIONS: dict[str, Wish] = {
    "At any cost": Wish(),
    "Clients keep nothing between rounds": Wish(stateless=True),
    "FedAvg's bytes and FLOPs": Wish(max_bytes=1.0, max_flops=1.0),
    "FedAvg's bytes and FLOPs, and clients keep nothing": Wish(stateless=True, max_bytes=1.0, max_flops=1.0),
    "FedAvg's bytes, 1.4 times its FLOPs": Wish(max_bytes=1.0, max_flops=1.4),
    "Two classes per client: sharding(2)": Wish(partition="sharding(2)"),
    "Very unequal clients: LDA(0.05)": Wish(partition="lda(0.05)"),
    "Less unequal clients: LDA(0.5)": Wish(partition="lda(0.5)"),
    "A hundred classes: CIFAR-100": Wish(data="cifar100"),
    "20 of 100 clients per round": Wish(clients=100, per_round=20),
    "10 of 1,000 clients per round, nothing kept, 1.4 times FedAvg's FLOPs":
        Wish(clients=1000, per_round=10, stateless=True, max_flops=1.4),
}  # fmt: skip


def make_answers(
    evidence: Sequence[Evidence], uncompared: Sequence[Evidence], tuned: Sequence[Evidence] = ()
) -> tuple[Table, dict[str, list[str]]]:
    """Return one row per question; and what the evidence does not cover, with the questions that it concerns."""
    rows: list[list[str]] = []
    gaps: dict[str, list[str]] = {}
    for question, wish in QUESTIONS.items():
        told = advise(wish, evidence, uncompared, tuned)
        for gap in told["gaps"]:
            gaps.setdefault(gap, []).append(question)
        if (best := told["advice"]) is None:
            rows.append([question, "no evidence", *[""] * 6])
            continue
        level = ", ".join(f"{e['method']} ({format_distance(e)})" for e in told["level"]) or "nothing"
        costs = f"{best['bytes']:.2f}×, {best['flops']:.2f}×, {best['kept']:.2g}"
        rows.append([question, best["method"], _format(best["accuracy"], best["half_width"], best["seeds"]),
                     *(format_gain(best, key) for key in ("over_fedavg", "over_fedavg_ema")), costs,
                     level, f"{told['source']}: {told['setting']}"])  # fmt: skip
    head = ["question", "method", "accuracy, %", "over FedAvg, points", "over FedAvg + EMA",
            "bytes, FLOPs, vectors kept", "undecided against it", "evidence"]  # fmt: skip
    return Table("Answers", head, rows), gaps


def format_distance(told: dict[str, Any]) -> str:
    """Return how far a method is from the answer, in points."""
    half = told["below_half_width"]
    width = f" ± {half:.2f}" if half is not None else ""
    return f"{abs(told['below']):.2f}{width} {'below' if told['below'] >= 0 else 'above'}"


def format_gain(told: dict[str, Any], key: str) -> str:
    """Return a gain with its own number of runs: those that both methods have."""
    return "" if told[key] is None else _format(told[key], told[f"{key}_half_width"], told[f"{key}_seeds"])


def _format(value: float, half: float | None, count: int) -> str:
    return f"{value:.2f}{f' ± {half:.2f}' if half is not None else ''} ({count})"


def list_commands(evidence: Sequence[Evidence]) -> dict[str, str]:
    """Return the commands of the answers, each with the method's name and where it was the answer."""
    found: dict[str, str] = {}
    for wish in QUESTIONS.values():
        told = advise(wish, evidence)
        if (best := told["advice"]) is not None:
            found.setdefault(best["run"], f"{best['method']} ({told['source']})")
    return found


def make_settings(evidence: Sequence[Evidence]) -> Table:
    """Return every setting with evidence: number of methods, runs of each, methods that another one dominates."""
    places: dict[Setting, list[Evidence]] = {}
    for e in evidence:
        places.setdefault(e.setting, []).append(e)
    rows = []
    for setting, found in places.items():
        counts = [e.accuracy.count for e in found]
        seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        bad = ", ".join(e.title for e in found if is_dominated(e, found)) or "–"
        rows.append([str(setting), setting.source, str(len(found)), seeds, bad])
    return Table("Evidence", ["setting", "source", "methods", "runs of each", "less accurate, and not cheaper"], rows)


def render_markdown(rows: Sequence[Row]) -> str:
    evidence = collect_evidence(rows)
    answers, gaps = make_answers(evidence, list_uncompared(rows), list_tuned(rows))
    return make_markdown_environment("steppe.reproduce").get_template("choose.md.jinja").render(
        answers=answers, gaps=gaps, commands=list_commands(evidence), settings=make_settings(evidence),
        chance=f"{CHANCE:g}")  # fmt: skip


def render_files(rows: Sequence[Row]) -> dict[str, str]:
    return {"how-to/choose.md": render_markdown(rows)}
