"""Write the page on which method to use: the answers of `steppe advise` to typical questions, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steppe.report.markdown_latex import escape_markdown as md
from steppe.report.markdown_latex import render_markdown_table
from steppe.report.report_tables import Table
from steppe.reproduce.advice import Wish, advise, is_dominated
from steppe.reproduce.method_results import Evidence, Setting, collect_evidence, list_uncompared
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
INTRODUCTION = """# Which method should I use?

Every answer comes from the committed rows of [the league](../league.md), [the survey](../survey.md) and the
[reproductions](../reproductions.md): the most accurate method within the limits, in the nearest setting in which
methods were compared. For your own federation (`--json` prints it for programs):

    steppe advise --clients 1000 --per-round 10 --stateless --max-flops 1.4

An accuracy is the mean of the last ten rounds on the test set, ± half of its 95 % interval (Student's t) where there
are several seeds, with their number in brackets. Gains are given in the same way, paired by seed: over FedAvg, and over
FedAvg whose running mean is evaluated, which costs nothing and is the fairer comparison for every method that has one.
**(1) means one seed and one draw of the partition: a difference of a point or two may be chance.** Bytes and FLOPs are
multiples of FedAvg's. A method is level with the answer if the rows do not distinguish them: the interval of the paired
difference contains 0, or one or two runs are less than two points below.

In a name, `+ MAN` ([`man`](../methods/parts/man.md)) and `+ EMA` ([`ema`](../methods/parts/ema.md)) are parts
that are added to a method, and FedSoL (L2) is [FedSoL](../methods/fedsol.md) with FedProx's squared distance as its
proximal term (`proximal=l2`); plain FedSoL uses distillation instead, with a teacher's forward pass per step."""
COMMANDS = """## Commands

There is one per method that is an answer above, with its settings in the table named in brackets; they may differ
between tables. A command does not repeat the table's run: data, model, partition, learning rate and so on are your
federation's, and are given with `--set` ([all keys](../reference/config.md)). In Python, the text after `run` is the
first argument of `steppe.run`. All rows of man-accuracy evaluate the mean of the clients' latest models
([`latest_mean`](../methods/parts/latest_mean.md)), as that paper's code does."""
WORTH = """A method is not worth its cost in a setting if another one there is more accurate, beyond chance, and costs
no more in bytes, FLOPs and vectors kept. In the survey, SCAFFOLD and FedNSAM have a local momentum that their papers do
not have, so their results there say little about them. FedAvg's own accuracy depends on that momentum, too: compare
momentum 0 with 0.9 in [the league's tuning](../league.md) before you expect the survey's gains over FedAvg in your
own federation."""


def make_answers(evidence: Sequence[Evidence], uncompared: Sequence[Evidence]) -> tuple[Table, list[str]]:
    """Return one row per question, and what the evidence does not cover for each."""
    rows, gaps = [], []
    for question, wish in QUESTIONS.items():
        told = advise(wish, evidence, uncompared)
        gaps += [f"{question}: {' '.join(told['gaps'])}"] if told["gaps"] else []
        if (best := told["advice"]) is None:
            rows.append([question, "no evidence", *[""] * 6])
            continue
        level = ", ".join(e["method"] for e in told["level"]) or "nothing"
        costs = f"{best['bytes']:.2f}×, {best['flops']:.2f}×, {best['kept']:.2g}"
        rows.append([question, best["method"], _cell(best, "accuracy", "half_width"),
                     *(_cell(best, key, f"{key}_half_width") for key in ("over_fedavg", "over_fedavg_ema")), costs,
                     level, f"{told['source']}: {told['setting']}"])  # fmt: skip
    head = ["question", "method", "accuracy, %", "over FedAvg, points", "over FedAvg + EMA",
            "bytes, FLOPs, vectors kept", "level with it", "evidence"]  # fmt: skip
    return Table("Answers", head, rows), gaps


def _cell(told: dict[str, Any], key: str, half_width: str) -> str:
    if told[key] is None:
        return ""
    width = f" ± {told[half_width]:.2f}" if told[half_width] is not None else ""
    return f"{told[key]:.2f}{width} ({told['seeds']})"


def list_commands(evidence: Sequence[Evidence]) -> dict[str, str]:
    """Return the commands of the answers, each with the method's name and where it was the answer."""
    found: dict[str, str] = {}
    for wish in QUESTIONS.values():
        told = advise(wish, evidence)
        if (best := told["advice"]) is not None:
            found.setdefault(best["run"], f"{best['method']} ({told['source']})")
    return found


def make_settings(evidence: Sequence[Evidence]) -> Table:
    """Return every setting with evidence: number of methods, runs of each, methods that are not worth their cost."""
    places: dict[Setting, list[Evidence]] = {}
    for e in evidence:
        places.setdefault(e.setting, []).append(e)
    rows = []
    for setting, found in places.items():
        counts = [e.accuracy.count for e in found]
        seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        bad = ", ".join(e.title for e in found if is_dominated(e, found)) or "–"
        rows.append([str(setting), setting.source, str(len(found)), seeds, bad])
    return Table("Evidence", ["setting", "source", "methods", "seeds of each", "not worth their cost"], rows)


def render_markdown(rows: Sequence[Row]) -> str:
    evidence = collect_evidence(rows)
    answers, gaps = make_answers(evidence, list_uncompared(rows))
    lines = [f"# {name}\n{command}" for command, name in list_commands(evidence).items()]
    commands = [COMMANDS, "```bash\n" + "\n".join(lines) + "\n```"] if lines else []
    parts = [INTRODUCTION, render_markdown_table(answers), *commands, "## Where the evidence ends",
             "\n".join(f"- {md(g)}" for g in gaps), "## All settings", WORTH,
             render_markdown_table(make_settings(evidence))]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def render_files(rows: Sequence[Row]) -> dict[str, str]:
    return {"how-to/choose.md": render_markdown(rows)}
