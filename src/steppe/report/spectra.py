"""Charts of the densities of the Hessian's eigenvalues, of the whole and of its blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from steppe.report.charts import Chart, Panel, draw_band, draw_line, make_axis
from steppe.report.comparison import Comparison, DensityCurve, Group

BANDS = "Of the first analysed seed; bands are one standard error over probes."


def draw_density(c: Comparison) -> Panel | None:
    """Draw the density of the whole Hessian, all algorithms in one chart."""
    chart = _draw_chart(c, "", "", 320)
    return Panel([chart], f"{chart.words} {BANDS}", 1, True) if chart else None


def draw_block_densities(c: Comparison) -> Panel | None:
    """Draw the same for every layer, the head and the body, a chart each."""
    names = dict.fromkeys(name for run in c.runs for name in run.densities if name)
    charts = [chart for name in names if (chart := _draw_chart(c, name, name, 220)) is not None]
    return Panel(charts, f"{' '.join(ch.words for ch in charts)} {BANDS}", legend=True) if charts else None


def _draw_chart(c: Comparison, block: str, title: str, height: int) -> Chart | None:
    """Draw one density; its axis is logarithmic, because the bulk at 0 is tall and the outliers are few."""
    found = [(place, g, d) for place, g in enumerate(c.groups) if (d := g.find_density(block)) is not None]
    if not found:
        return None
    floor = 0.3 * min(d.one for _, _, d in found)  # so that a single eigenvalue is visible
    traces = [trace for place, g, d in found for trace in _draw_traces(place, g, d, floor)]
    top = max(v for t in traces for v in t["y"] if v)
    ranges = "; ".join(f"{g.label} from {d.ends[0]:.3g} to {d.ends[1]:.3g}" for _, g, d in found)
    layout = {"xaxis": make_axis("eigenvalue λ"),
              "yaxis": make_axis("density", type="log",
                                 range=[np.log10(floor), float(np.log10(top)) + 0.1])}  # fmt: skip
    whose = f"eigenvalues in {title}" if title else "Hessian's eigenvalues"
    return Chart(title, traces, layout, f"Density of the {whose}: {ranges}.", height)


def _draw_traces(place: int, g: Group, d: DensityCurve, floor: float) -> list[dict[str, Any]]:
    low, high = np.maximum(d.density - d.error, floor), np.maximum(d.density + d.error, floor)
    visible = np.where(d.density > floor, d.density, np.nan)
    seen = high > floor  # most of a spectrum is empty: only the places next to something are kept
    kept = seen | np.append(seen[1:], False) | np.append(False, seen[:-1])
    return [draw_band(place, d.grid[kept], low[kept], high[kept], digits=4),
            draw_line(g.label, place, d.grid[kept], visible[kept], "%{y:.2g} at λ = %{x:.3g}", width=1.8,
                      digits=4)]  # fmt: skip
