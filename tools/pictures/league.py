"""Draw by how much ours is ahead of each tuned method of the league, from the rows: python -m tools.pictures.league"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.pictures.drawing import INK, PICTURES, save, start

from steppe.report.seeds import pair_differences
from steppe.reproduce import league, league_runs, rows
from steppe.reproduce.factorial import ENOUGH
from steppe.reproduce.intervals import estimate

AHEAD, BEHIND, OPEN = "#00796b", "#c2543d", "#77858c"
Leads = dict[str, list[float]]  # by method, the points by which ours is ahead in each block


def find_leads(known: list[rows.Row]) -> tuple[str, dict[str, Leads]]:
    """Return the title of ours, and its leads in each column that has any, the largest first."""
    ours, standings = league.choose_ours(known), league_runs.find_standings(known)
    assert ours is not None
    untuned = {a.id for a in league.list_arms() if a.like}
    found = {}
    for column in league.read_league()["column"]:
        here = {f["arm"]: f for f in standings if f["column"] == column["id"] and f["mean"]}
        others = [f for f in here.values() if not f["ours"] and f["arm"] not in untuned] if ours.id in here else []
        leads = {f["title"]: pair_differences(here[ours.id]["mean"], f["mean"]) for f in others}
        found[column["title"]] = dict(sorted(leads.items(), key=lambda lead: -sum(lead[1]) / len(lead[1])))
    return ours.title, {title: leads for title, leads in found.items() if leads}


def draw_leads(axes: Any, leads: Leads) -> None:
    """Draw each block as a ring, and the mean of all with its interval in the colour of the outcome."""
    axes.axvline(0, color=INK, lw=0.8)
    for y, points in enumerate(leads.values()):
        mean = estimate(points)
        assert mean is not None
        decided = mean.excludes_zero and mean.count >= ENOUGH
        colour = OPEN if not decided else AHEAD if mean.mean > 0 else BEHIND
        axes.plot(points, [y] * len(points), "o", mfc="none", mec=colour, ms=5, alpha=0.7)
        axes.errorbar(mean.mean, y, xerr=mean.half, fmt="s", color=colour, capsize=3, ms=6)
        width = "" if mean.half is None else f" ± {mean.half:.1f}"
        text = f"{mean.mean:+.1f}{width}, {mean.count} block{'s' if mean.count > 1 else ''}".replace("-", "−")
        axes.text(1.01, y, text, transform=axes.get_yaxis_transform(), va="center", color=colour)
    axes.set_yticks(range(len(leads)), list(leads))
    axes.set_ylim(len(leads) - 0.5, -0.5)


def draw(folder: Path = PICTURES) -> Path:
    ours, found = find_leads(rows.read_folders([rows.find_ours()]))
    heights = [len(leads) for leads in found.values()]
    figure, _ = start(9, 0.8 + 0.33 * sum(heights) + 0.45 * len(found))
    panels = figure.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (column, leads) in zip(panels[:, 0], found.items(), strict=True):
        draw_leads(axes, leads)
        axes.set_title(column, loc="left", fontsize=10, fontweight="bold")
    panels[-1, 0].set_xlabel(f"points by which {ours} is ahead (negative: behind)")
    return save(figure, "league", folder)


if __name__ == "__main__":
    print(draw())
