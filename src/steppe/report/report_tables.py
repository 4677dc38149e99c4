"""The tables of a report: results, costs, flatness, layers."""

from __future__ import annotations

from math import isfinite
from statistics import fmean

import numpy as np

from steppe.core.rounding import format_number
from steppe.flatness import over_rounds
from steppe.report import measure_tables
from steppe.report.compare_table import format_difference, format_loss, format_test
from steppe.report.comparison import Axis, Comparison, Curve
from steppe.report.formats import (
    capitalize,
    count_evaluations,
    format_bytes,
    format_count,
    name_tail,
    pluralize,
)
from steppe.report.seeds import compare_pairs, compute_spread
from steppe.report.table import Table


def make_tables(c: Comparison) -> list[Table]:
    """Make all tables, in the order of the report; those without numbers are left out."""
    made = [make_results(c), make_personal(c), make_run_costs(c), make_round_costs(c), *make_flatness(c),
            make_during_training(c), *make_profiles(c)]  # fmt: skip
    return [table for table in made if table is not None]


def make_results(c: Comparison) -> Table:
    """Make the table of final metrics and losses, with a test of each algorithm against the best."""
    m, unit = c.metric, " (%)" if c.metric.percent else ""
    best = c.ranking[0]
    tests = {g.label: None if g is best else compare_pairs(g.by_seed, best.by_seed) for g in c.ranking}
    tested = any(test is not None and test.error is not None for test in tests.values())
    rows = []
    for g in c.ranking:
        metrics = [m.pair(*g.average(key), g.seeds) for key in ("last", "mean_of_last_ten", "best")]
        metrics += [other.pair(*g.average_metric(other.name), g.seeds) for other in c.others]
        test = [format_difference(tests[g.label], m), format_test(tests[g.label])] if tested else []
        rows.append([g.label, metrics[0], *test, *metrics[1:], format_loss(g.average("loss"), g.seeds), str(g.seeds)])
    spread_note = "mean ± standard deviation over seeds; " if any(g.seeds > 1 for g in c.groups) else ""
    test_note = (f" − {best.label}: difference of the final {m.name}, ± standard error over seeds; p: paired t-test, "
                 "not corrected for the number of rows.") if tested else ""  # fmt: skip
    further = [f"final {other.heading}" for other in c.others]
    against = [f"− {best.label}{' (points)' if m.percent else ''}", "p"] if tested else []
    tail = name_tail(count_evaluations(run.summary) for run in c.runs)
    columns = ["algorithm", f"final {m.heading}", *against, f"mean of {tail}{unit}", f"best{unit}", *further,
               f"{c.judged_on} loss", "seeds"]  # fmt: skip
    return Table("Results", columns, rows, f"On the {c.judged_on} set; {spread_note}best final model first.{test_note}")


def make_personal(c: Comparison) -> Table | None:
    """Make the table of clients' own models after fine-tuning: their mean, over seeds."""
    epochs = sorted({int(e) for r in c.runs for e in r.summary.get("personal", {})})
    if not epochs:
        return None
    rows = []
    for g in c.ranking:
        cells = []
        for e in epochs:
            found = [r.summary["personal"][str(e)]["mean"] for r in g.runs if str(e) in r.summary.get("personal", {})]
            cells.append(c.metric.pair(*compute_spread(found), len(found)) if found else "–")
        rows.append([g.label, *cells])
    heads = ["without fine-tuning" if e == 0 else f"after {pluralize(e, 'epoch')}" for e in epochs]
    return Table("Clients' own models", ["algorithm", *heads], rows,
                 f"Mean {c.metric.name} over clients{' (%)' if c.metric.percent else ''}.")  # fmt: skip


def make_round_costs(c: Comparison) -> Table:
    """Make the table of what one round costs one client."""
    rows = []
    for g in c.ranking:
        k = g.runs[0].about["cost"]
        rows.append([g.label, f"{k['down']:.3g}", f"{k['up']:.3g}", f"{k['kept']:.3g}",
                     format_bytes(k["bytes_down"] + k["bytes_up"]), str(k["gradients"]), str(k["forwards"]),
                     f"{k['flops'] / 1e9:.3g}"])  # fmt: skip
    columns = ["algorithm", "down", "up", "kept", "traffic", "gradients per step", "forwards per step",
               "GFLOP per step"]  # fmt: skip
    return Table("Cost per client and round", columns, rows,
                 "Found by tracing. Down, up and kept are multiples of the model. A gradient is a forward and a "
                 "backward pass over a batch; forwards are additional forward passes.")  # fmt: skip


