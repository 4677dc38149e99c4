# %% [markdown]
# # 3. Your own data and partition
#
# Nine surveyors map an unknown archipelago. Each has walked one square of it and knows, for some points, whether there is land or
# sea. None has seen the whole. They train one map together without showing anyone their notes.
#
# **You will learn**
#
# - how to give Steppe your arrays, tables, or one data set per client, and your own model;
# - how to assign samples to clients: by a column, by indices, by a rule, or by a rule on something other than the label;
# - how to see the result per client;
# - what happens when data are broken.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import steppe

rng = np.random.default_rng(0)


def is_land(places):
    """Tell land (1) from sea (0) at places (…, 2)."""
    x, y = places[..., 0], places[..., 1]
    return (
        np.sin(3 * x + 0.5) + np.cos(2.6 * y - 0.4) + 0.7 * np.sin(2 * x * y + 1)
        > 0.35
    ).astype(int)


def find_square(places):
    """Return the number of the square, 0 to 8, in which each place lies."""
    column, row = np.floor((places + 2) / 4 * 3).astype(int).T
    return 3 * row + column


places, test_places = rng.uniform(-2, 2, (1350, 2)), rng.uniform(-2, 2, (900, 2))
land, test_land = is_land(places), is_land(test_places)
square = find_square(places)

# %%
grid = np.stack(np.meshgrid(np.linspace(-2, 2, 90), np.linspace(-2, 2, 90)), -1)


def draw_map(axis, values, title):
    axis.imshow(
        values,
        extent=(-2, 2, -2, 2),
        origin="lower",
        cmap="BrBG_r",
        vmin=-0.35,
        vmax=1.35,
    )
    axis.set(title=title, xticks=[], yticks=[])


figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.3), layout="constrained")
draw_map(left, is_land(grid), "the archipelago")
draw_map(right, is_land(grid) * 0 + 0.5, "who knows what")
right.scatter(*places.T, c=square, s=5, cmap="tab10", rasterized=True)

# %% [markdown]
# ## A model and arrays
#
# The model is any `nn.Module`. This one encodes a place by fixed waves (`requires_grad=False`: they are not trained and never
# sent) and two layers.


# %%
class Map(nn.Module):
    def __init__(self):
        super().__init__()
        waves = 1.5 * torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
        self.waves = nn.Parameter(waves, requires_grad=False)
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, places):
        angles = places @ self.waves
        return self.head(
            self.body(torch.cat([angles.sin(), angles.cos()], -1)).relu()
        )


# %% [markdown]
# Four arrays are enough. `groups` has the owner of each training sample; any column of IDs will do. The targets are whole
# numbers, which are class labels, so the loss is cross-entropy.

# %%
data = (places, land, test_places, test_land)
common = dict(
    model=Map, data=data, rounds=10, per_round=9, epochs=3, batch=50, lr=0.3
)
squares = steppe.run("fedavg", groups=square, **common)
squares

# %% [markdown]
# `model=Map`, the class, is built with the run's seed. `model=Map()`, an instance, starts with the weights that it has.
#
# ## The same data, three partitions
#
# How much is due to the *distribution* of the data? Divide the same samples among nine clients in other ways: by the name of a rule,
# `partition="iid"`; by your own lists of indices, `partition=[[0, 5, 7], [1, 2], …]`; or by a rule for label skew that divides by
# something else, `by=`: here `dirichlet(0.1)` by how far east a place lies, so that clients own vertical bands.

# %%
alternate = [np.flatnonzero(np.arange(len(places)) % 9 == i) for i in range(9)]
runs = {
    "squares": squares,
    "own indices": steppe.run("fedavg", partition=alternate, **common),
    "bands": steppe.run(
        "fedavg", partition="dirichlet(0.1)", by=places[:, 0], clients=9, **common
    ),
}


# %%
def predict(model):
    with torch.no_grad():
        return model(torch.tensor(grid, dtype=torch.float32)).softmax(-1)[..., 1]


figure, axes = plt.subplots(2, 3, figsize=(8, 5.4), layout="constrained")
for (name, result), above, below in zip(runs.items(), *axes):
    owner = np.empty(len(places))
    for client, indices in enumerate(result.experiment.federation.indices):
        owner[indices] = client
    draw_map(above, is_land(grid) * 0 + 0.5, name)
    above.scatter(*places.T, c=owner, s=3, cmap="tab10", rasterized=True)
    draw_map(below, predict(result.model), f"{result.accuracy:.1%} right")

# %% [markdown]
# Above, each colour is an owner. Below is the map that nine clients have learned together. With mixed samples (in the middle) the
# coasts are sharpest. If each client owns one square, the same number of rounds gives a vaguer map. The information is the same,
# but averaging nine models that moved in different directions blurs it.

# %% tags=["check"]
scores = {name: result.accuracy for name, result in runs.items()}
assert scores["own indices"] == max(scores.values()) and scores["squares"] == min(
    scores.values()
), scores
assert scores["own indices"] > scores["squares"] + 0.02, scores

