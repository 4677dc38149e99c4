"""The densities of the Hessian's eigenvalues, of the whole and of its blocks, as figures."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from steppe.report.charts import DASHES, Chart, Panel, numbers, titled
from steppe.report.comparison import Comparison, DensityCurve, Group

BANDS = "Of the first analysed seed; bands are one standard error over probes."


def density(c: Comparison) -> Panel | None:
    """All algorithms on one pair of axes."""
    chart = _chart(c, "", "", 320)
    return Panel([chart], f"{chart.words} {BANDS}", 1, True) if chart else None


def of_blocks(c: Comparison) -> Panel | None:
    """The same, a chart for every layer, the head and the body."""
    names = dict.fromkeys(name for run in c.runs for name in run.densities if name)
    charts = [chart for name in names if (chart := _chart(c, name, name, 220)) is not None]
    return Panel(charts, f"{' '.join(ch.words for ch in charts)} {BANDS}", legend=True) if charts else None


def _chart(c: Comparison, block: str, title: str, height: int) -> Chart | None:
    """The bulk at 0 is tall and the outliers are few, hence the logarithm."""
    found = [(place, g, d) for place, g in enumerate(c.groups) if (d := g.density(block)) is not None]
    if not found:
        return None
    floor = 0.3 * min(d.one for _, _, d in found)  # a single eigenvalue is seen
    traces = [trace for place, g, d in found for trace in _traces(place, g, d, floor)]
    top = max(v for t in traces for v in t["y"] if v)
    told = "; ".join(f"{g.label} from {d.ends[0]:.3g} to {d.ends[1]:.3g}" for _, g, d in found)
    layout = {"xaxis": titled("eigenvalue λ", zeroline=True),
              "yaxis": titled("density", type="log", range=[np.log10(floor), float(np.log10(top)) + 0.1],
                              exponentformat="power", dtick=1)}  # fmt: skip
    whose = f"eigenvalues in {title}" if title else "Hessian's eigenvalues"
    return Chart(title, traces, layout, f"Density of the {whose}: {told}.", height)


def _traces(place: int, g: Group, d: DensityCurve, floor: float) -> list[dict[str, Any]]:
    x = numbers(d.grid)
    low, high = np.maximum(d.density - d.error, floor), np.maximum(d.density + d.error, floor)
    band = {"type": "scatter", "x": x + x[::-1], "y": [*numbers(high), *reversed(numbers(low))], "fill": "toself",
            "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip",
            "meta": {"series": place, "role": "band"}}  # fmt: skip
    line = {"type": "scatter", "mode": "lines", "name": g.label, "x": x,
            "y": numbers(np.where(d.density > floor, d.density, np.nan)),
            "line": {"width": 1.8, "dash": DASHES[place // 8 % len(DASHES)]}, "meta": {"series": place, "role": "line"},
            "hovertemplate": escape(g.label) + ": %{y:.2g} at λ = %{x:.3g}<extra></extra>"}  # fmt: skip
    return [band, line]
