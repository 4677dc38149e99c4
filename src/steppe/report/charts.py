"""The figures of a page, as the JSON that plotly.js draws. Colours are left to the page, which knows light and dark.

A trace's `meta` says what the page is to paint: {"series": place of the algorithm, "role": "line" or "band"}, or
{"scale": "counts"} for a map of counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from steppe.flatness.landscape import Landscape
from steppe.report import story
from steppe.report.records import LANDSCAPES, Axis, Comparison, Curve

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


def numbers(values: Iterable[float]) -> list[float | None]:
    """Six digits are more than a screen shows; what is not finite is a gap."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def _axis(title: str, **more: Any) -> dict[str, Any]:
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
    percent = key == "accuracy" and c.metric.percent
    traces = []
    for place, g in enumerate(c.groups):
        curve = g.curve(key, axis)
        if curve is not None:
            spread = " ± %{customdata:.3g}" if curve.seeds > 1 else ""
            hover = "%{y:.4g}" + spread + (" %" if percent else "")
            traces += _line(curve, place, g.label, 100.0 if percent else 1.0, hover)
    if not traces:
        return None
    layout = {"xaxis": _axis(x_title, rangemode="tozero", **x_axis), "yaxis": _axis(y_title), "hovermode": "x unified"}
    return Chart(title, traces, layout, words)


def curves(c: Comparison) -> Panel:
    name = f"test {c.metric.name}"
    accuracy = story.in_words(c, "accuracy", name.capitalize(), c.metric.percent)
    loss = story.in_words(c, "loss", "Test loss", False)
    made = [_over(c, "accuracy", "round", name.capitalize(), "round", f"{name}{c.metric.unit and ' (%)'}", accuracy),
            _over(c, "loss", "round", "Test loss", "round", "test loss", loss)]  # fmt: skip
    band = " Lines are means, bands one standard deviation over seeds." if any(g.seeds > 1 for g in c.groups) else ""
    return Panel([m for m in made if m], f"{accuracy} {loss}{band}", legend=True)


