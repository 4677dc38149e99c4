# %% [markdown]
# # 1. Your first federation
#
# Twenty people own handwritten digits. Each wants a classifier, and none wants to give the pictures away. In federated
# learning, the model is sent instead of the data. You will train such a model, see what makes it difficult, and see what
# helps.
#
# **You will learn**
#
# - what happens in a round, and how to run many of them with one line;
# - why data that differ between clients reduce accuracy, with pictures;
# - how to compare algorithms fairly;
# - what a run leaves behind, and how to do the same on the command line.
#
# You need Steppe, installed [as its first page says](../index.md), and nothing else. The digits are inside the package.

# %%
import matplotlib.pyplot as plt
import numpy as np

import steppe

data = steppe.data.load("digits")
data

# %%
figure, axes = plt.subplots(2, 10, figsize=(7.5, 1.7))
for axis, image, label in zip(axes.flat, data.train_inputs, data.train_targets):
    axis.imshow(image[0], cmap="gray_r")
    axis.set_title(int(label), fontsize=9)
    axis.axis("off")

# %% [markdown]
# ## Which client has which data
#
# A *partition* says which client owns which training samples. In the simplest one, `iid`, every client has a random share.
# Real federations are not like that: a hospital sees the patients of its region. The usual way to imitate this is a
# Dirichlet distribution: `lda(0.1)` gives every client most of its samples from a few classes. The smaller the number in
# brackets, the more the clients differ.

# %%
equal = steppe.partition("digits", "iid", clients=20)
skewed = steppe.partition("digits", "lda(0.1)", clients=20)
for split in (equal, skewed):
    split.plot(data.train_targets, classes=10)

# %% [markdown]
# Each column is a client, each row a digit, and the area of a dot is the number of samples. Above, all columns look alike.
# Below, most clients have only a few of the ten digits.

# %% tags=["check"]
assert (equal.counts(data.train_targets, 10) > 0).sum(1).min() >= 9
assert np.median((skewed.counts(data.train_targets, 10) > 0).sum(1)) <= 5

# %% [markdown]
# ## One round, in words
#
# FedAvg, the algorithm on which all others are based, repeats this:
#
# 1. The server picks some clients (here 5 of 20) and sends them the model.
# 2. Each of them trains it on its own data for a while (here two epochs).
# 3. They send the change of the model back. The server adds the mean of the changes to its model.
#
# With $x$ for the server's model and $w_i$ for client $i$'s model after training, the third step is
#
# $$
# x \leftarrow x + \sum_i p_i\,(w_i - x), \qquad p_i \propto \text{samples of client } i .
# $$
#
# One call runs it. Every key has a default; `steppe list keys` prints all of them.

# %%
common = dict(model="mlp", clients=20, per_round=5, rounds=20, lr=0.1)
fair = steppe.run("fedavg", partition="iid", **common)
fair

# %% [markdown]
# Now the same, on clients that differ:

# %%
hard = steppe.run("fedavg", partition="lda(0.1)", **common)
hard

# %%
figure, axis = plt.subplots()
for result, name in ((fair, "iid"), (hard, "lda(0.1)")):
    axis.plot(
        [r["round"] for r in result.history],
        [100 * r["accuracy"] for r in result.history],
        label=name,
        lw=2,
    )
axis.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
axis.legend(frameon=False)
print(
    f"iid {fair.accuracy:.1%}, lda(0.1) {hard.accuracy:.1%} after {len(hard.history)} rounds"
)

# %% [markdown]
# The model, the samples and the settings are the same. Only their distribution over clients differs. The
# second curve rises later, varies more, and ends lower.

# %% tags=["check"]
assert fair.accuracy > 0.93 and hard.accuracy < fair.accuracy - 0.08
jumps = [
    np.abs(np.diff([r["accuracy"] for r in one.history[8:]])).mean()
    for one in (fair, hard)
]
assert jumps[1] > 3 * jumps[0]

# %% [markdown]
# ## What goes wrong
#
# Every round's record has the accuracy per class. Plotted over the rounds, it shows what happens:


# %%
def draw_classes(results):
    figure, axes = plt.subplots(
        1, len(results), figsize=(8.5, 3), layout="constrained", sharey=True
    )
    for axis, (name, result) in zip(axes, results.items()):
        shares = np.array([record["by_class"] for record in result.history]).T
        picture = axis.imshow(
            shares, aspect="auto", vmin=0, vmax=1, cmap="viridis", origin="lower"
        )
        axis.set(
            xlabel="round",
            title=name,
            xticks=range(0, len(result.history), 5),
            yticks=range(10),
        )
    axes[0].set_ylabel("digit")
    figure.colorbar(picture, ax=axes, label="share classified correctly")


