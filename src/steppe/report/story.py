"""What a comparison says, in words and in tables: the same for a page, for Markdown and for LaTeX."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

import numpy as np

from steppe.algorithms import CATALOGUE
from steppe.config import resolve
from steppe.flatness import over_rounds
from steppe.report import analysis
from steppe.report.records import Axis, Comparison, Curve, Group, Run, count_text, mean_and_spread, traffic_text


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is left-aligned and names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    series: bool = True  # rows are the algorithms


# ------------------------------------------------------------------------------------------------------ the answer
def headline(c: Comparison) -> str:
    """One sentence: which algorithm won, by how much, and whether that is more than the spread over seeds."""
    best, m = c.ranking[0], c.metric
    mean, spread = best.over("last")
    reached = f"{m.pair(mean, spread, best.seeds)}{m.unit} test {m.name}"
    if len(c.ranking) == 1:
        return f"{best.label} reached {reached}."
    second = c.ranking[1]
    gap = _points(c, abs(mean - second.over("last")[0]))
    side = "below" if m.lower else "above"
    if decided(c):
        return f"{best.label} won: {reached}, {gap} {side} {second.label}, {_price(best, second)}."
    if min(best.seeds, second.seeds) == 1:
        return f"{best.label} leads on a single seed: {reached}, {gap} {side} {second.label}, {_price(best, second)}."
    return f"No clear winner: {best.label} is {gap} {side} {second.label}, within the spread over seeds."


def lead(c: Comparison) -> list[str]:
    """The sentences below it: the difference seed by seed, the cost, and what else must be known."""
    best = c.ranking[0]
    said = []
    if len(c.ranking) > 1:
        second = c.ranking[1]
        pairs = paired(best, second)
        if len(pairs) > 1:
            mean, spread = mean_and_spread(pairs)
            ahead = sum((d < 0) == c.metric.lower and d != 0 for d in pairs)
            said.append(f"Seed by seed, {best.label} differs from {second.label} by "
                        f"{c.metric.told(mean, sign=True)} ± {c.metric.told(spread)}"
                        f"{' points' if c.metric.percent else ''} and is ahead in {ahead} of {len(pairs)} "
                        "seeds.")  # fmt: skip
        elif min(best.seeds, second.seeds) == 1:
            said.append("With a single seed nothing is known about the spread: a difference may be luck.")
        said.append(_cost_sentence(best, second))
    else:
        said.append(f"It sent {traffic_text(best.traffic)}" + _computed(best.gradients) + ".")
    return said


def notes(c: Comparison) -> list[str]:
    """What makes the comparison less than one protocol, and what was left out of it."""
    said = []
    if c.differences:
        told = "; ".join(f"{k} is {' or '.join(map(_value, v))}" for k, v in c.differences.items())
        said.append(f"The runs were not made under one protocol: {told}.")
    counts = {g.seeds for g in c.groups}
    if len(counts) > 1:
        said.append("The algorithms have different numbers of seeds: "
                    + ", ".join(f"{g.label} {g.seeds}" for g in c.groups) + ".")  # fmt: skip
    return said + [f"Left out: {sentence}" for sentence in c.left_out]


def setting(c: Comparison) -> str:
    """The protocol in one line."""
    run, config = c.runs[0], c.runs[0].config
    model = config["model"] if run.about.get("model") else "an own model"
    shown = {"partition": config["partition"], "clients": f"{config['clients']} clients",
             "per_round": f"{config['per_round']} a round", "rounds": counted(config["rounds"], "round"),
             "model": f"{model}, {run.about['parameters']:,} parameters"}  # fmt: skip
    kept = [text for key, text in shown.items() if key not in c.differences]
    seeds = sorted({g.seeds for g in c.groups})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return " · ".join([config["data"], *kept, f"{count} seed{'s' if seeds[-1] > 1 else ''}"])


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "round"), counted(30, "round")
    ('1 round', '30 rounds')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def paired(a: Group, b: Group) -> list[float]:
    """Differences of the final model's metric at the seeds that both have."""
    other = {r.seed: float(r.summary["last"]) for r in b.runs}
    return [float(r.summary["last"]) - other[r.seed] for r in a.runs if r.seed in other]


