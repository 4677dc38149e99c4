# %% [markdown]
# # 2. Your own algorithm in 20 lines
#
# You have an idea for a better algorithm. This page develops one from a sentence to a report: twenty lines of code, a
# problem small enough to check by hand, a test suite that you need not write, a fair comparison, and its cost.
#
# **You will learn**
#
# - how *parts* make up an algorithm, and what a part may do;
# - how to check with two clients whether an idea does what you expect;
# - how to compare it with the published methods, and what it costs;
# - how to get from there to a page for your colleagues.
#
# ## The idea
#
# [The first tutorial](1-first-federation.md) showed client drift: a client that owns only sevens pulls the model towards
# sevens. SCAFFOLD corrects this with control variates that are sent in both directions, so a round costs twice the traffic. Is
# there a cheaper way?
#
# > Every client remembers how its own last update differed from the mean. In its next round it subtracts that difference.
#
# The client has its own last update. The server has the mean update anyway, and sends it with the model. Nothing
# more has to be *uploaded*. As an equation, with $g$ for the gradient of the client's loss, $K$ for its number of local steps,
# $\eta$ for the learning rate, $u_i$ for the update that the client remembers and $\bar u$ for the last mean:
#
# $$
# w \;\mapsto\; g(w) + \beta\,\frac{u_i - \bar u}{\eta K} .
# $$
#
# An update points *against* the gradients, hence the plus. The fraction spreads the difference over the round's steps.
#
# ## Twenty lines
#
# In Steppe a local step is always $w \leftarrow w - \eta D(w)$, and a part replaces the function $D$ with another one. The
# code therefore follows the equation above. States are declared with their initial values, and all values are flat vectors.

# %%
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch

import steppe


@dataclass(frozen=True)
class Recall(steppe.Part):
    """Subtract what set this client's last update apart from everybody's."""

    name = "recall"
    down = ("mean",)  # entries of the server's state that it sends along
    beta: float = 1.0  # a field is a setting

    def server_state(self, x):  # kept by the server
        return {"mean": torch.zeros_like(x)}

    def client_state(self, x):  # kept by every client between its rounds
        return {"own": torch.zeros_like(x)}

    def gradient(self, grad, w, s):  # the equation
        return grad(w) + self.beta * (s.state["own"] - s.down["mean"]) / (
            s.lr * s.steps
        )

    def finish(self, delta, s):  # remember the update without its correction
        s.state["own"] = delta + self.beta * (s.state["own"] - s.down["mean"])
        return delta

    def server(self, delta, s):  # delta is the mean of the clients' updates
        s.state["mean"] = delta
        return delta


steppe.run(Recall(), "mlp", partition="lda(0.1)", lr=0.1, rounds=20)

# %% [markdown]
# It runs. This does not mean that it is correct.
#
# ## Two clients that can be checked by hand
#
# `steppe.trace` runs any algorithm on quadratic losses $f_i(w) = \tfrac12 (w-b_i)^\top A_i (w-b_i)$ with exact gradients. Take
# two clients in the plane. They are steep in different directions and have different minima. The minimum of their mean
# is the solution of a small linear system:

# %%
A = np.array([[[3.0, 0.0], [0.0, 0.3]], [[0.3, 0.0], [0.0, 3.0]]])
b = np.array([[-1.0, 1.0], [1.0, -1.0]])
best = np.linalg.solve(A.sum(0), (A @ b[..., None]).sum(0)[:, 0])

problem = {
    "clients": [{"A": a.tolist(), "b": c.tolist()} for a, c in zip(A, b)],
    "x0": [1.0, 1.6],
    "rounds": [[0, 1]] * 80,
    "steps": 10,
    "lr": 0.1,
}
paths = {
    "FedAvg": steppe.trace("fedavg", problem),
    "SCAFFOLD": steppe.trace("scaffold", problem),
    "Recall": steppe.trace(Recall(), problem),
}
for name, path in paths.items():
    before, last = (np.array(r["x"]) for r in path.rounds[-2:])
    print(
        f"{name:9} ends {np.linalg.norm(last - best):.0e} from the optimum; its last round moved it by "
        f"{np.linalg.norm(last - before):.0e}"
    )

