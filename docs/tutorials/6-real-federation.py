# %% [markdown]
# # 6. A real federation on three nodes
#
# So far everything has run in one process: a *simulation*. Here three clinics train together over a network. Their patients stay in their
# own files, and separate processes exchange messages. Steppe uses [Flower](https://flower.ai) for this. The algorithm
# and its results are the same.
#
# **You will learn**
#
# - which processes a federation consists of, and what each of them has;
# - how to set one up with your own data, run it and look at its records;
# - what crosses the network, in bytes, and what it costs in time;
# - that the result is the same as in a simulation.
#
# Needs the extra `flower` ([what an extra is](../index.md)). Everything runs on this machine; on several machines the steps are the same.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import steppe

# %% tags=["hide-code"]
figure, axis = plt.subplots(figsize=(7.5, 2.9))
boxes = {
    "SuperLink\n(post office)": (0.5, 0.52),
    "server app\nSteppe's round loop": (0.5, 0.94),
    "node 0\nnorth.npz": (0.12, 0.06),
    "node 1\nsouth.npz": (0.5, 0.06),
    "node 2\nwest.npz": (0.88, 0.06),
}
for name, place in boxes.items():
    axis.text(
        *place,
        name,
        ha="center",
        va="center",
        bbox=dict(boxstyle="round,pad=0.5", fc="none", ec="C0"),
    )
for x in (0.12, 0.5, 0.88):
    axis.annotate(
        "",
        (0.5 + 0.3 * (x - 0.5), 0.4),
        (x, 0.2),
        arrowprops=dict(arrowstyle="<->", color="C1"),
    )
axis.annotate(
    "", (0.5, 0.65), (0.5, 0.81), arrowprops=dict(arrowstyle="<->", color="C1")
)
axis.text(0.8, 0.32, "models and updates,\nnever samples", color="C1", fontsize=9)
axis.axis("off")

# %% [markdown]
# The *SuperLink* passes messages on. A *SuperNode* runs where the data are and asks the SuperLink for work. The *server app* is Steppe's usual round loop,
# with the nodes in place of local training.
#
# ## Three clinics
#
# Each clinic has its own file: eight measurements per patient and a diagnosis. Their devices differ a little, and so do their numbers
# of patients. A fourth set is for testing, and the server may see it.


# %%
def examine(clinic, patients):
    """Return measurements and diagnoses; each clinic's devices differ a little."""
    random = np.random.default_rng(clinic)
    ill = random.integers(0, 2, patients)
    x = (
        random.normal(size=(patients, 8))
        + np.outer(ill, np.linspace(1.2, 0, 8))
        + 0.2 * (clinic % 4)
    )
    return x.astype(np.float32), ill


clinics = {
    "north": examine(0, 60),
    "south": examine(1, 100),
    "west": examine(2, 140),
}
test = examine(9, 400)
for name, (x, y) in {**clinics, "test": test}.items():
    np.savez(f"{name}.npz", x=x, y=y)

# %% [markdown]
# ## Set it up
#
# `init` writes the folder of a federation: an app that Flower ships to the nodes, and one folder per node.

# %% language="bash"
# steppe federate init study --nodes 3 --algorithm scaffold --rounds 2 --own-data --set model=mlp --set lr=0.05
# find study -type f | grep -v '\.git' | sort

# %% [markdown]
# The operator describes a sample in `study/app/federation.toml`, so that every node can check its own file against it. Each clinic
# names its file in its own `node.sh`. (A shell script on your machine; here Python edits both.)

# %%
from pathlib import Path

terms = Path("study/app/federation.toml")
before = terms.read_text().partition("[data]")[0]
sample = '[data]\nshape = [8]\ninputs = "float32"\nclasses = 2\nclass_names = ["well", "ill"]\n'
terms.write_text(f'test = "{Path("test.npz").resolve()}"\n{before}{sample}')