def budgets(c: Comparison) -> Panel:
    """The metric against what it cost."""
    y_title = f"test {c.metric.name}{' (%)' if c.metric.percent else ''}"
    table = story.total_cost(c)
    goal = table.columns[4].removeprefix("rounds to ")
    sent = "; ".join(f"{r[0]} {r[5]}" for r in table.rows)
    computed = "; ".join(f"{r[0]} {r[6]}" for r in table.rows)
    most = max(g.traffic for g in c.groups)
    unit, scale = next(
        ((u, s) for u, s in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)) if most >= s), ("KiB", 2**10)
    )
    by_bytes = _over(c, "accuracy", "bytes", "For the bytes sent", f"traffic of all clients ({unit})", y_title,
                     f"Traffic to reach {goal}: {sent}.")  # fmt: skip
    if by_bytes:
        for trace in by_bytes.traces:
            trace["x"] = numbers(v / scale for v in trace["x"])
    by_work = _over(c, "accuracy", "gradients", "For the gradients computed", "batch gradients of all clients", y_title,
                    f"Gradients to reach {goal}: {computed}.")  # fmt: skip
    by_time = _over(c, "accuracy", "simulated", "For the time that it would take", "simulated seconds", y_title,
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
            layout = {"xaxis": _axis("client", showgrid=False),
                      "yaxis": _axis("class", type="category", showgrid=False)}  # fmt: skip
            height = min(620, 110 + 22 * len(labels))
        else:
            words += "."
            trace = {"type": "bar", "x": list(range(len(sizes))), "y": sizes.tolist(),
                     "meta": {"series": 0, "role": "bar"},
                     "hovertemplate": "client %{x}: %{y} samples<extra></extra>"}  # fmt: skip
            layout, height = {"xaxis": _axis("client"), "yaxis": _axis("samples")}, 260
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
    caption = f"Test accuracy by class, mean over seeds: {'; '.join(told)}."
    charts = []
    if count <= MANY_CLASSES:
        for i in range(count):
            traces, words = [], []
            for place, g in enumerate(c.groups):
                curve = g.class_curve(i)
                if curve is not None:
                    traces += _line(curve, place, g.label, 100.0, "%{y:.3g} %", band=False, width=1.5)
                    words.append(f"{g.label} {100 * curve.mean[-1]:.0f} %")
            layout = {"xaxis": {"nticks": 4}, "yaxis": {"range": [0, 102], "nticks": 4}, "hovermode": "x unified",
                      "margin": {"l": 28, "r": 6, "t": 4, "b": 22}}  # fmt: skip
            charts.append(Chart(name(i), traces, layout, f"Accuracy on {name(i)} at the end: {', '.join(words)}.", 140))
        return Panel([ch for ch in charts if ch.traces], caption, columns=5, legend=True)
    for g in c.ranking:
        rows = [g.class_curve(i) for i in range(count)]
        some = next(r for r in rows if r is not None)
        z = [numbers(100 * r.mean) if r is not None else [None] * len(some.x) for r in rows]
        trace = {"type": "heatmap", "x": numbers(some.x), "z": z, "zmin": 0, "zmax": 100, "colorscale": SCALE,
                 "showscale": False, "hovertemplate": "round %{x}, class %{y}: %{z:.0f} %<extra></extra>"}  # fmt: skip
        layout = {"xaxis": _axis("round"), "yaxis": _axis("class")}
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
            layout = {"xaxis": _axis("round", rangemode="tozero"), "yaxis": _axis(heading), "hovermode": "x unified"}
            charts.append(Chart(heading, traces, layout, f"{heading}: {'; '.join(told)}.", 260))
    caption = "During training. " + " ".join(chart.words for chart in charts)
    return Panel(charts, caption, legend=True) if charts else None


def density(c: Comparison) -> Panel | None:
    """All algorithms on one pair of axes: the bulk at 0 is tall and the outliers are few, hence the logarithm."""
    traces: list[dict[str, Any]] = []
    told, floor = [], 1e-5
    for place, g in enumerate(c.groups):
        d = g.density
        if d is None:
            continue
        x = numbers(d.grid)
        low, high = np.maximum(d.density - d.error, floor), np.maximum(d.density + d.error, floor)
        traces.append({"type": "scatter", "x": x + x[::-1], "y": [*numbers(high), *reversed(numbers(low))],
                       "fill": "toself", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip",
                       "meta": {"series": place, "role": "band"}})  # fmt: skip
        traces.append({"type": "scatter", "mode": "lines", "name": g.label, "x": x,
                       "y": numbers(np.where(d.density > floor, d.density, np.nan)),
                       "line": {"width": 1.8, "dash": DASHES[place // 8 % len(DASHES)]},
                       "meta": {"series": place, "role": "line"},
                       "hovertemplate": escape(g.label) + ": %{y:.2g} at λ = %{x:.3g}<extra></extra>"})  # fmt: skip
        seen = d.grid[d.density > floor]
        told.append(f"{g.label} from {seen.min():.3g} to {seen.max():.3g}")
    if not traces:
        return None
    top = max(v for t in traces for v in t["y"] if v)
    layout = {"xaxis": _axis("eigenvalue λ", zeroline=True),
              "yaxis": _axis("density", type="log", range=[np.log10(floor), float(np.log10(top)) + 0.1],
                             exponentformat="power", dtick=1)}  # fmt: skip
    words = f"Density of the Hessian's eigenvalues, reaching above {floor:g}: {'; '.join(told)}."
    chart = Chart("", traces, layout, words, 320)
    return Panel([chart], f"{words} Of the first analysed seed; bands are one standard error over probes.", 1, True)


# --------------------------------------------------------------------------------------------------- landscapes
@dataclass(frozen=True)
class Heights:
    """One colour scale for all landscapes: logarithmic where the losses span more than a factor of 20."""

    low: float
    high: float
    log: bool

    @staticmethod
    def of(values: list[np.ndarray]) -> Heights:
        every = np.concatenate([v[np.isfinite(v)].ravel() for v in values])
        if not len(every):
            return Heights(0.0, 1.0, False)
        low, high = float(every.min()), float(every.max())
        log = low > 0 and high > 20 * low
        low, high = (float(np.log10(low)), float(np.log10(high))) if log else (low, high)
        return Heights(low, high if high > low else low + 1e-9, log)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log10(values) if self.log else values

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places between 0 and 1, and losses."""
        at = np.linspace(self.low, self.high, 5)
        return [(float(i / 4), f"{10**v if self.log else v:.2g}") for i, v in enumerate(at)]


def landscapes(c: Comparison) -> dict[str, list[Panel]]:
    """By title: the same planes as surfaces and as contours, or lines, side by side and on one scale."""
    made = {}
    for name, title in LANDSCAPES.items():
        found = [(place, g, *one) for place, g in enumerate(c.groups) if (one := g.landscape(name)) is not None]
        lines, planes = ([f for f in found if f[3].values.ndim == n] for n in (1, 2))
        panels = ([_lines(lines)] if lines else []) + (_planes(planes) if planes else [])
        if panels:
            made[title] = panels
    return made


def _lines(found: list[Any]) -> Panel:
    traces, told = [], []
    for place, g, _, land in found:
        traces.append({"type": "scatter", "mode": "lines", "name": g.label, "x": numbers(land.axes[0]),
                       "y": numbers(land.values), "line": {"width": 2, "dash": DASHES[place // 8 % len(DASHES)]},
                       "meta": {"series": place, "role": "line"},
                       "hovertemplate": escape(g.label) + ": %{y:.3g}<extra></extra>"})  # fmt: skip
        told.append(_span(g.label, land))
    layout = {"xaxis": _axis(f"along the {_directions(found[0][3], 1)}"), "yaxis": _axis("loss"),
              "hovermode": "x unified"}  # fmt: skip
    words = f"Loss along a line through the final model: {'; '.join(told)}."
    return Panel([Chart("", traces, layout, words)], f"{words} {_sample(found)}", 1, True)


def _planes(found: list[Any]) -> list[Panel]:
    heights = Heights.of([land.values for _, _, _, land in found])
    contours, surfaces = [], []
    for _, g, run, land in found:
        a, b = land.axes
        z = heights(land.values)
        grid = {"x": numbers(a), "y": numbers(b), "z": [numbers(row) for row in z.T]}  # rows of z follow y
        text = [[f"{v:.3g}" for v in row] for row in land.values.T]
        words = f"Loss around the final model, {_span(g.label, land)}."
        step = (heights.high - heights.low) / 14
        marks = land.marks or ({"model": [0.0, 0.0]} if a[0] <= 0 <= a[-1] and b[0] <= 0 <= b[-1] else {})
        dots = {"type": "scatter", "mode": "markers+text" if land.marks else "markers", "showlegend": False,
                "x": [m[0] for m in marks.values()], "y": [m[1] for m in marks.values()], "text": list(marks),
                "textposition": "top center", "textfont": {"color": "#ffffff"}, "hoverinfo": "text",
                "marker": {"symbol": "cross", "size": 9, "color": "#ffffff", "line": {"width": 1, "color": "#222"}},
                "cliponaxis": False}  # fmt: skip
        flat = {"type": "contour", **grid, "text": text, "colorscale": SCALE, "zmin": heights.low, "zmax": heights.high,
                "autocontour": False, "contours": {"start": heights.low, "end": heights.high, "size": step},
                "line": {"width": 0.6, "color": "rgba(255,255,255,0.55)"}, "showscale": False,
                "hovertemplate": "loss %{text}<extra></extra>"}  # fmt: skip
        square = {"xaxis": _axis(_directions(land, 1)), "yaxis": _axis(_directions(land, 2), scaleanchor="x",
                  constrain="domain")}  # fmt: skip
        square["xaxis"]["constrain"] = "domain"
        title = g.label if g.seeds == 1 else f"{g.label}, seed {run.seed}"
        contours.append(Chart(title, [flat, dots], square, words, None))
        solid = {"type": "surface", **grid, "text": text, "colorscale": SCALE, "cmin": heights.low,
                 "cmax": heights.high, "showscale": False, "hovertemplate": "loss %{text}<extra></extra>",
                 "contours": {"z": {"show": True, "start": heights.low, "end": heights.high, "size": step,
                                    "color": "rgba(255,255,255,0.4)", "width": 1}}}  # fmt: skip
        room = 0.02 * (heights.high - heights.low)
        bare = {"title": {"text": ""}, "nticks": 3}
        zaxis = {"title": {"text": ""}, "range": [heights.low - room, heights.high + room],
                 "showticklabels": False}  # the colour says it  # fmt: skip
        scene = {"xaxis": bare, "yaxis": bare, "zaxis": zaxis, "dragmode": "turntable", "aspectmode": "manual",
                 "aspectratio": {"x": 1, "y": 1, "z": 0.75},
                 "camera": {"eye": {"x": 1.25, "y": 1.25, "z": 0.85},
                            "center": {"x": 0, "y": 0, "z": -0.2}}}  # fmt: skip
        surfaces.append(
            Chart(title, [solid], {"scene": scene, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}}, words, None)
        )
    told = "; ".join(_span(g.label, land) for _, g, _, land in found)
    scale = "logarithmic colour scale" if heights.log else "colour scale"
    about = f"One {scale} for all. {_sample(found)}"
    bar: dict[str, Any] = {"bar": heights.ticks, "bar_name": "loss"}
    above = f"Height and colour are the loss; drag to rotate, all turn together. {about}"
    flat_caption = f"The same planes from above; the cross is the final model. Losses: {told}."
    return [Panel(surfaces, above, screen_only=True, **bar), Panel(contours, flat_caption, **bar)]


def _span(label: str, land: Landscape) -> str:
    finite = land.values[np.isfinite(land.values)]
    if not len(finite):
        return f"{label}: no finite loss"
    return f"{label} from {finite.min():.3g} to {finite.max():.3g}"


def _directions(land: Landscape, which: int) -> str:
    kinds = {
        "eigenvectors": f"eigenvector {which}",
        "random": f"random direction {which}",
        "line": "line between models",
    }
    return kinds.get(land.kind, f"direction {which}")


def _sample(found: list[Any]) -> str:
    samples = dict.fromkeys(land.sample for _, _, _, land in found)
    return f"Loss on {' and on '.join(samples)}, of the first analysed seed of each algorithm."
