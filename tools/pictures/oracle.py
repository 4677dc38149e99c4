"""Draw how parts compose: python -m tools.pictures.oracle

The points and directions of `oracle-geometry` are what the parts themselves return on a loss of two parameters. The
hooks of `round` are those of `steppe.Part`, with the scopes that their signatures name.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tools.pictures.drawing import GREY, INK, PICTURES, ROSE, SAND, SKY, TEAL, arrow, box, save, start
from torch import Tensor

import steppe
from steppe.core.part import Part
from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

# ---- one local step: nested oracles ----


def draw_composition(folder: Path = PICTURES) -> Path:
    """FedGAMMA from inside out, as the catalogue builds it."""
    parts = make_algorithm("fedgamma", SGD()).parts
    names = [type(p).__name__ for p in parts]
    assert names == ["SAM", "ControlVariates", "SGD"], names
    figure, axes = start(10, 4.1, (20, 8.2))
    rings = [(0.3, 0.4, 15.6, 7.4, GREY, "SGD", "w ← w − η · direction"),
             (1.5, 0.9, 13.2, 5.9, SKY, "control_variates", "direction + c − c_i"),
             (2.9, 1.4, 10.4, 4.3, TEAL, "sam", "asks at w, then at w + ρ·g/‖g‖"),
             (5.4, 1.9, 5.4, 2.0, SAND, "loss", "")]  # fmt: skip
    for x, y, width, height, colour, name, does in rings:
        box(axes, x, y, width, height, colour)
        if does:
            axes.text(x + 0.35, y + height - 0.65, name, weight="bold")
            axes.text(x + width - 0.35, y + height - 0.65, does, ha="right")
    axes.text(8.1, 2.9, "g(w) = ∇ loss of the batch", ha="center", va="center")
    arrow(axes, (3.3, 3.3), (5.4, 3.3), "w", shift=(0, 4))
    arrow(axes, (5.4, 2.9), (3.3, 2.9))
    arrow(axes, (3.3, 2.4), (5.4, 2.4), "w + ε", shift=(0, -13))
    arrow(axes, (10.8, 2.9), (19.6, 2.9))
    axes.text(17.9, 3.2, "direction", ha="center")
    axes.text(17.9, 6.4, "state of the client\nc_i", ha="center", va="center")
    axes.text(17.9, 5.0, "from the server\nc", ha="center", va="center")
    arrow(axes, (16.9, 6.3), (14.7, 5.9))
    arrow(axes, (17.3, 5.0), (14.7, 5.4))
    return save(figure, "oracle-composition", folder)


# ---- where the gradient is taken, and what is done to it ----

CURVATURE = torch.tensor([[3.0, 0.8], [0.8, 0.7]])
OWN, GLOBAL = torch.tensor([1.2, 0.4]), torch.tensor([-0.6, -0.5])  # the client's minimum, and that of all
W, X = torch.tensor([-0.55, 1.0]), torch.tensor([-0.9, 1.25])  # the client's model, and the one that it received


def gradient(w: Tensor) -> Tensor:
    return CURVATURE @ (w - OWN)


def take_direction(part: Part | None, state: dict[str, Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return what a part makes of the gradient at W, and the points at which it asked."""
    asked: list[Tensor] = []

    def oracle(w: Tensor) -> Tensor:
        asked.append(w)
        return gradient(w)

    own, towards_all = CURVATURE @ (X - OWN), CURVATURE @ (X - GLOBAL)
    s: Any = SimpleNamespace(state=state or {"c": own, "h": 0.5 * (own - towards_all)}, down={"c": towards_all},
                             start=X, x=X, round=torch.tensor(0.0), decay={})  # fmt: skip
    return (part.gradient(oracle, W, s) if part else oracle(W)), asked