# %%
figure, axis = plt.subplots(figsize=(6, 4.2))
grid = np.stack(
    np.meshgrid(np.linspace(-1.7, 1.7, 80), np.linspace(-1.7, 1.9, 80)), -1
)
for a, c, colour in zip(A, b, ("C0", "C1")):
    axis.contour(
        *np.moveaxis(grid, -1, 0),
        np.einsum("...i,ij,...j", grid - c, a, grid - c),
        levels=6,
        colors=colour,
        alpha=0.35,
        linewidths=0.8,
    )
    axis.plot(*c, "o", color=colour)
for (name, path), colour, width in zip(
    paths.items(), ("C3", "C4", "C2"), (1.5, 6, 1.5)
):
    x = np.array([problem["x0"], *(r["x"] for r in path.rounds)])
    axis.plot(
        *x.T,
        ".-",
        color=colour,
        label=name,
        lw=width,
        alpha=0.4 if width > 2 else 1,
    )
axis.plot(*best, "*", color="C8", markersize=15, label="optimum")
axis.set(xlabel="first parameter", ylabel="second parameter")
axis.legend(frameon=False, loc="upper right")
axis.spines[["top", "right"]].set_visible(False)
# %% [markdown]
# The circles are the clients' own minima. FedAvg converges to the wrong point, and more rounds do not change that: each
# client moves most of the way to its own minimum before the models are averaged, faster along its steep direction than along
# its flat one. SCAFFOLD and Recall end at the optimum, to rounding error. Their paths even coincide: if all clients take part in every round, what
# SCAFFOLD uploads is what Recall's server can compute by itself. The two differ when only some clients take part.
#
# For Recall this can be proved in two lines, if all clients take part. The mean of what clients remember equals the server's
# $\bar u$ after every round (both are 0 at first; add the lines of `finish`). If the model no longer changes, $\bar u = 0$, every
# update is 0, and therefore $g_i = -u_i/(\eta K)$ at the global model. Their mean is 0, and that is the optimum.

# %% tags=["check"]
error = {
    name: np.linalg.norm(np.array(path.rounds[-1]["x"]) - best)
    for name, path in paths.items()
}
assert (
    error["FedAvg"] > 0.05 and error["SCAFFOLD"] < 1e-6 and error["Recall"] < 1e-6
), error
moved = {
    name: np.linalg.norm(np.subtract(path.rounds[-1]["x"], path.rounds[-2]["x"]))
    for name, path in paths.items()
}
assert max(moved.values()) < 1e-6, moved
assert np.allclose(
    [r["x"] for r in paths["Recall"].rounds],
    [r["x"] for r in paths["SCAFFOLD"].rounds],
    atol=1e-12,
)

# %% [markdown]
# ## Tests that you need not write
#
# `conforms` runs the suite that every method of the library passes: clients trained one after the other and all at once give
# the same numbers, an interrupted run resumes to the same bits, a client that never replies has no effect, costs can be
# traced, and the neutral setting is FedAvg.

# %%
from steppe.testing import conforms

conforms(Recall(), neutral=Recall(beta=0.0))
print("Recall conforms")

# %% [markdown]
# It also reports what is wrong. Here is a typical mistake: a part that computes two gradients per step, but does not declare
# it. Its costs would be wrong:


# %%
@dataclass(frozen=True)
class BothEnds(steppe.Part):
    name = "both_ends"

    def gradient(self, grad, w, s):
        return (grad(w) + grad(s.x)) / 2


try:
    conforms(BothEnds())
except AssertionError as error:
    print(error)

# %% [markdown]
# ## A fair comparison
#
# All methods have the same seeds, clients and batches. There are three seeds, and a paired test against the first row. Parts, names of
# the catalogue and combinations can be mixed:

