"""Boxes, arrows and files in one style, for the pictures of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
INK, TEAL, SAND, ROSE, SKY, GREY = "#22313a", "#b9dcd4", "#f3e3c0", "#f4cdc3", "#cfe0f3", "#e6e9ea"
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "steppe", "font.size": 10, "font.family": "sans-serif",
         "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
         "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip


def start(width: float, height: float, units: tuple[float, float] | None = None) -> tuple[Figure, Any]:
    """Return a figure and, if `units` are given, axes without frame that reach from 0 to them."""
    mpl.rcParams.update(STYLE)
    figure = Figure((width, height), layout="constrained" if units is None else None)
    if units is None:
        return figure, None
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, units[0]), ylim=(0, units[1]))
    axes.axis("off")
    return figure, axes


def box(axes: Any, x: float, y: float, width: float, height: float, colour: str, text: str = "", **how: Any) -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=colour, ec=INK, lw=0.8)
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", **how)


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], text: str = "", **how: Any) -> None:
    style = {"arrowstyle": "->", "color": INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 0, **how.pop("arrow", {})}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    if text:
        axes.annotate(text, middle, xytext=how.pop("shift", (0, 5)), textcoords="offset points", ha="center", **how)


def save(figure: Figure, name: str, folder: Path = PICTURES) -> Path:
    """Write a picture that is the same for the same drawing: no date, no random ids, text as text."""
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    return path
