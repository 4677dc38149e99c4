"""The figures of a report as data, in plotly's format and without colours, which page and pictures add themselves.

A trace's `meta` says what to colour: {"series": place of the algorithm, "role": "line", "faint", "band", "dots"
or "bar"}, or {"scale": "counts"} for a map of counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steppe.core.metric import Metric
from steppe.report import findings, report_tables
from steppe.report.comparison import Axis, Comparison, Curve
from steppe.report.formats import capitalize
from steppe.report.measure_tables import explain

# Viridis: even steps of brightness, readable without colour vision; the page draws one bar of it for all landscapes.
VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]
SCALE = [[i / (len(VIRIDIS) - 1), colour] for i, colour in enumerate(VIRIDIS)]
DASHES = ["solid", "dash", "dot", "dashdot"]
MANY_CLASSES = 12  # with more, a map of classes over rounds instead of one panel each
ClassCurves = dict[str, list[Curve | None]]  # by algorithm, a curve per class


@dataclass
class Chart:
    """One drawing. `words` describes it for readers who cannot see it."""

    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    words: str
    height: int | None = 300  # None: as high as it is wide
    number: int = 0  # its place on the page


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
    outer: tuple[str, str] = ("", "")  # titles of the axes that many small charts share; the page's caption has them

    @property
    def series(self) -> set[int]:
        """Return the places of the algorithms in it."""
        return {trace["meta"]["series"] for chart in self.charts for trace in chart.traces}

    @property
    def across(self) -> int:
        """Return the number of charts per row of a wide page: if two are requested, two or three, to fill the row."""
        return self.columns if self.columns != 2 or len(self.charts) == 4 else min(3, len(self.charts))


def list_values(values: Iterable[float], digits: int = 6) -> list[float | None]:
    """Round to six digits, more than a screen shows; values that are not finite become gaps."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in values]


