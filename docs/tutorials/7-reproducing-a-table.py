# %% [markdown]
# # 7. Reproducing a table
#
# A paper prints a table. Can it be reproduced with an independent program? Steppe has the tables of several papers as *recipes*, one per
# cell, and a command that runs what is missing and compares. This page runs a small one, and then reads a real one.
#
# **You will learn**
#
# - how to run a published table at a toy scale, and why its numbers prove nothing;
# - what a row is, and why nothing is trained twice;
# - how a verdict is reached: the statistic, the band, and what "outside" means;
# - how to read misses, claims and orders.

# %% language="bash"
# steppe reproduce list

# %% [markdown]
# ## The mechanism, at a toy scale
#
# FedSoL's Table 6 has seven ablations of one method. At the scale `tiny` each keeps its algorithm, its settings and its partition rule, but
# gets the digits that are inside the package, a small network and six rounds. This takes seconds, not GPU hours:

# %% language="bash"
# steppe reproduce fedsol-table6 --scale tiny --out toy --formats md,json

# %% [markdown]
# All verdicts are *not judged*, and the last lines say why. Toy numbers show that the program runs from end to end. They say nothing about
# the paper.
#
# ## Rows
#
# Each finished run has appended one line of JSON to a file. A line contains everything that is needed to check it:

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

rows = [
    json.loads(line)
    for line in Path("toy/results/fedsol-table6.jsonl").read_text().splitlines()
]
row = rows[0]
for key in (
    "cell",
    "recipe",
    "seed",
    "rounds",
    "last",
    "mean_of_last_ten",
    "best",
    "partition",
    "hardware",
):
    print(f"{key:17} {row[key]}")
print(
    f"{'config':17} {len(row['config'])} keys, such as lr = {row['config']['lr']}, partition = {row['config']['partition']}"
)

# %% [markdown]
# `recipe` is a hash of everything that determines the training. Before a cell is run, the command looks for a row with its hash, in any table: the same
# recipe is never trained twice, and an interrupted command continues where it stopped. So the second call trains nothing:

# %% language="bash"
# steppe reproduce fedsol-table6 --scale tiny --out toy --dry-run

# %% [markdown]
# The recipe of a row can be run by hand, too. It is an ordinary configuration:

# %%
import steppe

chosen = next(r for r in rows if r["cell"].endswith("/a1"))
keys = (
    "data",
    "partition",
    "clients",
    "per_round",
    "model",
    "rounds",
    "epochs",
    "batch",
    "lr",
    "lr_decay",
    "momentum",
    "weight_decay",
    "seed",
)
again = steppe.run(
    chosen["config"]["algorithm"],
    augmentation="none",
    **{k: chosen["config"][k] for k in keys},
    **chosen["config"]["settings"],
)
print("in the row:", chosen["accuracy"])
print("by hand:   ", [round(record["accuracy"], 5) for record in again.history])

# %% tags=["check"]
assert chosen["accuracy"] == [
    round(record["accuracy"], 5) for record in again.history
]

# %% [markdown]
# ## A table at the paper's scale
#
# The rows that the project has computed on GPUs are part of the package. So this command needs no GPU: all cells of FedSoL's Table 8 have rows, and it
# only compares. (Where rows are missing, it would start to train; `--dry-run` shows what.)

# %% language="bash"
# steppe reproduce fedsol-table8 --dry-run
# steppe reproduce fedsol-table8 --out paper --formats md,json > /dev/null
# head -c 560 paper/fedsol-table8.md

# %% [markdown]
# Table 8 asks where FedSoL's perturbation should act (on all layers, on the body, on the head), for several radii ρ. This plot has the paper's
# numbers and ours:

# %%
table = json.loads(Path("paper/fedsol-table8.json").read_text())
printed = [
    cell for cell in table["cells"] if "tried_for" not in cell
]  # without the alternatives that were tried
cells = {
    cell["cell"]: cell for cell in printed if cell["row"] != "none"
}  # without FedAvg
places = list(dict.fromkeys(cell["row"] for cell in cells.values()))