def decided(c: Comparison) -> bool:
    """Ahead at every common seed, of which there are at least two, and by more than either spread."""
    best, second = c.ranking[:2]
    pairs = paired(best, second)
    (mean, spread), (other, other_spread) = best.over("last"), second.over("last")
    ahead = all((d < 0) if c.metric.lower else (d > 0) for d in pairs)
    return len(pairs) > 1 and ahead and abs(mean - other) > max(spread, other_spread)


def _points(c: Comparison, gap: float) -> str:
    return f"{c.metric.told(gap)} points" if c.metric.percent else c.metric.told(gap)


def _cost_sentence(best: Group, second: Group) -> str:
    text = f"{best.label} sent {traffic_text(best.traffic)} in all ({_times(best.traffic, second.traffic, second)})"
    if best.gradients is not None and second.gradients is not None:
        text += f"{_computed(best.gradients)} ({_times(best.gradients, second.gradients, second)})"
    return text + "."


def _price(best: Group, second: Group) -> str:
    """
    >>> from types import SimpleNamespace as G
    >>> _price(G(traffic=2.0, gradients=5.0), G(traffic=1.0, gradients=5.0))
    'for 2× its bytes and as many gradients'
    """
    sent = "as many bytes" if best.traffic == second.traffic else ""
    sent = sent or (f"{best.traffic / second.traffic:.2g}× its bytes" if second.traffic else "more bytes")
    if best.gradients is None or not second.gradients:
        return f"for {sent}"
    same = best.gradients == second.gradients
    return f"for {sent} and {'as many' if same else f'{best.gradients / second.gradients:.2g}× its'} gradients"


def _computed(gradients: float | None) -> str:
    return "" if gradients is None else f" and computed {count_text(gradients)} batch gradients"


def _times(a: float, b: float, whose: Group) -> str:
    if a == b:
        return f"as {whose.label}"
    return f"{a / b:.2g}× {whose.label}'s" if b else f"{whose.label}: none"


# ------------------------------------------------------------------------------------------------------- tables
def tables(c: Comparison) -> dict[str, Table]:
    """By name, in the order of the report; those without numbers are left out."""
    made = {"results": results(c), "personal": personal(c), "total": total_cost(c), "round": round_cost(c)}
    made |= {f"flatness {i}": table for i, table in enumerate(flatness(c))}
    made |= {"during": during(c)} | {f"layers {i}": table for i, table in enumerate(profiles(c))}
    return {name: table for name, table in made.items() if table is not None}


def results(c: Comparison) -> Table:
    m, unit = c.metric, " (%)" if c.metric.percent else ""
    rows = []
    for g in c.ranking:
        told = [m.pair(*g.over(key), g.seeds) for key in ("last", "mean_of_last_ten", "best")]
        loss, spread = g.over("loss")
        rows.append([g.label, *told, f"{loss:.3f} ± {spread:.3f}" if g.seeds > 1 else f"{loss:.3f}", str(g.seeds)])
    spread_note = "mean ± standard deviation over seeds; " if any(g.seeds > 1 for g in c.groups) else ""
    columns = ["algorithm", f"final {m.name}{unit}", f"mean of last ten{unit}", f"best{unit}", "test loss", "seeds"]
    return Table("Results", columns, rows, f"On the test set; {spread_note}best final model first.")


def personal(c: Comparison) -> Table | None:
    """Clients' own models after epochs of their own: mean over clients, mean ± standard deviation over seeds."""
    epochs = sorted({int(e) for r in c.runs for e in r.summary.get("personal", {})})
    if not epochs:
        return None
    rows = []
    for g in c.ranking:
        cells = []
        for e in epochs:
            found = [r.summary["personal"][str(e)]["mean"] for r in g.runs if str(e) in r.summary.get("personal", {})]
            cells.append(c.metric.pair(*mean_and_spread(found), len(found)) if found else "–")
        rows.append([g.label, *cells])
    heads = ["as they are" if e == 0 else f"after {e} epoch{'s' if e > 1 else ''}" for e in epochs]
    return Table("Clients' own models", ["algorithm", *heads], rows,
                 f"Mean {c.metric.name} over clients{' (%)' if c.metric.percent else ''}.")  # fmt: skip