def choose_ticks(low: float, high: float, log: bool = False) -> list[tuple[float, str]]:
    """Return round numbers of a colour scale, and their places between 0 and 1; the ends of `log` are powers of 10.

    >>> choose_ticks(0.2, 3.2)[:2], [text for _, text in choose_ticks(-1.1, 1.0, log=True)]
    ([(0.09999999999999999, '0.5'), (0.26666666666666666, '1')], ['0.1', '0.2', '0.5', '1', '2', '5', '10'])
    """
    if log:
        powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
        factors = (1, 2, 5) if high - low <= 2.5 else (1,)
        values = [factor * 10.0**n for n in powers[:: 1 + len(powers) // 7] for factor in factors]
    else:
        from matplotlib.ticker import MaxNLocator

        values = list(MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high))
    at = [((np.log10(v) if log else v) - low) / (high - low) for v in values]
    return [(float(place), f"{v:.6g}") for place, v in zip(at, values, strict=True) if -1e-9 <= place <= 1 + 1e-9]


def make_axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def draw_line(label: str, place: int, x: Iterable[float], y: Iterable[float], hover: str, role: str = "line",
              width: float = 2.0, digits: int = 6, **more: Any) -> dict[str, Any]:  # fmt: skip
    """Draw a line of the algorithm at this place."""
    return {"type": "scatter", "mode": "lines", "name": label, "x": list_values(x, digits),
            "y": list_values(y, digits), "line": {"width": width, "dash": DASHES[place // 8 % len(DASHES)]},
            "meta": {"series": place, "role": role}, **more,
            "hover": f"{label}: {hover}"}  # fmt: skip


def draw_band(place: int, x: Iterable[float], low: Iterable[float], high: Iterable[float],
              digits: int = 6) -> dict[str, Any]:  # fmt: skip
    """Draw the area between two lines, there and back."""
    there = list_values(x, digits)
    back = list_values(low, digits)[::-1]
    return {"type": "scatter", "x": there + there[::-1], "y": list_values(high, digits) + back, "mode": "lines",
            "meta": {"series": place, "role": "band"}}  # fmt: skip


def _draw_curve(curve: Curve, place: int, label: str, times: float, hover: str) -> list[dict[str, Any]]:
    """Draw the mean over seeds and, if there are several, a band of one standard deviation."""
    mean, spread = curve.mean * times, curve.spread * times
    band = [draw_band(place, curve.x, mean - spread, mean + spread)] if curve.seeds > 1 else []
    return [*band, draw_line(label, place, curve.x, mean, hover, customdata=list_values(spread))]


def _draw_chart(c: Comparison, key: str, axis: Axis, title: str, x_title: str, y_title: str, words: str,
          **x_axis: Any) -> Chart | None:  # fmt: skip
    percent = any(m.percent for m in (c.metric, *c.others) if m.name == key)
    traces = []
    for place, g in enumerate(c.groups):
        curve = g.make_curve(key, axis)
        if curve is not None:
            spread = " ± %{customdata:.3g}" if curve.seeds > 1 else ""
            hover = "%{y:.4g}" + spread + (" %" if percent else "")
            traces += _draw_curve(curve, place, g.label, 100.0 if percent else 1.0, hover)
    if not traces:
        return None
    layout = {
        "xaxis": make_axis(x_title, rangemode="tozero", **(_tick_rounds(traces) if axis == "round" else {}), **x_axis),
        "yaxis": make_axis(y_title),
        "hovermode": "x unified",
    }
    return Chart(title, traces, layout, words)


def _tick_rounds(traces: list[dict[str, Any]]) -> dict[str, int]:
    """Give each of a few rounds a tick: there is no round 1.5."""
    return {"dtick": 1} if max(trace["x"][-1] for trace in traces if trace["meta"]["role"] == "line") <= 10 else {}


def draw_curves(c: Comparison) -> Panel:
    """Draw the metric and the loss over the rounds."""
    on = c.judged_on
    title = f"{on} {c.metric.name}"
    metric = findings.describe_curves(c, c.metric.name, capitalize(title), c.metric.percent)
    loss = findings.describe_curves(c, "loss", capitalize(f"{on} loss"), False)
    made = [_draw_chart(c, c.metric.name, "round", capitalize(title), "round", f"{on} {c.metric.heading}", metric),
            _draw_chart(c, "loss", "round", capitalize(f"{on} loss"), "round", f"{on} loss", loss)]  # fmt: skip
    for other in c.others:
        heading = f"{on} {other.name}"
        words = findings.describe_curves(c, other.name, capitalize(heading), other.percent)
        made.append(_draw_chart(c, other.name, "round", capitalize(heading), "round", f"{on} {other.heading}", words))
    band = " Lines are means, bands one standard deviation over seeds." if any(g.seeds > 1 for g in c.groups) else ""
    return Panel([m for m in made if m], f"{metric} {loss}{band}", legend=True)


def draw_costs(c: Comparison) -> Panel:
    """Draw the metric against its cost: bytes, gradients, simulated time."""
    y_title = f"{c.judged_on} {c.metric.heading}"
    table = report_tables.make_run_costs(c)
    goal = table.columns[4].removeprefix("rounds to ")
    sent = "; ".join(f"{r[0]} {r[5]}" for r in table.rows)
    computed = "; ".join(f"{r[0]} {r[6]}" for r in table.rows)
    most = max(g.traffic for g in c.groups)
    unit, scale = next(
        ((u, s) for u, s in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)) if most >= s), ("KiB", 2**10)
    )
    by_bytes = _draw_chart(c, c.metric.name, "bytes", "By traffic", f"traffic of all clients ({unit})", y_title,
                           f"Traffic to reach {goal}: {sent}.")  # fmt: skip
    if by_bytes:
        for trace in by_bytes.traces:
            trace["x"] = list_values(v / scale for v in trace["x"])
    by_work = _draw_chart(c, c.metric.name, "gradients", "By gradients computed", "batch gradients of all clients",
                          y_title, f"Gradients to reach {goal}: {computed}.")  # fmt: skip
    by_time = _draw_chart(c, c.metric.name, "simulated", "By simulated time", "simulated seconds", y_title,
                          "Simulated time counts slow clients, and the deadline if there is one.")  # fmt: skip
    made = [m for m in (by_bytes, by_work, by_time) if m]
    return Panel(made, " ".join(m.words for m in made), legend=True)


def draw_partitions(c: Comparison) -> Panel | None:
    """Draw clients × classes, or the clients' sizes where the labels are not on this machine."""
    charts = []
    for hash_, split in list(c.partitions.items())[:4]:
        sizes = split.sizes
        words = (f"{split.title}: {len(sizes)} clients hold {int(sizes.min())} to "
                 f"{int(sizes.max())} samples (median {int(np.median(sizes))})")  # fmt: skip
        if hash_ in c.labels:
            counts, names = c.labels[hash_]
            held = (counts > 0).sum(1)
            top = counts.max(1) / counts.sum(1)
            words += (f", of {int(held.min())} to {int(held.max())} of {counts.shape[1]} classes; one class makes up "
                      f"{100 * float(np.median(top)):.0f} % of a client's samples (median).")  # fmt: skip
            labels = list(names or map(str, range(counts.shape[1])))
            trace = {"type": "heatmap", "x": list(range(len(sizes))), "y": labels, "z": counts.T.tolist(),
                     "meta": {"scale": "counts"},
                     "hover": "client %{x}, class %{y}: %{z} samples"}  # fmt: skip
            layout = {"xaxis": make_axis("client"),
                      "yaxis": make_axis("class")}  # fmt: skip
            height = min(620, 110 + 22 * len(labels))
        else:
            words += "."
            trace = {"type": "bar", "x": list(range(len(sizes))), "y": sizes.tolist(),
                     "meta": {"series": 0, "role": "bar"},
                     "hover": "client %{x}: %{y} samples"}  # fmt: skip
            layout, height = {"xaxis": make_axis("client"), "yaxis": make_axis("samples")}, 260
        charts.append(Chart(split.title, [trace], layout, words, height))
    return Panel(charts, " ".join(ch.words for ch in charts), columns=1) if charts else None


def draw_classes(c: Comparison) -> Panel | None:
    """Draw the metric by class: a chart per class or, where there are many, a map per algorithm."""
    count = max((len(r["by_class"]) for run in c.runs for r in run.records if "by_class" in r), default=0)
    if count == 0:
        return None
    names = next((n for _, n in c.labels.values() if n), None)
    labels = [names[i] if names and i < len(names) else f"class {i}" for i in range(count)]
    curves = {g.label: [g.make_class_curve(i) for i in range(count)] for g in c.groups}
    return (_draw_class_lines if count <= MANY_CLASSES else _draw_class_maps)(c, labels, curves)


def _show_value(m: Metric, value: float) -> str:
    return f"{100 * value:.0f} %" if m.percent else f"{value:.3g}"


def _describe_ends(c: Comparison, labels: list[str], curves: ClassCurves) -> dict[str, str]:
    """Say between which classes every algorithm ends."""
    ends = {}
    for g in c.ranking:
        last = [(k.mean[-1], labels[i]) for i, k in enumerate(curves[g.label]) if k is not None]
        (low, lowest), (high, highest) = min(last), max(last)
        ends[g.label] = (f"{g.label} ends between {_show_value(c.metric, low)} ({lowest}) and "
                         f"{_show_value(c.metric, high)} ({highest})")  # fmt: skip
    return ends


def _caption_classes(c: Comparison, ends: dict[str, str]) -> str:
    over = ", mean over seeds" if any(g.seeds > 1 for g in c.groups) else ""
    unit = " in %" if c.metric.percent else ""
    on = capitalize(c.judged_on)
    return f"{on} {c.metric.name}{unit} by class over the rounds{over}: {'; '.join(ends.values())}."


def _draw_class_lines(c: Comparison, labels: list[str], curves: ClassCurves) -> Panel:
    m, times = c.metric, 100.0 if c.metric.percent else 1.0
    fixed = {"range": [0, 102], "tickvals": [0, 50, 100], "ticktext": ["0", "50", "100"]} if m.percent else {}
    layout = {"xaxis": {"nticks": 4}, "yaxis": {"nticks": 4, **fixed}, "hovermode": "x unified"}
    charts = []
    for i, label in enumerate(labels):
        shown = [(place, g, k) for place, g in enumerate(c.groups) if (k := curves[g.label][i]) is not None]
        traces = [draw_line(g.label, place, k.x, times * k.mean, f"%{{y:.3g}}{m.unit}", width=1.5)
                  for place, g, k in shown]  # fmt: skip
        words = ", ".join(f"{g.label} {_show_value(m, k.mean[-1])}" for _, g, k in shown)
        words = f"{capitalize(c.judged_on)} {m.name} on {label} at the end: {words}."
        charts.append(Chart(label, traces, layout, words, 140))
    caption = _caption_classes(c, _describe_ends(c, labels, curves))
    return Panel([ch for ch in charts if ch.traces], caption, columns=5, legend=True,
                 outer=("round", f"{c.judged_on} {m.heading}"))  # fmt: skip


def _draw_class_maps(c: Comparison, labels: list[str], curves: ClassCurves) -> Panel:
    m, times = c.metric, 100.0 if c.metric.percent else 1.0
    known = [k.mean for several in curves.values() for k in several if k is not None]
    low, high = (0.0, 1.0) if m.percent else (min(v.min() for v in known), max(v.max() for v in known))
    ends, charts = _describe_ends(c, labels, curves), []
    for g in c.ranking:
        rows = curves[g.label]
        x = next(k.x for k in rows if k is not None)
        z = [list_values(times * k.mean) if k is not None else [None] * len(x) for k in rows]
        trace = {"type": "heatmap", "x": list_values(x), "z": z, "zmin": times * low, "zmax": times * high,
                 "hover": f"round %{{x}}, class %{{y}}: %{{z:.3g}}{m.unit}"}  # fmt: skip
        layout = {"xaxis": make_axis("round"), "yaxis": make_axis("class")}
        words = f"{capitalize(c.judged_on)} {m.name} by class: {ends[g.label]}."
        charts.append(Chart(g.label, [trace], layout, words, 320))
    return Panel(charts, _caption_classes(c, ends), bar=choose_ticks(times * low, times * high),
                 bar_name=f"{c.judged_on} {m.heading}")  # fmt: skip


def draw_measures(c: Comparison) -> Panel | None:
    """Draw measures taken during training, a chart each."""
    headings = dict.fromkeys(h for run in c.runs for _, found in run.measured for h in found)
    charts = []
    for heading in headings:
        traces, ends = [], []
        for place, g in enumerate(c.groups):
            curve = g.make_measure_curve(heading)
            if curve is not None:
                traces += _draw_curve(curve, place, g.label, 1.0, "%{y:.4g}")
                ends.append(f"{g.label} from {curve.mean[0]:.3g} to {curve.mean[-1]:.3g}")
        if traces:
            xaxis = make_axis("round", rangemode="tozero", **_tick_rounds(traces))
            layout = {"xaxis": xaxis, "yaxis": make_axis(heading), "hovermode": "x unified"}
            charts.append(Chart(heading, traces, layout, f"{heading}: {'; '.join(ends)}.", 260))
    samples = dict.fromkeys(str(r["sample"]) for run in c.runs for r in run.records if "sample" in r)
    on = f", measured on {' and on '.join(samples)}" if samples else ""
    means = "".join(f"{capitalize(text)}. " for text in explain(headings))
    caption = f"During training{on}. {means}" + " ".join(chart.words for chart in charts)
    return Panel(charts, caption, legend=True) if charts else None
