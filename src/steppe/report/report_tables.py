"""The tables of a report: results, costs, flatness, layers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import fmean

import numpy as np

from steppe.flatness import over_rounds
from steppe.report import measure_tables
from steppe.report.comparison import Axis, Comparison, Curve, count_text, mean_and_spread, traffic_text


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is left-aligned and names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    series: bool = True  # rows are the algorithms


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
            curve = g.curve(c.metric.name, axis)
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
    for kind in measure_tables.tables(shown):
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
            mean = measure_tables.over_seeds([{heading: one} for one in last])[heading]
            least = fmean(o.minimum for o in each if o.last.n)
            cells.append(f"{measure_tables.told(mean)}, {measure_tables.told((least, None))}")
        rows.append(cells)
    several = any(g.seeds > 1 for g in shown)
    how = "standard deviation over seeds" if several else "standard error over those rounds"
    note = "; ".join([*measure_tables.explained(headings),
                      f"mean of the last 50 measured rounds ± {how}, and the minimum, which "
                      "is optimistic"])  # fmt: skip
    note = f"{note[0].upper()}{note[1:]}."
    return Table("During training", ["measure", *(g.label for g in shown)], rows, note, series=False) if rows else None


def profiles(c: Comparison) -> list[Table]:
    """Numbers of every layer or tensor, a row each."""
    made = []
    for p in measure_tables.PROFILES:
        found = {g.label: g.profile(p) for g in c.ranking}
        found = {label: values for label, values in found.items() if values}
        names = dict.fromkeys(name for values in found.values() for name in values)
        rows = [[name, *(measure_tables.told(values.get(name)) for values in found.values())] for name in names]
        several = any(g.seeds_with(p.measure) > 1 for g in c.groups)
        how = "standard deviation over seeds" if several else "the measure's own uncertainty"
        if rows:
            made.append(Table(p.title, ["part", *found], rows, f"± {how}.", series=False))
    return made
