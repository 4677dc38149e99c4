"""Charts of numbers per layer, and per client."""

from __future__ import annotations

from typing import Any

from steppe.core.rounding import Number, format_number
from steppe.report.charts import Chart, Panel, list_values, make_axis
from steppe.report.comparison import Comparison
from steppe.report.measure_tables import OWN_DATA, PROFILES


def draw_profiles(c: Comparison) -> Panel | None:
    """Draw a chart per profile: layers from top to bottom, a dot per algorithm, with its uncertainty."""
    charts = []
    for p in PROFILES:
        found = {g.label: g.average_profile(p) for g in c.groups}
        chart = _draw_dots(p.title, p.what, {k: v for k, v in found.items() if v}, c)
        charts += [chart] if chart else []
    if not charts:
        return None
    several = any(g.count_seeds_with(p.measure) > 1 for g in c.groups for p in PROFILES)
    bars = "one standard deviation over seeds" if several else "standard errors (for λ1, residuals)"
    return Panel(charts, f"{' '.join(ch.words for ch in charts)} Bars are {bars}.", columns=1, legend=True)


def draw_client_eigenvalues(c: Comparison) -> Panel | None:
    """Draw λ1 of the clients' own losses at the final model, of the first seed that has it."""
    found: dict[str, dict[str, Number]] = {}
    for g in c.groups:
        if (run := g.find_analysed("lambda1_clients")) is not None:
            m = run.analysis["measures"]["lambda1_clients"]
            found[g.label] = {f"client {i}": (float(v), float(e)) for i, v, e in
                              sorted(zip(m["ids"], m["each"], m["residuals"], strict=True))}  # fmt: skip
    chart = _draw_dots("Largest eigenvalue of each client's Hessian", "λ1", found, c)
    if chart is None:
        return None
    caption = f"{chart.words} At the final model of the first analysed seed, over {OWN_DATA}; bars are residuals."
    return Panel([chart], caption, columns=1, legend=True)


def _draw_dots(title: str, what: str, found: dict[str, dict[str, Number]], c: Comparison) -> Chart | None:
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
            "type": "scatter", "mode": "markers", "name": label, "x": list_values(v for v, _ in shown.values()),
            "y": list(shown), "text": [f"{n}: {format_number(v)}" for n, v in values.items()],
            "error_x": {"type": "data", "array": list_values(e or 0.0 for _, e in shown.values()), "width": 3},
            "marker": {"size": 7}, "meta": {"series": place[label], "role": "dots"},
            "hover": label + ", %{text}",
        })  # fmt: skip
        most = max(values, key=lambda n: values[n][0])
        words.append(f"{label} is largest in {most} ({format_number(values[most])})")
    layout = {"xaxis": make_axis(what, rangemode="tozero"),
              "yaxis": make_axis("", tickvals=list(range(len(names))), ticktext=names,
                                 range=[len(names) - 0.5, -0.5])}  # fmt: skip
    return Chart(title, traces, layout, f"{title}: {'; '.join(words)}.", 70 + 26 * len(names))
