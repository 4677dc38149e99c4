"""The figures of a report, as the JSON that plotly.js draws. Colours are left to those who draw them.

A trace's `meta` says what is to be painted: {"series": place of the algorithm, "role": "line", "faint", "band", "dots"
or "bar"}, or {"scale": "counts"} for a map of counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from steppe.report import findings, report_tables
from steppe.report.comparison import Axis, Comparison, Curve
from steppe.report.measure_tables import explained

# Viridis: even steps of brightness, readable without colour vision; the page draws one bar of it for all landscapes.
VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]
SCALE = [[i / (len(VIRIDIS) - 1), colour] for i, colour in enumerate(VIRIDIS)]
DASHES = ["solid", "dash", "dot", "dashdot"]
MANY_CLASSES = 12  # above, a map of classes over rounds instead of a panel each


@dataclass
class Chart:
    """One drawing. `words` tells it to those who do not see it."""

    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    words: str
    height: int | None = 300  # None: as high as it is wide


@dataclass
class Panel:
    """Drawings that belong together, with one caption."""

    charts: list[Chart]
    caption: str
    columns: int = 2
    legend: bool = False  # of the algorithms' colours
    bar: list[tuple[float, str]] = field(default_factory=list)  # ticks of the common colour scale, 0 to 1
    bar_name: str = ""
    screen_only: bool = False

    @property
    def across(self) -> int:
        """Charts in a row of a wide page: two are two or three, as they fill it."""
        return self.columns if self.columns != 2 or len(self.charts) == 4 else min(3, len(self.charts))


def numbers(values: Iterable[float]) -> list[float | None]:
    """Six digits are more than a screen shows; what is not finite is a gap."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def titled(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, **more}


def _line(
    curve: Curve, place: int, label: str, times: float, hover: str, band: bool = True, width: float = 2
) -> list[dict[str, Any]]:
    x, mean, spread = numbers(curve.x), curve.mean * times, curve.spread * times
    dash = DASHES[place // 8 % len(DASHES)]
    traces: list[dict[str, Any]] = []
    if band and curve.seeds > 1:
        around = [*numbers(mean + spread), *reversed(numbers(mean - spread))]
        traces.append({"type": "scatter", "x": x + x[::-1], "y": around, "fill": "toself", "mode": "lines",
                       "line": {"width": 0}, "hoverinfo": "skip",
                       "meta": {"series": place, "role": "band"}})  # fmt: skip
    shown = {"customdata": numbers(spread), "hovertemplate": f"{escape(label)}: {hover}<extra></extra>"}
    traces.append({"type": "scatter", "mode": "lines", "name": label, "x": x, "y": numbers(mean),
                   "line": {"width": width, "dash": dash}, **shown,
                   "meta": {"series": place, "role": "line"}})  # fmt: skip
    return traces


def _over(c: Comparison, key: str, axis: Axis, title: str, x_title: str, y_title: str, words: str,
          **x_axis: Any) -> Chart | None:  # fmt: skip
    percent = key == c.metric.name and c.metric.percent
    traces = []
    for place, g in enumerate(c.groups):
        curve = g.curve(key, axis)
        if curve is not None:
            spread = " ± %{customdata:.3g}" if curve.seeds > 1 else ""
            hover = "%{y:.4g}" + spread + (" %" if percent else "")
            traces += _line(curve, place, g.label, 100.0 if percent else 1.0, hover)
    if not traces:
        return None
    layout = {
        "xaxis": titled(x_title, rangemode="tozero", **(_whole(traces) if axis == "round" else {}), **x_axis),
        "yaxis": titled(y_title),
        "hovermode": "x unified",
    }
    return Chart(title, traces, layout, words)


def _whole(traces: list[dict[str, Any]]) -> dict[str, int]:
    """Few rounds get a tick each: there is no round 1.5."""
    return {"dtick": 1} if max(trace["x"][-1] for trace in traces if trace["meta"]["role"] == "line") <= 10 else {}


def curves(c: Comparison) -> Panel:
    name = f"test {c.metric.name}"
    accuracy = findings.in_words(c, c.metric.name, name.capitalize(), c.metric.percent)
    loss = findings.in_words(c, "loss", "Test loss", False)
    made = [_over(c, c.metric.name, "round", name.capitalize(), "round", f"{name}{c.metric.unit and ' (%)'}", accuracy),
            _over(c, "loss", "round", "Test loss", "round", "test loss", loss)]  # fmt: skip
    band = " Lines are means, bands one standard deviation over seeds." if any(g.seeds > 1 for g in c.groups) else ""
    return Panel([m for m in made if m], f"{accuracy} {loss}{band}", legend=True)


def budgets(c: Comparison) -> Panel:
    """The metric against what it cost."""
    y_title = f"test {c.metric.name}{' (%)' if c.metric.percent else ''}"
    table = report_tables.total_cost(c)
    goal = table.columns[4].removeprefix("rounds to ")
    sent = "; ".join(f"{r[0]} {r[5]}" for r in table.rows)
    computed = "; ".join(f"{r[0]} {r[6]}" for r in table.rows)
    most = max(g.traffic for g in c.groups)
    unit, scale = next(
        ((u, s) for u, s in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)) if most >= s), ("KiB", 2**10)
    )
    by_bytes = _over(c, c.metric.name, "bytes", "For the bytes sent", f"traffic of all clients ({unit})", y_title,
                     f"Traffic to reach {goal}: {sent}.")  # fmt: skip
    if by_bytes:
        for trace in by_bytes.traces:
            trace["x"] = numbers(v / scale for v in trace["x"])
    by_work = _over(c, c.metric.name, "gradients", "For the gradients computed", "batch gradients of all clients",
                    y_title, f"Gradients to reach {goal}: {computed}.")  # fmt: skip
    by_time = _over(c, c.metric.name, "simulated", "For the time that it would take", "simulated seconds", y_title,
                    "Simulated time, with slow clients and a deadline where there is one.")  # fmt: skip
    made = [m for m in (by_bytes, by_work, by_time) if m]
    return Panel(made, " ".join(m.words for m in made), legend=True)