figure, axes = plt.subplots(
    1, len(places), figsize=(8.5, 3.3), sharey=True, layout="constrained"
)
for axis, place in zip(axes, places):
    own = sorted(
        (float(c["column"].removeprefix("rho-")), c)
        for c in cells.values()
        if c["row"] == place
    )
    rho = np.array([r for r, _ in own])
    paper, band = (
        np.array([c["paper"]["value"] for _, c in own]),
        np.array([c["band"] for _, c in own]),
    )
    axis.fill_between(
        rho, paper - band, paper + band, alpha=0.2, color="C0", linewidth=0
    )
    axis.plot(rho, paper, "o-", color="C0", label="paper, with band")
    for r, c in own:
        axis.plot(
            r,
            c["ours"],
            "s" if c["verdict"] == "inside" else "X",
            color="C2" if c["verdict"] == "inside" else "C3",
            markersize=8,
        )
    axis.set(title=place, xlabel="ρ")
    axis.spines[["top", "right"]].set_visible(False)
axes[0].plot([], [], "s", color="C2", label="ours, inside")
axes[0].plot([], [], "X", color="C3", label="ours, outside")
axes[0].set_ylabel("accuracy (%)")
axes[0].legend(frameon=False, fontsize=8)
print(table["summary"])

# %% [markdown]
# ## How a verdict is reached
#
# - **The statistic** was fixed for each table before anything was run: here the mean of the last ten rounds, because single rounds scatter. The
#   best round is shown too, but the statistic cannot be changed afterwards.
# - **The band** is two of the paper's standard deviations, or 1.5 points if that is more. This table prints none that comes from three runs or
#   more, so the band is 1.5 points everywhere.
# - **Inside** means that the difference is at most the band; **outside** that it is more. There is no "almost inside".
# - If the paper prints 10.00 (failed), or no number, the cell is *not judged*.

# %%
judged = [cell for cell in printed if cell["verdict"] in ("inside", "outside")]
for cell in judged:
    assert (abs(cell["difference"]) <= cell["band"]) == (
        cell["verdict"] == "inside"
    )
differences = np.array([cell["difference"] for cell in judged])
print(
    f"{len(judged)} cells judged, {sum(c['verdict'] == 'inside' for c in judged)} inside; "
    f"the differences have mean {differences.mean():+.2f} and standard deviation {differences.std(ddof=1):.2f} points"
)
for cell in judged[:3]:
    print(
        f"{cell['cell']:14} paper {cell['paper']['value']:.2f}  ours {cell['ours']:.2f}  band {cell['band']:.2f}  {cell['verdict']}"
    )

# %% [markdown]
# Look at the mean of the differences: it is negative, and larger than their scatter. The cells do not miss independently; all of them, FedAvg's
# included, are shifted together. That points to something common: one draw of the partition that all cells share, and a statistic over few rounds. A
# count of "inside" alone would not have shown this.

# %% tags=["check"]
assert differences.mean() < 0 and abs(differences.mean()) > differences.std(
    ddof=1
), differences
assert all(cell["band"] == 1.5 for cell in judged)

# %% [markdown]
# ## What matters more than single cells
#
# A paper's *claim* is about an order: here, that perturbing the head alone or everything is better than perturbing the body alone. A shift that all cells share
# does not affect it:

# %%
for column in dict.fromkeys(cell["column"] for cell in cells.values()):
    ours = {
        cell["row"]: cell["ours"]
        for cell in cells.values()
        if cell["column"] == column
    }
    print(
        f"{column:8}",
        "  ".join(
            f"{place} {value:.2f}"
            for place, value in sorted(ours.items(), key=lambda item: -item[1])
        ),
    )

# %% tags=["check"]
for column in dict.fromkeys(cell["column"] for cell in cells.values()):
    ours = {
        cell["row"]: cell["ours"]
        for cell in cells.values()
        if cell["column"] == column
    }
    assert min(ours, key=ours.get) == "body", ours

# %% [markdown]
# In every column `body` is last. The page of the table begins with this: the claim, in how many of the paper's comparisons it holds in our runs, and
# by how much. Then come all cells, the rank correlations, and a line for every miss: *explained* if an alternative recipe that the table names
# is inside (the cell still counts as outside), *doubtful in print* if the paper contradicts itself, otherwise the nearest alternative that was
# tried.
#
# ## Exercises
#
# 1. `steppe reproduce fedscar-costs --out costs` needs no training at all. Why not?
# 2. Run the toy table with `--seeds 3`. How large is the scatter over seeds compared with the differences between the ablations?
# 3. Open [the page of Table 6](../reproductions/fedsol-table6.md). Three ablations broke down. What was tried, and what would you try next?
# 4. Your own paper: which statistic, how many seeds and which band would you fix in advance?
#
# ## Where to go next
#
# - [All tables and their verdicts](../reproductions.md), [the league](../league.md)
# - [Sweeps and seeds](../how-to/sweeps.md)
# - [Privacy and robust aggregation](8-privacy-and-robustness.md)
