"""Pictures as files: the curves of runs, and everything that a report draws."""

from __future__ import annotations

from collections.abc import Sequence
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
    return figure


def _draw_chart(axis: Any, chart: Chart) -> Any:
    """Draw one chart, and return what has a colour scale, if anything has."""
    scaled = None
    for trace in chart.traces:
        scaled = _draw_trace(axis, trace) or scaled
    x, y = (chart.layout.get(key, {}) for key in ("xaxis", "yaxis"))
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
    meta = trace.get("meta", {})
    x, y = (np.array(trace.get(key, ()), object) for key in "xy")
    if trace["type"] == "scatter":
        x, y = x.astype(float), y.astype(float)  # None becomes a gap
        if "series" not in meta:  # the models on a map
            axis.plot(x, y, "+", color="white", markersize=9, markeredgewidth=1.6)
            if "text" in trace["mode"]:
                for name, place, *at in zip(trace["text"], trace["textposition"], x, y, strict=True):
                    up, side = place.split()
                    axis.annotate(escape_dollars(name), at, color="white", fontsize=8, textcoords="offset points",
                                  xytext=(0, 6 if up == "top" else -6), va="bottom" if up == "top" else "top",
                                  ha={"left": "right", "right": "left"}.get(side, "center"))  # fmt: skip
            return None
        style = choose_style(meta["series"])
        if meta["role"] == "band":
            axis.fill(x, y, color=style["color"], alpha=0.18, linewidth=0)
        elif meta["role"] == "dots":
            axis.errorbar(x, y, xerr=trace["error_x"]["array"], fmt="o", color=style["color"], markersize=4, capsize=2)
        else:
            faint = {"alpha": 0.5} if meta["role"] == "faint" else {}
            axis.plot(x, y, linewidth=trace["line"]["width"] * 0.9, **style, **faint)
        return None
    if trace["type"] == "bar":
        axis.bar(x.astype(float), y.astype(float), color=COLOURS[meta["series"]])
        return None
    z = np.ma.masked_invalid(np.array(trace["z"], float))
    if trace["type"] == "contour":
        at = trace["contours"]
        levels = np.linspace(at["start"], at["end"], 16)
        made = axis.contourf(x.astype(float), y.astype(float), z, levels=levels, cmap="viridis", extend="both")
        made.set_clim(at["start"], at["end"])
        axis.set_aspect("equal")
        return made
    if trace["type"] == "surface":
        a, b = np.meshgrid(x.astype(float), y.astype(float))
        made = axis.plot_surface(a, b, z, cmap="viridis", vmin=trace["cmin"], vmax=trace["cmax"], linewidth=0)
        axis.set_zlim(trace["cmin"], trace["cmax"])
        axis.set_zticks([])  # the colour says it
        axis.locator_params(axis="both", nbins=4)
        return made
    limits = {"vmin": trace["zmin"], "vmax": trace["zmax"], "cmap": "viridis"} if "zmin" in trace else {"cmap": "Blues"}
    made = axis.pcolormesh(np.arange(z.shape[1]), np.arange(z.shape[0]), z, shading="nearest", **limits)
    if len(y) and z.shape[0] <= 20:
        axis.set_yticks(np.arange(z.shape[0]), [escape_dollars(str(v)) for v in y])
    return made