def partition(c: Comparison) -> Panel | None:
    """Clients × classes, or the clients' sizes where the labels are not at hand."""
    charts = []
    for hash_, split in list(c.partitions.items())[:4]:
        sizes = split.sizes
        words = (f"{split.rule}, seed {split.seed}: {len(sizes)} clients hold {int(sizes.min())} to "
                 f"{int(sizes.max())} samples (median {int(np.median(sizes))})")  # fmt: skip
        if hash_ in c.labels:
            counts, names = c.labels[hash_]
            held = (counts > 0).sum(1)
            top = counts.max(1) / counts.sum(1)
            words += (f", of {int(held.min())} to {int(held.max())} of {counts.shape[1]} classes; the commonest class "
                      f"makes up {100 * float(np.median(top)):.0f} % of a typical client's samples.")  # fmt: skip
            labels = list(names or map(str, range(counts.shape[1])))
            trace = {"type": "heatmap", "x": list(range(len(sizes))), "y": labels, "z": counts.T.tolist(), "xgap": 1,
                     "ygap": 1, "meta": {"scale": "counts"}, "colorbar": {"title": {"text": "samples"},
                     "thickness": 10, "outlinewidth": 0},
                     "hovertemplate": "client %{x}, class %{y}: %{z} samples<extra></extra>"}  # fmt: skip
            layout = {"xaxis": titled("client", showgrid=False),
                      "yaxis": titled("class", type="category", showgrid=False)}  # fmt: skip
            height = min(620, 110 + 22 * len(labels))
        else:
            words += "."
            trace = {"type": "bar", "x": list(range(len(sizes))), "y": sizes.tolist(),
                     "meta": {"series": 0, "role": "bar"},
                     "hovertemplate": "client %{x}: %{y} samples<extra></extra>"}  # fmt: skip
            layout, height = {"xaxis": titled("client"), "yaxis": titled("samples")}, 260
        charts.append(Chart(f"{split.rule}, seed {split.seed}", [trace], layout, words, height))
    return Panel(charts, " ".join(ch.words for ch in charts), columns=1) if charts else None


