"""Pictures as files: the curves of runs, and everything that a report draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure  # without pyplot, which would hold every figure and choose a window system
from matplotlib.lines import Line2D

from steppe.core.atomic_write import save_figure
from steppe.report import charts, layers, spectra
from steppe.report.charts import Chart, Panel
from steppe.report.comparison import Comparison
from steppe.report.landscapes import draw_landscapes
from steppe.runs.curves import COLOURS, Curve, Histories, choose_style, escape_dollars, plot_histories


def draw_histories(histories: Histories, path: Path, shown: Sequence[Curve], title: str = "") -> None:
    """Draw curves over rounds as one picture: the mean over seeds, and a band of one deviation."""
    figure = Figure(figsize=(5.5 * len(shown), 4.2), layout="constrained")
    plot_histories(figure.subplots(1, len(shown), squeeze=False)[0], histories, shown)
    if title:
        figure.suptitle(title, fontsize=11)
    _save(figure, path)


# -------------------------------------------------------------------------------------------- a report's figures
def draw_panels(c: Comparison) -> dict[str, Panel]:
    """Draw everything that a report shows, by the name of its file."""
    made = {"curves": charts.draw_curves(c), "budgets": charts.draw_costs(c), "measured": charts.draw_measures(c),
            "clients": layers.draw_client_eigenvalues(c), "layers": layers.draw_profiles(c),
            "density": spectra.draw_density(c), "density_layers": spectra.draw_block_densities(c)}  # fmt: skip
    for name, several in draw_landscapes(c).items():
        solid, flat = ([p for p in several if ("scene" in p.charts[0].layout) == is_] for is_ in (True, False))
        made |= {f"{name}_3d": panel for panel in solid}
        made |= {f"{name}_{i + 1}" if len(flat) > 1 else name: panel for i, panel in enumerate(flat)}
    made |= {"classes": charts.draw_classes(c), "partition": charts.draw_partitions(c)}
    return {name: panel for name, panel in made.items() if panel and panel.charts}


def write_figures(c: Comparison, where: Path, ending: str) -> list[Path]:
    """Write every figure of a report as a file that carries its caption; those without data are left out."""
    written = []
    for name, panel in draw_panels(c).items():
        texts = {"Title": name} | {"pdf": {"Subject": panel.caption}}.get(ending, {"Description": panel.caption})
        written.append(where / f"{name}.{ending}")
        _save(_draw_figure(panel, [g.label for g in c.groups]), written[-1], metadata=texts)
    return written


def _save(figure: Any, path: Path, **more: Any) -> None:
    save_figure(figure, path, dpi=130, **more)


def _draw_figure(panel: Panel, labels: list[str]) -> Any:
    """Draw the charts of the page with matplotlib."""
    columns = min(panel.across, len(panel.charts))
    rows = -(-len(panel.charts) // columns)
    wide = 11 / columns if columns > 1 else 8
    tall = max(wide if chart.height is None else chart.height / 85 for chart in panel.charts)
    solid = "scene" in panel.charts[0].layout
    figure = Figure(figsize=(wide * columns, tall * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"} if solid else {})
    drawn = [_draw_chart(axis, chart) for axis, chart in zip(axes.flat, panel.charts, strict=False)]
    for axis in axes.flat[len(panel.charts) :]:
        axis.axis("off")
    if panel.legend:
        shown = sorted(panel.series)
        lines = [Line2D([], [], linewidth=1.8, **choose_style(place)) for place in shown]
        names = [escape_dollars(labels[place]) for place in shown]
        figure.legend(lines, names, loc="outside upper center", frameon=False, fontsize=8, ncols=min(6, len(shown)))
    scales = [d for d in drawn if d is not None]
    if scales and panel.bar:
        bar = figure.colorbar(scales[0], ax=axes, label=escape_dollars(panel.bar_name), shrink=0.8)
        low, high = scales[0].get_clim()
        bar.set_ticks([low + at * (high - low) for at, _ in panel.bar], labels=[text for _, text in panel.bar])
    elif scales:
        figure.colorbar(scales[0], ax=axes, label="samples")
    figure.supxlabel(escape_dollars(panel.outer[0]), fontsize=9)
    figure.supylabel(escape_dollars(panel.outer[1]), fontsize=9)
    return figure


def _draw_chart(axis: Any, chart: Chart) -> Any:
    """Draw one chart, and return what has a colour scale, if anything has."""
    scaled = None
    for trace in chart.traces:
        scaled = _draw_trace(axis, trace) or scaled
    layout = chart.layout.get("scene", chart.layout)
    x, y = (layout.get(key, {}) for key in ("xaxis", "yaxis"))
    axis.set_title(escape_dollars(chart.title), fontsize=9)
    axis.set_xlabel(escape_dollars(x.get("title", {}).get("text", "")), fontsize=9)
    axis.set_ylabel(escape_dollars(y.get("title", {}).get("text", "")), fontsize=9)
    axis.tick_params(labelsize=8)
    if y.get("type") == "log":
        axis.set_yscale("log")
        axis.set_ylim(10 ** y["range"][0], 10 ** y["range"][1])
    elif "range" in y:
        axis.set_ylim(*y["range"])
    if "tickvals" in y:
        axis.set_yticks(y["tickvals"], [escape_dollars(name) for name in y["ticktext"]])
    if scaled is None:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return scaled


def _draw_trace(axis: Any, trace: dict[str, Any]) -> Any:
    """Draw one trace, and return what has a colour scale, if it has one."""
    draw: Callable[[Any, dict[str, Any]], Any] = {
        "scatter": _draw_series if "series" in trace.get("meta", {}) else _draw_marks, "bar": _draw_bars,
        "contour": _draw_contours, "surface": _draw_surface, "heatmap": _draw_map,
    }[trace["type"]]  # fmt: skip
    return draw(axis, trace)


def _read(trace: dict[str, Any], key: str) -> np.ndarray:
    """Return the numbers of a trace; None becomes a gap."""
    return np.array(trace[key], float)


def _draw_marks(axis: Any, trace: dict[str, Any]) -> None:
    """Mark the models on a map."""
    x, y = _read(trace, "x"), _read(trace, "y")
    axis.plot(x, y, "+", color="white", markersize=9, markeredgewidth=1.6)
    if "text" in trace["mode"]:
        for name, place, *at in zip(trace["text"], trace["textposition"], x, y, strict=True):
            up, side = place.split()
            axis.annotate(escape_dollars(name), at, color="white", fontsize=8, textcoords="offset points",
                          xytext=(0, 6 if up == "top" else -6), va="bottom" if up == "top" else "top",
                          ha={"left": "right", "right": "left"}.get(side, "center"))  # fmt: skip


def _draw_series(axis: Any, trace: dict[str, Any]) -> None:
    """Draw a line, a band or dots of an algorithm."""
    x, y, role, style = (
        _read(trace, "x"),
        _read(trace, "y"),
        trace["meta"]["role"],
        choose_style(trace["meta"]["series"]),
    )
    if role == "band":
        axis.fill(x, y, color=style["color"], alpha=0.18, linewidth=0)
    elif role == "dots":
        axis.errorbar(x, y, xerr=trace["error_x"]["array"], fmt="o", color=style["color"], markersize=4, capsize=2)
    else:
        faint = {"alpha": 0.5} if role == "faint" else {}
        axis.plot(x, y, linewidth=trace["line"]["width"] * 0.9, **style, **faint)


def _draw_bars(axis: Any, trace: dict[str, Any]) -> None:
    axis.bar(_read(trace, "x"), _read(trace, "y"), color=COLOURS[trace["meta"]["series"]])


def _draw_contours(axis: Any, trace: dict[str, Any]) -> Any:
    z, at = _read_heights(trace), trace["contours"]
    rounding = 1e-4 * (at["end"] - at["start"])  # the page's numbers have six digits
    levels = np.linspace(at["start"] - rounding, at["end"] + rounding, 16)
    beyond = (bool(z.min() < levels[0]), bool(z.max() > levels[-1]))
    arrows = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    made = axis.contourf(_read(trace, "x"), _read(trace, "y"), z, levels=levels, cmap="viridis", extend=arrows)
    made.set_clim(at["start"], at["end"])
    axis.set_aspect("equal")
    return made


def _draw_surface(axis: Any, trace: dict[str, Any]) -> Any:
    a, b = np.meshgrid(_read(trace, "x"), _read(trace, "y"))
    limits = {"vmin": trace["cmin"], "vmax": trace["cmax"]}
    made = axis.plot_surface(a, b, _read_heights(trace), cmap="viridis", linewidth=0, **limits)
    axis.set_zlim(trace["cmin"], trace["cmax"])
    axis.set_zticks([])  # the colour says it
    axis.locator_params(axis="both", nbins=4)
    return made


def _draw_map(axis: Any, trace: dict[str, Any]) -> Any:
    """Draw classes over clients or rounds."""
    z, names = _read_heights(trace), trace.get("y", ())
    axis.xaxis.get_major_locator().set_params(integer=True)  # there is no client 2.5
    limits = {"vmin": trace["zmin"], "vmax": trace["zmax"], "cmap": "viridis"} if "zmin" in trace else {"cmap": "Blues"}
    made = axis.pcolormesh(np.arange(z.shape[1]), np.arange(z.shape[0]), z, shading="nearest", **limits)
    if len(names) and z.shape[0] <= 20:
        axis.set_yticks(np.arange(z.shape[0]), [escape_dollars(str(name)) for name in names])
    return made


def _read_heights(trace: dict[str, Any]) -> Any:
    return np.ma.masked_invalid(_read(trace, "z"))