draw_classes({"iid": fair, "lda(0.1)": hard})

# %% [markdown]
# On the right, whole digits are recognised in one round and forgotten in the next. A round's five clients often have no sample of
# some digit at all. Their training moves the model towards what *they* have, and the other digits have no influence. This is
# *client drift*: local training moves towards the minimum of the local loss, which is not the minimum of the mean loss.

# %% tags=["check"]
drops = [
    np.diff(np.array([r["by_class"] for r in one.history[6:]]), axis=0).min()
    for one in (fair, hard)
]
assert drops[1] < -0.5 < drops[0]

# %% [markdown]
# ## What helps
#
# SCAFFOLD gives each client a correction: a running estimate of how its own gradient differs from the mean, which is
# subtracted in every local step. FedSAM instead looks for flat minima, at twice the computation. `compare` runs several
# algorithms on the same seeds. Runs of one seed share the initial model, the partition, the clients of each round and the
# order of the batches, so that only the algorithm differs.

# %%
found = steppe.compare(
    ["fedavg", "fedsam", "scaffold"], partition="lda(0.1)", seeds=3, **common
)
found

# %%
found.plot()
# %% [markdown]
# Read the table from the left. `last` is the accuracy after the last round, mean ± standard deviation over seeds. `− first` is
# the difference from the first row, with its standard error and the p-value of a paired test. Then come the costs:
# SCAFFOLD has about twice the `traffic`, because corrections are sent with the model. FedSAM needs two `passes` per step.
#
# Here SCAFFOLD is well ahead of FedAvg. FedSAM is not: the difference is within its error.
# On this small problem the difficulty is drift, and flatness does not help against it.

# %% tags=["check"]
fedavg, fedsam, scaffold = found.records
assert (
    scaffold["last"] > fedavg["last"] + 0.1 and scaffold["against_first_p"] < 0.05
), found.records
assert fedsam["against_first_p"] > 0.1, found.records
assert found.runs["fedavg"][0].history[-1]["loss"] == hard.history[-1]["loss"]

# %%
draw_classes(
    {"FedAvg": found.runs["fedavg"][0], "SCAFFOLD": found.runs["scaffold"][0]}
)  # of the first seed

# %% [markdown]
# ## What a run leaves behind
#
# With `out=`, or on the command line, a run writes a folder. The run can be resumed after a crash with exactly the same result,
# analysed and reported. This is the second run from above as a command:

# %% language="bash"
# steppe run fedavg --set model=mlp --set 'partition=lda(0.1)' --set lr=0.1 --rounds 20 --out runs/first
# ls runs/first

# %%
again = steppe.load("runs/first")
print(again)
print(
    "the same numbers as in Python:",
    [r["loss"] for r in again.history] == [r["loss"] for r in hard.history],
)

# %% tags=["check"]
assert [r["loss"] for r in again.history] == [r["loss"] for r in hard.history]

# %% [markdown]
# The trained model is an ordinary `nn.Module`:

# %%
import torch

images, labels = data.test_inputs, data.test_targets
inputs = (images / 255 - data.mean[0]) / data.std[
    0
]  # as in training: about.json has the constants
with torch.no_grad():
    told = again.model(inputs).argmax(1)
wrong = (told != labels).nonzero()[:10, 0]
figure, axes = plt.subplots(1, 10, figsize=(7.5, 1.1))
for axis, i in zip(axes, wrong):
    axis.imshow(images[i, 0], cmap="gray_r")
    axis.set_title(f"{labels[i]} → {told[i]}", fontsize=8)
    axis.axis("off")
print(f"{(told == labels).float().mean():.1%} classified correctly; some of the others:")

# %% [markdown]
# ## Exercises
#
# 1. How does the gap between `iid` and `lda(α)` depend on α? Try
#    `steppe.sweep("fedavg", {"partition": ["lda(0.05)", "lda(0.3)", "lda(1)", "iid"]}, **common)`.
# 2. Let all 20 clients take part (`per_round=20`). Which part of the loss in accuracy disappears, and which stays?
# 3. With one local epoch (`epochs=1`) clients drift less, but a round achieves less. Is it better after 20 rounds? After the
#    same number of gradients?
# 4. FedProx pulls clients back towards the server's model: `steppe.run("fedprox", mu=0.1, …)`. Find a `mu` that helps here.
#
# ## Where to go next
#
# - [Your own algorithm in 20 lines](2-own-algorithm.md)
# - [Your own data and partition](3-own-data.md)
# - [All algorithms](../methods/index.md), and [how to use a result](../how-to/results.md)