def classes(c: Comparison) -> Panel | None:
    """A panel for every class; with many classes, a map for every algorithm."""
    count = max((len(r["by_class"]) for run in c.runs for r in run.records if "by_class" in r), default=0)
    if count == 0:
        return None
    names = next((n for _, n in c.labels.values() if n), None)

    def name(i: int) -> str:
        return names[i] if names and i < len(names) else f"class {i}"

    told = []
    for g in c.ranking:
        last = [(k.mean[-1], i) for i in range(count) if (k := g.class_curve(i)) is not None]
        (low, worst), (high, best) = min(last), max(last)
        told.append(f"{g.label} ends between {100 * low:.0f} % ({name(worst)}) and {100 * high:.0f} % ({name(best)})")
    over = ", mean over seeds" if any(g.seeds > 1 for g in c.groups) else ""
    caption = f"Test accuracy in % by class, over the rounds{over}: {'; '.join(told)}."
    charts = []
    if count <= MANY_CLASSES:
        for i in range(count):
            traces, words = [], []
            for place, g in enumerate(c.groups):
                curve = g.class_curve(i)
                if curve is not None:
                    traces += _line(curve, place, g.label, 100.0, "%{y:.3g} %", band=False, width=1.5)
                    words.append(f"{g.label} {100 * curve.mean[-1]:.0f} %")
            halves = {"tickvals": [0, 50, 100], "ticktext": ["0", "50", "100"]}
            layout = {"xaxis": {"nticks": 4}, "yaxis": {"range": [0, 102], **halves}, "hovermode": "x unified",
                      "margin": {"l": 28, "r": 6, "t": 4, "b": 22}}  # fmt: skip
            charts.append(Chart(name(i), traces, layout, f"Accuracy on {name(i)} at the end: {', '.join(words)}.", 140))
        return Panel([ch for ch in charts if ch.traces], caption, columns=5, legend=True)
    for g in c.ranking:
        rows = [g.class_curve(i) for i in range(count)]
        some = next(r for r in rows if r is not None)
        z = [numbers(100 * r.mean) if r is not None else [None] * len(some.x) for r in rows]
        trace = {"type": "heatmap", "x": numbers(some.x), "z": z, "zmin": 0, "zmax": 100, "colorscale": SCALE,
                 "showscale": False, "hovertemplate": "round %{x}, class %{y}: %{z:.0f} %<extra></extra>"}  # fmt: skip
        layout = {"xaxis": titled("round"), "yaxis": titled("class")}
        summary = next(t for t in told if t.startswith(f"{g.label} "))
        charts.append(Chart(g.label, [trace], layout, f"Accuracy by class over rounds: {summary}.", 320))
    return Panel(charts, caption, bar=[(v / 100, f"{v} %") for v in (0, 25, 50, 75, 100)], bar_name="test accuracy")


def measured(c: Comparison) -> Panel | None:
    """Measures taken during training, a panel each."""
    headings = dict.fromkeys(h for run in c.runs for _, found in run.measured for h in found)
    charts = []
    for heading in headings:
        traces, told = [], []
        for place, g in enumerate(c.groups):
            curve = g.measured_curve(heading)
            if curve is not None:
                traces += _line(curve, place, g.label, 1.0, "%{y:.4g}")
                told.append(f"{g.label} from {curve.mean[0]:.3g} to {curve.mean[-1]:.3g}")
        if traces:
            xaxis = titled("round", rangemode="tozero", **_whole(traces))
            layout = {"xaxis": xaxis, "yaxis": titled(heading), "hovermode": "x unified"}
            charts.append(Chart(heading, traces, layout, f"{heading}: {'; '.join(told)}.", 260))
    samples = dict.fromkeys(str(r["sample"]) for run in c.runs for r in run.records if "sample" in r)
    on = f", measured on {' and on '.join(samples)}" if samples else ""
    means = "".join(f"{text[0].upper()}{text[1:]}. " for text in explained(headings))
    caption = f"During training{on}. {means}" + " ".join(chart.words for chart in charts)
    return Panel(charts, caption, legend=True) if charts else None
