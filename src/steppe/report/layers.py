"""Numbers of every layer, and of every client, as figures."""

from __future__ import annotations

from html import escape
from typing import Any

from steppe.report.charts import Chart, Panel, numbers, titled
from steppe.report.comparison import Comparison
from steppe.report.measure_tables import OWN_DATA, PROFILES, Number, told


def profiles(c: Comparison) -> Panel | None:
    """A chart a profile: parts from top to bottom, a dot an algorithm, with its uncertainty."""
    charts = []
    for p in PROFILES:
        found = {g.label: g.profile(p) for g in c.groups}
        chart = _dots(p.title, p.what, {k: v for k, v in found.items() if v}, c)
        charts += [chart] if chart else []
    if not charts:
        return None
    several = any(g.seeds_with(p.measure) > 1 for g in c.groups for p in PROFILES)
    bars = "one standard deviation over seeds" if several else "standard errors, of λ1 residuals"
    return Panel(charts, f"{' '.join(ch.words for ch in charts)} Bars are {bars}.", columns=1, legend=True)


def clients(c: Comparison) -> Panel | None:
    """λ1 of the clients' own losses at the final model, of the first seed that has it."""
    found: dict[str, dict[str, Number]] = {}
    for g in c.groups:
        if (run := g.analysed("lambda1_clients")) is not None:
            m = run.analysis["measures"]["lambda1_clients"]
            found[g.label] = {f"client {i}": (float(v), float(e)) for i, v, e in
                              sorted(zip(m["ids"], m["each"], m["residuals"], strict=True))}  # fmt: skip
    chart = _dots("Largest eigenvalue of each client's Hessian", "λ1", found, c)
    if chart is None:
        return None
    told_ = f"{chart.words} At the final model of the first analysed seed, over {OWN_DATA}; bars are residuals."
    return Panel([chart], told_, columns=1, legend=True)


def _dots(title: str, what: str, found: dict[str, dict[str, Number]], c: Comparison) -> Chart | None:
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    if not names:
        return None
    place = {g.label: i for i, g in enumerate(c.groups)}
    traces: list[dict[str, Any]] = []
    words = []
    for k, (label, values) in enumerate(found.items()):
        shift = 0.5 * ((k + 0.5) / len(found) - 0.5)  # so that algorithms do not hide one another
        shown = {names.index(name) + shift: v for name, v in values.items()}
        traces.append({
            "type": "scatter", "mode": "markers", "name": label, "x": numbers(v for v, _ in shown.values()),
            "y": list(shown), "text": [f"{escape(n)}: {told(v)}" for n, v in values.items()],
            "error_x": {"type": "data", "array": numbers(e or 0.0 for _, e in shown.values()), "width": 3},
            "marker": {"size": 7}, "meta": {"series": place[label], "role": "dots"},
            "hovertemplate": escape(label) + ", %{text}<extra></extra>",
        })  # fmt: skip
        most = max(values, key=lambda n: values[n][0])
        words.append(f"{label} has the most in {most} ({told(values[most])})")
    layout = {"xaxis": titled(what, rangemode="tozero"),
              "yaxis": titled("", tickvals=list(range(len(names))), ticktext=names, autorange=False,
                              range=[len(names) - 0.5, -0.5])}  # fmt: skip
    return Chart(title, traces, layout, f"{title}: {'; '.join(words)}.", 70 + 26 * len(names))