def round_cost(c: Comparison) -> Table:
    rows = []
    for g in c.ranking:
        k = g.runs[0].about["cost"]
        rows.append([g.label, f"{k['down']:.3g}", f"{k['up']:.3g}", f"{k['kept']:.3g}",
                     traffic_text(k["bytes_down"] + k["bytes_up"]), str(k["gradients"]), str(k["forwards"]),
                     f"{k['flops'] / 1e9:.3g}"])  # fmt: skip
    columns = ["algorithm", "down", "up", "kept", "traffic", "gradients a step", "forwards a step", "GFLOP a step"]
    return Table("Cost of one client's round", columns, rows,
                 "Found by tracing. Down, up and kept are multiples of the model; a gradient is a forward and a "
                 "backward pass over a batch, forwards are further ones.")  # fmt: skip


def target(c: Comparison) -> float:
    """The final metric that every algorithm reaches: the worst one's, rounded to its side."""
    worst = c.ranking[-1].over("last")[0]
    step = 0.005 if c.metric.percent else 10.0 ** (np.floor(np.log10(abs(worst) or 1.0)) - 1)
    return float((np.ceil if c.metric.lower else np.floor)(worst / step) * step)


def reached(curve: Curve, goal: float, lower: bool) -> int | None:
    """Where the mean curve first is as good as the goal."""
    good = np.flatnonzero(curve.mean <= goal if lower else curve.mean >= goal)
    return int(good[0]) if len(good) else None


def total_cost(c: Comparison) -> Table:
    goal, m = target(c), c.metric
    rows = []
    for g in c.ranking:
        cells = [g.label, traffic_text(g.traffic), count_text(g.gradients), f"{g.over('seconds')[0]:.1f}"]
        axes: tuple[Axis, ...] = ("round", "bytes", "gradients")
        for axis in axes:
            curve = g.curve("accuracy", axis)
            at = reached(curve, goal, m.lower) if curve else None
            if curve is None or at is None:
                cells.append("–")
            else:
                x = float(curve.x[at])
                cells.append(f"{x:.0f}" if axis == "round" else traffic_text(x) if axis == "bytes" else count_text(x))
        rows.append(cells)
    told = f"{100 * goal:.1f} %" if m.percent else f"{goal:.3g}"
    columns = ["algorithm", "traffic", "gradients", "seconds", f"rounds to {told}",
               f"traffic to {told}", f"gradients to {told}"]  # fmt: skip
    return Table("Cost of the whole run", columns, rows,
                 f"Traffic is down and up over all clients and rounds; gradients are those of all clients' steps. The "
                 f"last three columns: where the mean over seeds first reached {told} test {m.name}.")  # fmt: skip


def flatness(c: Comparison) -> list[Table]:
    """A table for each kind of measure, with a row a measure: there are more of them than algorithms."""
    shown = {g.label: g.measures for g in c.ranking if g.measures}
    samples = list(dict.fromkeys(r.analysis["sample"] for r in c.runs if r.analysis.get("sample")))
    several = any(sum(bool(r.measures) for r in g.runs) > 1 for g in c.groups)
    how = "mean ± standard deviation over seeds" if several else "value ± its standard error"
    if several and len({frozenset(r.measures) for r in c.runs}) > 1:
        how += ", or of what one seed alone has, ± its standard error"
    note = f"Measured on {' and on '.join(samples)}; {how}."
    if len(samples) > 1:
        note += " Flatness depends on the sample, so numbers on different ones do not compare, nor do their means."
    made = []
    for kind in analysis.tables(shown):
        rows = [[heading, *(row[i + 1] for row in kind.rows)] for i, heading in enumerate(kind.columns[1:])]
        legend = f"{kind.legend.rstrip('.')}. " if kind.legend else ""
        title = kind.title[0].upper() + kind.title[1:]
        made.append(Table(title, ["measure", *shown], rows, legend + note, series=False))
    return made


