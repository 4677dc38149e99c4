"""Charts of the loss around models: surfaces, contours and lines, of the federation and of its clients.

All charts of one kind share one scale, so that a flat basin looks flat next to a sharp one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steppe.flatness.landscape import Landscape
from steppe.report.charts import Chart, Panel, choose_ticks, draw_line, list_values, make_axis
from steppe.report.comparison import Comparison, Group, Run
from steppe.report.formats import capitalize
from steppe.report.measure_tables import OWN_DATA

TITLES = {
    "landscape": "Along the two largest eigenvectors of the Hessian",
    "landscape_clients": "Clients' losses over the same plane",
    "landscape_random": "Along two random directions, normalised filter by filter",
    "landscape_random_clients": "Clients' losses along the same random directions",
    "plane": "Through the global model and two clients'",
    "plane_runs": "Through the models of three runs",
    "lines": "Along single directions",
    "line": "From the initial model to the final one",
    "line_runs": "From one run's model to another's",
    "line_clients": "From the global model to the clients'",
}
MOST = 10  # clients that are shown


class Found(NamedTuple):
    """One algorithm's landscapes of one measure."""

    place: int
    group: Group
    run: Run
    lands: dict[str, Landscape]

    @property
    def only(self) -> Landscape:
        return next(iter(self.lands.values()))

    @property
    def title(self) -> str:
        return self.group.label if self.group.seeds == 1 else f"{self.group.label}, seed {self.run.seed}"


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
        return choose_ticks(self.low, self.high, self.log)

    @property
    def description(self) -> str:
        return f"One {'logarithmic ' if self.log else ''}colour scale for all."


def draw_landscapes(c: Comparison) -> dict[str, list[Panel]]:
    """Draw, by measure, planes as surfaces and as contours, or lines."""
    made = {}
    for name in TITLES:
        found = [
            Found(place, g, *one) for place, g in enumerate(c.groups) if (one := g.find_landscapes(name)) is not None
        ]
        if not found:
            continue
        if name.endswith("_clients"):
            made[name] = [_draw_client_lines(found)] if name == "line_clients" else _draw_client_planes(found)
        elif name == "lines":
            made[name] = [_draw_directions(found)]
        else:
            made[name] = [_draw_between(found)] if found[0].only.values.ndim == 1 else _draw_planes(found)
    return made


# ---------------------------------------------------------------------------------------------------------- lines
def _draw_line(label: str, place: int, land: Landscape, role: str = "line", width: float = 2.0) -> dict[str, Any]:
    return draw_line(label, place, land.axes[0], land.values, "%{y:.3g}", role, width)


def _draw_between(found: list[Found]) -> Panel:
    """Draw the loss from a model at 0 to another at 1, a line per algorithm."""
    ends = [", ".join(dict.fromkeys(list(f.only.marks)[i] for f in found)) for i in (0, 1)]
    layout = {"xaxis": make_axis(f"0: {ends[0]}, 1: {ends[1]}"), "yaxis": make_axis("loss"), "hovermode": "x unified"}
    ranges = "; ".join(_describe_range(f.group.label, f.only) for f in found)
    words = f"Loss on the line from {ends[0]} to {ends[1]}: {ranges}."
    chart = Chart("", [_draw_line(f.group.label, f.place, f.only) for f in found], layout, words)
    return Panel([chart], f"{words} {_describe_sample(found)}", 1, True)


def _draw_directions(found: list[Found]) -> Panel:
    charts = []
    for key in dict.fromkeys(key for f in found for key in f.lands):
        those = [f for f in found if key in f.lands]
        title = key.replace("-", " ").replace("random", "random direction")
        words = f"Loss along {title}: {'; '.join(_describe_range(f.group.label, f.lands[key]) for f in those)}."
        layout = {"xaxis": make_axis(_name_unit(those[0].lands[key].kind)), "yaxis": make_axis("loss"),
                  "hovermode": "x unified"}  # fmt: skip
        lines = [_draw_line(f.group.label, f.place, f.lands[key]) for f in those]
        charts.append(Chart(capitalize(title), lines, layout, words, 240))
    return Panel(charts, f"{' '.join(ch.words for ch in charts)} {_describe_sample(found)}", legend=True)