def draw_geometry(folder: Path = PICTURES) -> Path:
    figure, _ = start(11, 3.2)
    cases: list[tuple[str, Part | None]] = [
        ("FedAvg: g(w)", None),
        ("FedSAM: g(w + ρ·g/‖g‖)", SAM(0.45)),
        ("SCAFFOLD: g(w) + c − c_i", ControlVariates()),
        ("FedDyn: g(w) − h_i + α(w − x)", DynamicRegularisation(0.8)),
    ]
    across, up = np.meshgrid(np.linspace(-1.5, 2.0, 80), np.linspace(-1.0, 1.9, 80))
    apart = np.stack([across, up], -1) - OWN.numpy()
    loss = np.einsum("...i,ij,...j->...", apart, CURVATURE.numpy(), apart) / 2
    for axes, (name, part) in zip(figure.subplots(1, 4, sharey=True), cases, strict=True):
        axes.contour(across, up, loss, levels=[0.1, 0.5, 1.2, 2.5, 4.5], colors="#9fb4ba", linewidths=0.8)
        direction, asked = take_direction(part)
        for point, text in ((OWN, "client's\nminimum"), (GLOBAL, "minimum\nof all"), (X, "x")):
            axes.plot(*point, "o", color="#9fb4ba", ms=4)
            axes.annotate(text, point.tolist(), xytext=(4, -3), textcoords="offset points", fontsize=7, va="top")
        axes.plot(*W, "o", color=INK, ms=5)
        axes.annotate("w", W.tolist(), xytext=(1, 6), textcoords="offset points")
        for point in asked[1:]:
            axes.plot(*point, "o", color="#c2452d", ms=5)
            axes.annotate(
                "", point.tolist(), xytext=W.tolist(), arrowprops={"arrowstyle": "->", "color": "#c2452d", "ls": "--"}
            )
        end = W - 0.28 * direction
        axes.annotate(
            "", end.tolist(), xytext=W.tolist(), arrowprops={"arrowstyle": "-|>", "color": "#0b7a63", "lw": 2}
        )
        axes.set(title=name, xticks=[], yticks=[], aspect="equal")
        axes.title.set_fontsize(9)
    return save(figure, "oracle-geometry", folder)


# ---- a round, hook by hook ----

ROUND = [  # (who, hooks in the order of a round)
    ("server", ["send", "prepare"]),
    ("client", ["receive", "start"]),
    ("step", ["observe", "penalty", "gradient"]),
    ("client", ["finish", "shrink"]),
    ("server", ["screen", "reduce"]),
    ("server", ["server", "settle"]),
    ("server", ["evaluated"]),
]
COLOURS = {"ServerTurn": SAND, "ClientRound": TEAL, "LocalStep": SKY, "Aggregation": ROSE, "": GREY}


def find_scope(hook: str) -> str:
    """Return the scope that a hook of `steppe.Part` is given, from its signature."""
    taken = inspect.signature(getattr(steppe.Part, hook)).parameters
    return str(taken["s"].annotation) if "s" in taken else ""


def draw_round(folder: Path = PICTURES) -> Path:
    figure, axes = start(11, 4.0, (22, 8))
    lanes = {"server": 5.5, "client": 2.6, "step": 2.6}
    axes.axhline(4.75, color=INK, lw=0.8, ls=":")
    axes.text(0.2, 7.4, "server", weight="bold")
    axes.text(0.2, 0.5, "each client", weight="bold")
    x = 0.4
    for who, hooks in ROUND:
        if who == "step":
            box(axes, x - 0.2, 0.9, 3.1, 3.5, "none")
            axes.text(x + 1.35, 1.05, "repeated: K local steps", ha="center", fontsize=8)
        width = 2.7
        for i, hook in enumerate(hooks):
            y = lanes[who] - 0.95 * i + (0.75 if who == "step" else 0.4)
            box(axes, x, y, width, 0.75, COLOURS[find_scope(hook)], hook, family="monospace")
        x += width + 0.4
    arrow(axes, (1.8, 4.9), (4.2, 3.9), arrow={"lw": 1.6})
    axes.text(1.2, 4.15, "x, down", ha="center", fontsize=9)
    arrow(axes, (11.7, 3.9), (13.3, 4.9), arrow={"lw": 1.6})
    axes.text(14.0, 4.2, "update, up", ha="center", fontsize=9)
    for i, (scope, colour) in enumerate(COLOURS.items()):
        box(axes, 13.4 + 4.4 * (i % 2), 2.6 - 0.85 * (i // 2), 0.6, 0.5, colour)
        axes.text(14.2 + 4.4 * (i % 2), 2.85 - 0.85 * (i // 2), scope or "norms alone", va="center", fontsize=9)
    return save(figure, "round", folder)


if __name__ == "__main__":
    for picture in (draw_composition, draw_geometry, draw_round):
        print(picture())
