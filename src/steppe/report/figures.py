"""Curves of one or several runs, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

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