def during(c: Comparison) -> Table | None:
    """Measures taken during training as one number a run: the mean of the last rounds, and the minimum."""
    headings = list(dict.fromkeys(h for run in c.runs for _, found in run.measured for h in found))
    shown = [g for g in c.ranking if any(run.measured for run in g.runs)]
    rows = []
    for heading in headings:
        cells = [heading]
        for g in shown:
            each = [over_rounds([found[heading][0] for _, found in run.measured if heading in found]) for run in g.runs]
            last = [(o.last.value, o.last.error if isfinite(o.last.error) else None) for o in each if o.last.n]
            if not last:
                cells.append("–")
                continue
            mean = analysis.over_seeds([{heading: one} for one in last])[heading]
            cells.append(f"{analysis.told(mean)}, {analysis.told((fmean(o.minimum for o in each if o.last.n), None))}")
        rows.append(cells)
    several = any(g.seeds > 1 for g in shown)
    how = "standard deviation over seeds" if several else "standard error over those rounds"
    note = "; ".join([*analysis.explained(headings), f"mean of the last 50 measured rounds ± {how}, and the minimum, "
                      "which is optimistic"])  # fmt: skip
    note = f"{note[0].upper()}{note[1:]}."
    return Table("During training", ["measure", *(g.label for g in shown)], rows, note, series=False) if rows else None


def profiles(c: Comparison) -> list[Table]:
    """Numbers of every layer or tensor, a row each."""
    made = []
    for p in analysis.PROFILES:
        found = {g.label: g.profile(p) for g in c.ranking}
        found = {label: values for label, values in found.items() if values}
        names = dict.fromkeys(name for values in found.values() for name in values)
        rows = [[name, *(analysis.told(values.get(name)) for values in found.values())] for name in names]
        several = any(g.seeds_with(p.measure) > 1 for g in c.groups)
        how = "standard deviation over seeds" if several else "the measure's own uncertainty"
        if rows:
            made.append(Table(p.title, ["part", *found], rows, f"± {how}.", series=False))
    return made


# ----------------------------------------------------------------------------------------------------- the runs
def command(run: Run) -> str:
    """The command that makes this run again. Only what differs from the defaults, or from the recipe, is said."""
    config = run.config
    base = resolve({"algorithm": config["algorithm"], "data": config["data"]}
                   | ({"recipe": config["recipe"]} if config["recipe"] else {})).model_dump(mode="json")  # fmt: skip
    words = ["steppe", "run", config["algorithm"]]
    words += [w for part in config["add"] for w in ("--add", part)]
    for key, value in config["settings"].items():
        words += ["--set", f"settings.{key}={_value(value)}"]
    said = {"algorithm", "settings", "add", "rounds"}
    for key, value in config.items():
        if key not in said and (value != base.get(key) or (key in ("recipe", "data") and value is not None)):
            words += ["--set", f"{key}={_value(value)}"]
    return shlex.join([*words, "--rounds", str(config["rounds"])])


def is_own(run: Run) -> bool:
    """Whether it had a model or parts of the user's own, which no command can name."""
    return run.about.get("model") is None or run.about["algorithm"].partition("+")[0] != run.config["algorithm"]


def idea(run: Run) -> str:
    """The paper and its idea, as the catalogue has them."""
    entry = CATALOGUE.get(run.config["algorithm"])
    return ((entry.__doc__ if entry else "") or "").strip().partition("\n")[0] if not is_own(run) else ""


def _value(value: Any) -> str:
    """As `--set` reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else str(value)


# ------------------------------------------------------------------------------------------- figures, in words
def in_words(c: Comparison, key: str, name: str, percent: bool) -> str:
    """A curve of every algorithm, as its beginning and its end."""
    told = []
    for g in c.ranking:
        curve = g.curve(key)
        if curve is not None:
            first, last, spread = (
                v * (100 if percent else 1) for v in (curve.mean[0], curve.mean[-1], curve.spread[-1])
            )
            unit = " %" if percent else ""
            end = f"{last:.3g} ± {spread:.2g}" if curve.seeds > 1 else f"{last:.3g}"
            told.append(f"{g.label} from {first:.3g} to {end}{unit}")
    return f"{name}: {'; '.join(told)}."
