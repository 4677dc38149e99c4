"""The curves of runs over their rounds, on axes of matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steppe.core.atomic_write import save_figure
from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.core.metric import Metric
from steppe.runs.records import Record, tabulate

# Distinguishable in print and for colour-blind readers; dashes follow when the colours run out.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B"]
DASHES = ["-", "--", ":", "-."]
Histories = Mapping[str, Sequence[Sequence[Record]]]  # label -> seeds -> records


class Curve(NamedTuple):
    """A number of every round's record, its title, and whether it is a share."""

    key: str
    title: str
    percent: bool = False


def list_curves(metrics: Sequence[Metric], judged_on: str) -> list[Curve]:
    """Return what is drawn of a run unless asked otherwise: the main metric, the loss, the further metrics."""
    main, *others = (_make_curve(judged_on, m.name, m) for m in metrics)
    return [main, Curve("loss", f"{judged_on} loss"), *others]


def find_curves(histories: Histories, names: Sequence[str], metrics: Sequence[Metric], judged_on: str) -> list[Curve]:
    """Return what is drawn of runs: numbers by name (a metric, or any column of rounds.csv), or what is usual."""
    usual = list_curves(metrics, judged_on)
    if not names:
        return usual
    known = {curve.key: curve for curve in usual}
    known |= {f"validation_{m.name}": _make_curve("validation", f"validation_{m.name}", m) for m in metrics}
    rows = [row for seeds in histories.values() for records in seeds for row in tabulate(records)]
    there = {key for row in rows for key, value in row.items() if isinstance(value, int | float)} - {"round"}
    for name in names:
        if name not in there:
            raise SteppeError(f"The runs have no number {quote(name)} to draw{suggest_name(name, there)}")
    return [known.get(name, Curve(name, name)) for name in names]


def _make_curve(data: str, key: str, metric: Metric) -> Curve:
    return Curve(key, f"{data} {metric.heading}", metric.percent)


def plot_histories(axes: Sequence[Any], histories: Histories, shown: Sequence[Curve]) -> None:
    """Plot curves over rounds, one per axis: the mean over seeds, and a band of one deviation."""
    for place, (label, seeds) in enumerate(histories.items()):
        style = choose_style(place)
        for axis, one in zip(axes, shown, strict=True):
            rounds, values = align_seeds([{r["round"]: r.get(one.key) for r in tabulate(several)} for several in seeds])
            values = values * (100 if one.percent else 1)
            if len(rounds) == 0:
                continue
            mean, spread = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0 * values[0]
            axis.plot(rounds, mean, label=escape_dollars(label), linewidth=1.8, **style)
            if len(values) > 1:
                axis.fill_between(rounds, mean - spread, mean + spread, color=style["color"], alpha=0.18, linewidth=0)
    for axis, one in zip(axes, shown, strict=True):
        axis.set_xlabel("round")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel(one.title)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    if axes[0].lines:  # a run of no rounds has nothing to tell apart
        axes[0].legend(frameon=False, fontsize=8, ncols=1 + len(histories) // 9)


def choose_style(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def escape_dollars(text: str) -> str:
    """Escape dollars, which would begin a formula."""
    return text.replace("$", r"\$")


def align_seeds(seeds: Sequence[Mapping[int, float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds in which all seeds have a value, and the values: (rounds,), (seeds, rounds)."""
    known = [{t: v for t, v in values.items() if v is not None} for values in seeds]
    rounds = sorted(set.intersection(*map(set, known))) if known else []
    return np.array(rounds), np.array([[values[t] for t in rounds] for values in known], float)


def plot_curves(histories: Histories, shown: Sequence[Curve], path: str | Path | None) -> Any:
    """Plot curves in one figure, side by side; see `draw_figure`."""

    def draw(figure: Any) -> Any:
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        plot_histories(axes, histories, shown)
        return axes

    return draw_figure(draw, (5.5 * len(shown), 4.2), path)


def draw_figure(draw: Callable[[Any], Any], size: tuple[float, float], path: str | Path | None) -> Any:
    """Let `draw` fill a figure, and return its axes; with a path, write a picture, otherwise leave it to pyplot."""
    if path is None:
        from matplotlib import pyplot  # a notebook shows its figures; in a script, pyplot.show() does

        return draw(pyplot.figure(figsize=size, layout="constrained"))
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = draw(figure)
    try:
        save_figure(figure, path, dpi=130)
    except (OSError, ValueError) as error:
        raise SteppeError(f"{path} cannot be written as a picture: {error}") from None
    return axes