def _draw_client_lines(found: list[Found]) -> Panel:
    """Draw a chart per algorithm: thin lines are clients, the thick one is their mean; one scale for all."""
    every = np.concatenate([land.values for f in found for land in f.lands.values()])
    every = every[np.isfinite(every)]
    room = 0.05 * float(np.ptp(every)) if len(every) else 0.0
    span = [float(every.min()) - room, float(every.max()) + room] if len(every) else None
    charts, means = [], []
    for f in found:
        lands = list(f.lands.values())
        traces = [_draw_line(key.replace("-", " "), f.place, land, "faint", 1) for key, land in f.lands.items()]
        mean = Landscape(np.mean([land.values for land in lands], 0), lands[0].axes, lands[0].directions, "line", "")
        traces.append(_draw_line("mean", f.place, mean, width=3))
        at = {place: float(np.interp(place, mean.axes[0], mean.values)) for place in (0.0, 1.0)}
        words = f"{f.title}: mean loss {at[0.0]:.3g} at the global model, {at[1.0]:.3g} at {len(lands)} clients'"
        scale = {"range": span} if span else {}
        layout = {"xaxis": make_axis("0: global, 1: client"), "yaxis": make_axis("loss", **scale)}
        charts.append(Chart(f.title, traces, layout, f"{words}.", 280))
        means.append(words)
    caption = f"Thin lines are clients, the thick one is their mean. {'; '.join(means)}. {_describe_sample(found)}"
    return Panel(charts, caption)


# --------------------------------------------------------------------------------------------------------- planes
def _make_grid(land: Landscape, heights: Heights) -> dict[str, Any]:
    z = heights(land.values)
    return {"x": list_values(land.axes[0]), "y": list_values(land.axes[1]),
            "z": [list_values(row) for row in z.T],  # rows follow y
            "log": heights.log, "hover": "loss %{z:.3g}"}  # fmt: skip


def _draw_contour(title: str, land: Landscape, heights: Heights, small: bool = False) -> Chart:
    a, b = land.axes
    marks = land.marks or ({"model": [0.0, 0.0]} if a[0] <= 0 <= a[-1] and b[0] <= 0 <= b[-1] else {})
    size = (heights.high - heights.low) / 14
    flat = {"type": "contour", **_make_grid(land, heights), "zmin": heights.low, "zmax": heights.high,
            "contours": {"start": heights.low, "end": heights.high, "size": size}}  # fmt: skip
    dots = {"type": "scatter", "mode": "markers+text" if land.marks else "markers",
            "x": [m[0] for m in marks.values()], "y": [m[1] for m in marks.values()], "text": list(marks),
            "textposition": _place_names(marks, a)}  # fmt: skip
    x, y = ("", "") if small else (_name_direction(land, 1), _name_direction(land, 2))
    few: dict[str, Any] = {"nticks": 3} if small else {}
    layout = {"xaxis": make_axis(x, range=[float(a[0]), float(a[-1])], **few),
              "yaxis": make_axis(y, range=[float(b[0]), float(b[-1])], **few)}  # fmt: skip
    return Chart(title, [flat, dots], layout, f"Loss around the model, {_describe_range(title, land)}.", None)


def _place_names(marks: dict[str, list[float]], axis: np.ndarray) -> list[str]:
    """Choose where each model's name stands: inside the map, where white is readable, the second one below.

    >>> _place_names({"global": [0.0, 0.0], "client 1": [3.0, 0.0], "client 2": [1.4, 2.0]}, np.linspace(-1.0, 4.0, 5))
    ['top right', 'bottom left', 'top center']
    """
    third = (axis[-1] - axis[0]) / 3
    sides = ["right" if x < axis[0] + third else "left" if x > axis[-1] - third else "center"
             for x, *_ in marks.values()]  # fmt: skip
    return [f"{'bottom' if i == 1 else 'top'} {side}" for i, side in enumerate(sides)]