def choose_target(c: Comparison) -> float:
    """Choose a metric that every algorithm reaches: the worst final one, rounded to its own side."""
    worst = c.ranking[-1].average("last")[0]
    step = 0.005 if c.metric.percent else 10.0 ** (np.floor(np.log10(abs(worst) or 1.0)) - 1)
    return float((np.ceil if c.metric.lower else np.floor)(worst / step) * step)


def find_reached(curve: Curve, goal: float, lower: bool) -> int | None:
    """Find where the mean curve first is as good as the goal."""
    good = np.flatnonzero(curve.mean <= goal if lower else curve.mean >= goal)
    return int(good[0]) if len(good) else None


def make_run_costs(c: Comparison) -> Table:
    """Make the table of what whole runs cost, and what it took to reach a common target."""
    goal, m = choose_target(c), c.metric
    rows = []
    for g in c.ranking:
        cells = [g.label, format_bytes(g.traffic), format_count(g.gradients), f"{g.average('seconds')[0]:.1f}"]
        axes: tuple[Axis, ...] = ("round", "bytes", "gradients")
        for axis in axes:
            curve = g.make_curve(c.metric.name, axis)
            at = find_reached(curve, goal, m.lower) if curve else None
            if curve is None or at is None:
                cells.append("–")
            else:
                x = float(curve.x[at])
                cells.append(f"{x:.0f}" if axis == "round" else format_bytes(x) if axis == "bytes" else format_count(x))
        rows.append(cells)
    target = f"{100 * goal:.1f} %" if m.percent else f"{goal:.3g}"
    columns = ["algorithm", "traffic", "gradients", "seconds", f"rounds to {target}",
               f"traffic to {target}", f"gradients to {target}"]  # fmt: skip
    return Table("Cost of the whole run", columns, rows,
                 f"Traffic is down and up over all clients and rounds; gradients are those of all clients that "
                 f"trained, late ones too. The last three columns say where the mean over seeds first reached {target} "
                 f"{c.judged_on} {m.name}.")  # fmt: skip


def make_flatness(c: Comparison) -> list[Table]:
    """Make a table per kind of measure, with a row per measure: there are more of them than algorithms."""
    shown = {g.label: g.measures for g in c.ranking if g.measures}
    samples = list(dict.fromkeys(r.analysis["sample"] for r in c.runs if r.analysis.get("sample")))
    several = any(sum(bool(r.measures) for r in g.runs) > 1 for g in c.groups)
    how = "mean ± standard deviation over seeds" if several else "value ± its standard error"
    if several and len({frozenset(r.measures) for r in c.runs}) > 1:
        how += ", or, where a single seed was measured, ± its standard error"
    note = f"Measured on {' and on '.join(samples)}; {how}."
    if len(samples) > 1:
        note += " Flatness depends on the sample: numbers of different samples cannot be compared or averaged."
    made = []
    for kind in measure_tables.make_tables(shown):
        rows = [[heading, *(row[i + 1] for row in kind.rows)] for i, heading in enumerate(kind.columns[1:])]
        legend = f"{kind.note.rstrip('.')}. " if kind.note else ""
        made.append(Table(capitalize(kind.title), ["measure", *shown], rows, legend + note, series=False))
    return made


def make_during_training(c: Comparison) -> Table | None:
    """Make the table of measures taken during training: per run, the mean of the last rounds and the minimum."""
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
            mean = measure_tables.average_seeds([{heading: one} for one in last])[heading]
            least = fmean(o.minimum for o in each if o.last.n)
            cells.append(f"{format_number(mean)}, {format_number((least, None))}")
        rows.append(cells)
    several = any(g.seeds > 1 for g in shown)
    how = "standard deviation over seeds" if several else "standard error over those rounds"
    note = "; ".join([*measure_tables.explain(headings),
                      f"mean of the last 50 measured rounds ± {how}, and the minimum, which "
                      "is optimistic"])  # fmt: skip
    columns = ["measure", *(g.label for g in shown)]
    return Table("During training", columns, rows, f"{capitalize(note)}.", series=False) if rows else None


def make_profiles(c: Comparison) -> list[Table]:
    """Make tables of numbers per layer or tensor, a row each."""
    made = []
    for p in measure_tables.PROFILES:
        found = {g.label: g.average_profile(p) for g in c.ranking}
        found = {label: values for label, values in found.items() if values}
        names = dict.fromkeys(name for values in found.values() for name in values)
        rows = [[name, *(format_number(values.get(name)) for values in found.values())] for name in names]
        several = any(g.count_seeds_with(p.measure) > 1 for g in c.groups)
        how = "standard deviation over seeds" if several else "the measure's own uncertainty"
        if rows:
            made.append(Table(p.title, ["part", *found], rows, f"± {how}.", series=False))
    return made
