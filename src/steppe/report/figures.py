"""Figures as files: the curves of runs, and everything that a report draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from steppe.report import charts
from steppe.report.records import Comparison

# Distinguishable in print and for colour-blind readers; the dashes go on when the colours run out.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B"]
DASHES = ["-", "--", ":", "-."]
Histories = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # label -> seeds -> records


def curves(histories: Histories, path: Path, title: str = "", metric: str = "accuracy") -> None:
    """Test metric and test loss over rounds: the mean over seeds, and a band of one standard deviation."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for place, (label, seeds) in enumerate(histories.items()):
        style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}
        for axis, key in zip(axes, ("accuracy", "loss"), strict=True):
            rounds, values = _together(seeds, key)
            if len(rounds) == 0:
                continue
            mean, spread = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0 * values[0]
            axis.plot(rounds, mean, label=label, linewidth=1.8, **style)
            if len(values) > 1:
                axis.fill_between(rounds, mean - spread, mean + spread, color=style["color"], alpha=0.18, linewidth=0)
    for axis, name in zip(axes, (f"test {metric}", "test loss"), strict=True):
        axis.set_xlabel("round")
        axis.set_ylabel(name)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    if axes[0].lines:  # a run of no rounds has nothing to tell apart
        axes[0].legend(frameon=False, fontsize=8, ncols=1 + len(histories) // 9)
    if title:
        figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _together(seeds: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds that all seeds have, and their values: (rounds,), (seeds, rounds)."""
    found = [{r["round"]: r[key] for r in records if key in r} for records in seeds]
    common = sorted(set.intersection(*(set(f) for f in found))) if found else []
    return np.array(common), np.array([[f[t] for t in common] for f in found])


def all_figures(c: Comparison, where: Path, ending: str) -> list[Path]:
    """Every figure of a report as a file; those without data are left out."""
    where.mkdir(parents=True, exist_ok=True)
    written = []

    def save(figure: Any, name: str) -> None:
        written.append(where / f"{name}.{ending}")
        figure.savefig(written[-1], dpi=150)
        plt.close(figure)

    written.append(where / f"curves.{ending}")
    curves({g.label: [r.records for r in g.runs] for g in c.groups}, written[-1], metric=c.metric.name)
    save(_budgets(c), "budgets")
    for i, split in enumerate(c.partitions.values()):
        if split.hash in c.labels:
            counts, _ = c.labels[split.hash]
            save(_partition(counts, f"{split.rule}, seed {split.seed}"), f"partition{i + 1 if i else ''}")
    panels = charts.classes(c)
    if panels and panels.charts[0].traces[0]["type"] == "scatter":
        save(_classes(panels.charts, c), "classes")
    for name, made in (("density", _density(c)), ("landscapes", _landscapes(c))):
        if made is not None:
            save(made, name)
    return written


def _style(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def _plain(axis: Any, x: str = "", y: str = "") -> None:
    axis.set(xlabel=x, ylabel=y)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _budgets(c: Comparison) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    times = 100 if c.metric.percent else 1
    for axis, against, scale in zip(axes, ("bytes", "gradients"), (2**20, 1), strict=True):
        for place, g in enumerate(c.groups):
            curve = g.curve("accuracy", against)  # type: ignore[arg-type]
            if curve is None:
                continue
            x, low, high = curve.x / scale, curve.mean - curve.spread, curve.mean + curve.spread
            axis.plot(x, times * curve.mean, label=g.label, linewidth=1.8, **_style(place))
            axis.fill_between(x, times * low, times * high, color=_style(place)["color"], alpha=0.18, linewidth=0)
    _plain(axes[0], "traffic of all clients (MiB)", f"test {c.metric.name}{c.metric.unit and ' (%)'}")
    _plain(axes[1], "batch gradients of all clients")
    axes[0].legend(frameon=False, fontsize=8, ncols=1 + len(c.groups) // 9)
    return figure


def _partition(counts: np.ndarray, title: str) -> Any:
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    drawn = axis.imshow(counts.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
    axis.set(xlabel="client", ylabel="class", title=title)
    figure.colorbar(drawn, label="samples")
    return figure


def _classes(panels: list[charts.Chart], c: Comparison) -> Any:
    rows = -(-len(panels) // 5)
    figure, axes = plt.subplots(rows, 5, figsize=(11, 1.9 * rows), layout="constrained", sharex=True, sharey=True,
                                squeeze=False)  # fmt: skip
    for axis, panel in zip(axes.flat, panels, strict=False):
        for trace in panel.traces:
            axis.plot(trace["x"], trace["y"], linewidth=1.3, label=trace["name"], **_style(trace["meta"]["series"]))
        axis.set_title(panel.title, fontsize=9)
        _plain(axis)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("test accuracy (%)", fontsize=10)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(6, len(c.groups)), frameon=False, fontsize=8)
    return figure


def _density(c: Comparison) -> Any:
    panel = charts.density(c)
    if panel is None:
        return None
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    for trace in panel.charts[0].traces:
        style = _style(trace["meta"]["series"])
        if trace["meta"]["role"] == "band":
            axis.fill(trace["x"], trace["y"], color=style["color"], alpha=0.18, linewidth=0)
        else:
            axis.plot(trace["x"], np.array(trace["y"], float), label=trace["name"], linewidth=1.5, **style)
    _plain(axis, "eigenvalue λ", "density")
    axis.set_yscale("log")
    axis.legend(frameon=False, fontsize=8)
    return figure


def _landscapes(c: Comparison) -> Any:
    every = [(g, one[1]) for g in c.groups if (one := g.landscape("landscape")) is not None]
    found = [(g, land) for g, land in every if land.values.ndim == 2]
    if not found:
        return None
    heights = charts.Heights.of([land.values for _, land in found])
    columns, rows = min(4, len(found)), -(-len(found) // 4)
    figure, axes = plt.subplots(rows, columns, figsize=(3 * columns + 0.8, 3 * rows), layout="constrained",
                                squeeze=False)  # fmt: skip
    levels = np.linspace(heights.low, heights.high, 16)
    for axis, (g, land) in zip(axes.flat, found, strict=False):
        z = np.ma.masked_invalid(heights(land.values.T))
        drawn = axis.contourf(land.axes[0], land.axes[1], z, levels=levels, cmap="viridis")
        axis.plot(0, 0, "+", color="white", markersize=9)
        axis.set(title=g.label, aspect="equal")
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    bar = figure.colorbar(drawn, ax=axes, label="loss", shrink=0.8)
    bar.set_ticks([heights.low + at * (heights.high - heights.low) for at, _ in heights.ticks])
    bar.set_ticklabels([text for _, text in heights.ticks])
    return figure
