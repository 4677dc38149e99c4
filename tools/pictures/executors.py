"""Draw how five unequal clients of a round are trained by each executor: python -m tools.pictures.executors"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.pictures.drawing import INK, PICTURES, save, start

STEPS = [7, 5, 4, 3, 1]  # of each client of the round
COLOURS = ["#4e9f8b", "#e0a84e", "#6d92c4", "#c96f5b", "#8d7ab8"]


def play_sequentially() -> list[list[tuple[int, int]]]:
    """Play one client after the other: a lane of (client, steps)."""
    return [list(enumerate(STEPS))]


def play_in_workers(count: int) -> list[list[tuple[int, int]]]:
    """Let each process take the next client when it is free."""
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for client, steps in enumerate(STEPS):
        min(lanes, key=lambda lane: sum(n for _, n in lane)).append((client, steps))
    return lanes


def play_batched() -> list[list[tuple[int, int]]]:
    """Play all clients at once, longest first; a client that has finished leaves the batch."""
    return [[(client, steps)] for client, steps in sorted(enumerate(STEPS), key=lambda one: -one[1])]


def play_captured(width: int) -> list[list[tuple[int, int]]]:
    """Fill lanes of equal length one after the other; a client that does not fit continues in the next lane."""
    length = max(-(-sum(STEPS) // width), max(STEPS))
    lanes: list[list[tuple[int, int]]] = [[]]
    for client, steps in enumerate(STEPS):
        room = length - sum(n for _, n in lanes[-1])
        lanes[-1] += [(client, min(steps, room))] if room else []
        if steps > room:
            lanes.append([(client, steps - room)])
    return lanes


KINDS = [
    ("sequential: one process, one client after the other", play_sequentially()),
    ("workers: one process per core", play_in_workers(2)),
    ("batched: all clients in one program, shrinking as they finish", play_batched()),
    ("captured: lanes of a CUDA graph that end together", play_captured(3)),
]


def draw(folder: Path = PICTURES) -> Path:
    figure, _ = start(10, 4.6)
    ratios = [len(lanes) + 0.4 for _, lanes in KINDS]
    every: Any = figure.subplots(len(KINDS), 1, sharex=True, gridspec_kw={"height_ratios": ratios})
    for axes, (title, lanes) in zip(every, KINDS, strict=True):
        for row, lane in enumerate(lanes):
            at = 0
            for client, steps in lane:
                for k in range(steps):
                    axes.barh(row, 0.92, left=at + k, color=COLOURS[client], height=0.8)
                axes.text(at + 0.46, row, "ABCDE"[client], ha="center", va="center", color="white", weight="bold")
                at += steps
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(yticks=[], ylim=(len(lanes) - 0.4, -0.6))
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="x", colors=INK)
    every[-1].set_xlabel(
        "time, in steps (a batched step takes longer than a single one, but far less than all of them)"
    )
    return save(figure, "executors", folder)


if __name__ == "__main__":
    print(draw())