for number, name in enumerate(clinics):
    script = Path(f"study/nodes/{number}/node.sh")
    script.write_text(
        script.read_text().replace(
            "/path/to/data.npz", str(Path(f"{name}.npz").resolve())
        )
    )
print(script.read_text())

# %% [markdown]
# ## Run it
#
# `up` starts the SuperLink and three SuperNodes as processes of this machine, submits the app, shows the rounds, and stops everything.
# (On several machines, each clinic starts its own `node.sh`, with TLS and one key per node.)

# %% language="bash"
# steppe federate up study

# %% [markdown]
# Read the last lines. The bytes per client and round are measured in the messages, followed by the prediction of the cost table
# for SCAFFOLD: model and control variate, in both directions. The difference, less than one per cent, is metadata.
#
# Where does the time go?

# %%
run = steppe.load("study/run")
nodes = [record["nodes"] for record in run.history]
figure, axis = plt.subplots(figsize=(7, 1.7))
rounds = [f"round {record['round']}" for record in run.history]
axis.barh(
    rounds,
    [n["training"] for n in nodes],
    color="C0",
    label="training of the slowest client",
)
axis.barh(
    rounds,
    [n["overhead"] for n in nodes],
    left=[n["training"] for n in nodes],
    color="C1",
    label="everything else",
)
axis.set_xlabel("seconds")
axis.invert_yaxis()
axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
axis.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# Almost all of it is overhead: each message runs in its own process on the node, and nodes check for work only from time to time, while training on a
# hundred patients takes almost no time. With a real model and many local steps, training takes most of the time. So use a simulation while you develop, and
# a federation where the data are distributed.

# %% tags=["check"]
assert all(n["overhead"] > n["training"] for n in nodes), nodes

# %% [markdown]
# ## The same numbers as a simulation
#
# An algorithm does not depend on where its clients are. Here are the same data, divided in the same way, in one process:

# %%
simulated = steppe.run(
    "scaffold",
    "mlp",
    steppe.from_clients(clinics, test=test),
    rounds=2,
    lr=0.05,
    per_round=3,
)
for real, there in zip(run.history, simulated.history):
    print(
        f"round {real['round']}: test loss {real['loss']:.9f} on nodes, {there['loss']:.9f} simulated"
    )

# %% tags=["check"]
for real, there in zip(run.history, simulated.history):
    assert abs(real["loss"] - there["loss"]) < 1e-5, (real["loss"], there["loss"])
predicted = simulated.experiment.cost
assert all(n["bytes_down"] < 1.01 * predicted.bytes_down for n in nodes), nodes
assert all(n["bytes_up"] < 1.01 * predicted.bytes_up for n in nodes), nodes

# %% [markdown]
# The model that the clinics trained is in the folder, like that of any run:

# %%
told = run.model(torch.from_numpy(test[0])).argmax(1).numpy()
print(run)
print(f"{(told == test[1]).mean():.1%} of the test patients are classified correctly")

# %% [markdown]
# ## What stays behind
#
# `up` has ended, and so have its processes. They also end after Ctrl-C and, within a minute, after `kill -9`. What a client keeps between rounds
# (SCAFFOLD's control variate) is on its own node's disk, so that a federation can be resumed.

# %% language="bash"
# steppe federate status study
# ls study study/nodes/0

# %% [markdown]
# ## Exercises
#
# 1. Add a part: with `--add median`, one of the three clinics may send nonsense. Where is the robust rule applied, on the server or on the nodes?
# 2. Change one character in `study/app/federation.toml` after `init` and start a node by hand. Why does it refuse to work? (`steppe federate pin`)
# 3. Give a node a file with a NaN, or with nine measurements. Who reports it, and what does the server learn about the file?
# 4. `--set dropout=…` is refused in a federation. Why?
#
# ## Where to go next
#
# - [Two machines step by step, failures, attackers](../how-to/federation.md)
# - [Privacy and robust aggregation](8-privacy-and-robustness.md)