# %%
found = steppe.compare(
    ["fedavg", "scaffold", Recall()],
    "mlp",
    partition="lda(0.1)",
    lr=0.1,
    rounds=20,
    seeds=3,
    out="runs/recall",
)
found

# %%
found.plot()
# %% [markdown]
# Recall is far ahead of FedAvg, and close to SCAFFOLD. What does it cost? Costs are *traced*: the library runs one
# round on tensors without data and counts what is sent, kept and computed.

# %%
costs = steppe.cost(["fedavg", "scaffold", Recall()], "resnet18-gn")
costs

# %%
figure, axis = plt.subplots(figsize=(6, 3.4))
for line, cost in zip(found.records, costs.records):
    axis.errorbar(
        cost["bytes_x"],
        100 * line["last"],
        100 * line["last_std"],
        fmt="o",
        capsize=3,
    )
    axis.annotate(
        line["algorithm"],
        (cost["bytes_x"], 100 * line["last"]),
        xytext=(7, 3),
        textcoords="offset points",
    )
axis.set(
    xlabel="traffic, multiples of FedAvg's",
    ylabel="test accuracy (%)",
    xlim=(0.9, 2.2),
)
axis.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# So the idea works as intended: nearly SCAFFOLD's accuracy, with an upload like FedAvg's. Each client keeps one vector,
# as with SCAFFOLD.
#
# **Before you write a paper**: this is one small data set, one partition rule and 20 rounds. The settings of the others were not
# tuned. $\bar u$ is the mean of one round's five clients, a noisy stand-in for the mean of all; with fewer clients per round the
# proof above does not apply. The exercises are about this.

# %% tags=["check"]
fedavg, scaffold, recall = found.records
assert recall["last"] > fedavg["last"] + 0.1 and recall["against_first_p"] < 0.05, (
    found.records
)
assert abs(recall["last"] - scaffold["last"]) < 0.04, found.records
by = {row["algorithm"]: row for row in costs.records}
assert (
    by["recall"]["up"] == 1 and by["recall"]["kept"] == by["scaffold"]["kept"] == 1
), costs.records
assert 1 < by["recall"]["bytes_x"] < by["scaffold"]["bytes_x"]

# %% [markdown]
# ## A page for your colleagues

# %%
print("wrote", found.report("recall.html"))

# %% [markdown]
# The report is one file that works offline: which method leads and at what cost, curves, tables, what was run and how to repeat it.
# `found.report("recall.tex")` writes tables for a paper. If the class is in a file, every command accepts its name, and it
# can be combined with all other methods:

# %% language="bash"
# steppe new part recall          # a working draft with all hooks explained, and its test
# head -20 recall.py

# %% [markdown]
# After you have pasted the class into `recall.py`:
#
# ```bash
# steppe run fedsam --add recall.py:Recall:beta=0.5        # Recall closest to the loss, SAM around it
# steppe compare fedavg fedavg+recall.py:Recall scaffold --seeds 3
# pytest test_recall.py
# ```
#
# An added part is closest to the loss: here SAM gets both of its gradients from Recall, and its ascent is along the
# corrected one. With `outer = True` in its class, Recall is around SAM and corrects what SAM returns.
#
# ## Exercises
#
# 1. Is `beta=1` best? Sweep over the class, `steppe.sweep(Recall, {"beta": […]})`. (An object, `Recall()`, already has its
#    `beta`.)
# 2. Two clients per round instead of five (`per_round=2`): does Recall or SCAFFOLD suffer more? Keep a running mean in
#    `server` instead of the last one. Does that help?
# 3. In the quadratic problem, let only one client take part per round (`"rounds": [[0], [1]] * 40`). Where does Recall end?
# 4. Combine it with SAM: `steppe.run("fedsam", add=Recall(), …)`.
#
# ## Where to go next
#
# - [All hooks, names and packages](../how-to/own-idea.md)
# - [Why parts wrap functions and not vectors](../explanation/design.md)
# - [Your own data and partition](3-own-data.md)