def _draw_surface(title: str, land: Landscape, heights: Heights) -> Chart:
    lines = {"start": heights.low, "end": heights.high, "size": (heights.high - heights.low) / 14}
    solid = {"type": "surface", **_make_grid(land, heights), "cmin": heights.low, "cmax": heights.high,
             "contours": {"z": lines}}  # fmt: skip
    layout = {"scene": {"xaxis": make_axis(_name_direction(land, 1)), "yaxis": make_axis(_name_direction(land, 2))}}
    return Chart(title, [solid], layout, f"Loss around the model, {_describe_range(title, land)}.", None)


def _draw_planes(found: list[Found]) -> list[Panel]:
    heights = Heights.of([f.only.values for f in found])
    ranges = "; ".join(_describe_range(f.group.label, f.only) for f in found)
    bar: dict[str, Any] = {"bar": heights.ticks, "bar_name": "loss"}
    above = (f"Height and colour are the loss. Drag to rotate; all surfaces turn together. {heights.description} "
             f"Losses: {ranges}. {_describe_sample(found)}")  # fmt: skip
    crosses = "crosses are the models" if found[0].only.marks else "the cross is the final model"
    below = f"The same planes from above; {crosses}. Axes: {_name_unit(found[0].only.kind)}. Losses: {ranges}."
    return [Panel([_draw_surface(f.title, f.only, heights) for f in found], above, screen_only=True, **bar),
            Panel([_draw_contour(f.title, f.only, heights) for f in found], below, **bar)]  # fmt: skip


def _draw_client_planes(found: list[Found]) -> list[Panel]:
    """Draw a panel per algorithm, with a small map per client."""
    heights = Heights.of([land.values for f in found for land in f.lands.values()])
    panels = []
    for f in found:
        shown = dict(list(f.lands.items())[:MOST])
        charts = [_draw_contour(key.replace("-", " "), land, heights, small=True) for key, land in shown.items()]
        some = f" The first {MOST} of {len(f.lands)} clients." if len(f.lands) > MOST else ""
        ranges = "; ".join(_describe_range(key.replace("-", " "), land) for key, land in shown.items())
        caption = f"{f.title}: each client's loss over {OWN_DATA}, {ranges}.{some} {heights.description}"
        names = [(_name_direction(land, 1), _name_direction(land, 2)) for land in shown.values()]
        panels.append(Panel(charts, caption, columns=5, bar=heights.ticks, bar_name=f"{f.title}: loss",
                            outer=names[0]))  # fmt: skip
    return panels


# ---------------------------------------------------------------------------------------------------------- words
def _describe_range(label: str, land: Landscape) -> str:
    finite = land.values[np.isfinite(land.values)]
    if not len(finite):
        return f"{label}: no finite loss"
    return f"{label} from {finite.min():.3g} to {finite.max():.3g}"


def _name_direction(land: Landscape, which: int) -> str:
    kinds = {"eigenvectors": f"eigenvector {which}", "random": f"random direction {which}"}
    return kinds.get(land.kind, f"direction {which}")


def _name_unit(kind: str) -> str:
    """Name the unit of an axis: eigenvectors and the directions of a plane have length 1, random ones the filters'.

    >>> _name_unit("eigenvectors"), _name_unit("random")
    ('distance', "multiples of each filter's norm")
    """
    return "multiples of each filter's norm" if kind == "random" else "distance"


def _describe_sample(found: list[Found]) -> str:
    samples = dict.fromkeys(land.sample for f in found for land in f.lands.values())
    return f"Loss on {' and on '.join(samples)}, of the first analysed seed of each algorithm."