# %% [markdown]
# ## Natural clients with their own tests
#
# Real federations come as one data set per client. `from_clients` takes them with names; each is arrays or a torch data set, with
# its own test samples if it has any. The result is then also known per client. A mean can hide that it is poor for some
# clients.

# %%
names = [
    f"{row}{column}"
    for row in ("south ", "middle ", "north ")
    for column in ("west", "middle", "east")
]
test_square = find_square(test_places)
own = {
    name: (
        places[square == i],
        land[square == i],
        test_places[test_square == i],
        test_land[test_square == i],
    )
    for i, name in enumerate(names)
}
federation = steppe.from_clients(own)
federation

# %%
common = dict(
    model=Map, data=federation, rounds=10, per_round=9, epochs=3, batch=50, lr=0.3
)
together = steppe.run("fedavg", **common)
better = steppe.run("scaffold", **common)
alone = steppe.run(
    "local", **common
)  # everybody trains by itself, with as many steps
for name, result in {
    "alone": alone,
    "FedAvg": together,
    "SCAFFOLD": better,
}.items():
    found = result.summary["personal"]["0"]  # after no epoch of fine-tuning
    print(
        f"{name:9} mean over surveyors {found['mean']:.1%}, deviation {found['std']:.1%}"
    )

# %% [markdown]
# `personal` is the accuracy on each client's own test samples. "Alone" is each surveyor's own model on its own square,
# the only one it was trained for. The others have one model for all squares.
#
# How good is a surveyor's own model on the rest of the map? Train on one square only, and plot its map:

# %%
one = steppe.run(
    "fedavg",
    Map,
    (places[square == 4], land[square == 4], test_places, test_land),
    partition="iid",
    clients=1,
    per_round=1,
    rounds=10,
    epochs=3,
    batch=50,
    lr=0.3,
)
figure, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
draw_map(
    axes[0], predict(one.model), f"the middle square alone: {one.accuracy:.0%}"
)
axes[0].add_patch(
    plt.Rectangle((-2 / 3, -2 / 3), 4 / 3, 4 / 3, fill=False, color="black")
)
draw_map(axes[1], predict(together.model), f"FedAvg: {together.accuracy:.1%}")
draw_map(axes[2], predict(better.model), f"SCAFFOLD: {better.accuracy:.1%}")

# %% tags=["check"]
assert (
    one.accuracy < together.accuracy - 0.1 and better.accuracy > together.accuracy
), (one, together, better)

# %% [markdown]
# Outside its square, this model guesses. The common model has learned the whole map, and with SCAFFOLD's corrections against
# drift it is more accurate.
#
# ## Look at a partition before you train
#
# `steppe.partition` makes the split that a run would use. It can be drawn, counted, saved and given to a run. A saved file also
# works on the command line (`--set partition=split.json`).

# %%
split = steppe.partition(data, "lda(0.3)", clients=9)
print("samples per client:", split.sizes.tolist())
print("sea and land per client:", split.counts(land, 2).tolist())
split.save("split.json")
from_file = steppe.run(
    "fedavg", partition="split.json", clients=9, model=Map, data=data, rounds=1
)
print(
    "the run used it:", from_file.experiment.federation.partition.hash == split.hash
)

# %% [markdown]
# ## Broken data are refused
#
# Everything is checked before training, and the message says where to look:


# %%
def try_to_run(*arrays, **more):
    try:
        steppe.run("fedavg", Map, arrays, rounds=1, **more)
    except steppe.SteppeError as error:
        print("-", error)


spoilt = places.copy()
spoilt[3, 1] = np.nan
try_to_run(spoilt, land, test_places, test_land)
try_to_run(places, land + 1, test_places, test_land)
try_to_run(places, land, test_places[:, :1], test_land)
try_to_run(places, land, test_places, test_land, partition=[[0, 1, 2], [2, 3, 4]])

# %% [markdown]
# ## Exercises
#
# 1. Give the surveyors different amounts of data: drop 90 % of the samples in the northern squares. Whose result is worse, and does
#    `weighting="uniform"` help them?
# 2. Put the arrays into a pandas frame with a column `land` and a column `surveyor`, and use
#    `steppe.from_dataset(train, test, target="land", groups="surveyor")`.
# 3. Let each surveyor fine-tune the common model for an epoch: `personal=[0, 1]`. Is the fine-tuned model better on its own square
#    than the one trained alone?
# 4. Turn it into a regression: the targets are heights (floats), the model has one output, and the loss is `"mse"`.
#
# ## Where to go next
#
# - [All forms of data and partitions](../how-to/own-data.md), [models](../how-to/own-model.md),
#   [losses and metrics](../how-to/objectives.md)
# - [Text and LoRA](4-text-and-lora.md)
# - The same with data that stay on separate machines: [a federation on three nodes](6-real-federation.md)
