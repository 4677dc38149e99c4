"""Draw three partitions with the same alpha, and write their table: python -m tools.pictures.partitions"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from numpy.random import RandomState
from tools.pictures.drawing import PICTURES, save, start

from steppe.data.dirichlet_rules import Clients, dirichlet, dirichlet_replace, lda

LABELS = RandomState(1).permutation(np.repeat(np.arange(10), 5000))
CLIENTS, ALPHA, SHOWN = 100, 0.1, 30
RULES: dict[str, Callable[[], Clients]] = {
    "lda(0.1)": lambda: lda(RandomState(0), LABELS, CLIENTS, ALPHA),
    "dirichlet(0.1, 10)": lambda: dirichlet(RandomState(0), LABELS, CLIENTS, ALPHA, 10),
    "dirichlet_replace(0.1)": lambda: dirichlet_replace(RandomState(0), LABELS, CLIENTS, ALPHA),
}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "partitions.md"
BEGIN, END = "<!-- begin: python -m tools.pictures.partitions -->", "<!-- end -->"


def make_table(drawn: dict[str, Clients]) -> str:
    rows = ["| rule | samples per client: least, median, most | classes per client | share of the largest class | "
            "different samples |", "|---|---|---|---|---|"]  # fmt: skip
    for name, clients in drawn.items():
        sizes = np.array([len(c) for c in clients])
        counts = np.array([np.bincount(LABELS[c], minlength=10) for c in clients])
        used = len(np.unique(np.concatenate(clients)))
        classes, largest = (counts > 0).sum(1).mean(), (counts.max(1) / sizes).mean()
        spread = f"{sizes.min()}, {np.median(sizes):.0f}, {sizes.max()}"
        rows.append(f"| `{name}` | {spread} | {classes:.1f} | {largest:.0%} | {used:,} |")
    return "\n".join(rows)


def renew_table(page: str, drawn: dict[str, Clients]) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{make_table(drawn)}\n{END}{rest.partition(END)[2]}"


def draw(drawn: dict[str, Clients], folder: Path = PICTURES) -> Path:
    figure, _ = start(11, 4.2)
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axes, (name, clients) in zip(figure.subplots(1, len(drawn), sharey=True), drawn.items(), strict=True):
        counts = np.array([np.bincount(LABELS[c], minlength=10) for c in clients[:SHOWN]])
        left = np.zeros(SHOWN)
        for label in range(10):
            axes.barh(np.arange(SHOWN), counts[:, label], left=left, color=colours[label], height=0.85)
            left += counts[:, label]
        axes.set(title=name, xlabel="samples; one colour per class")
        axes.margins(y=0.01)
    figure.axes[0].set_ylabel(f"{SHOWN} of {CLIENTS} clients")
    figure.axes[0].set_yticks([])
    return save(figure, "partitions", folder)


if __name__ == "__main__":
    found = {name: rule() for name, rule in RULES.items()}
    print(draw(found))
    PAGE.write_text(renew_table(PAGE.read_text("utf-8"), found), "utf-8")
