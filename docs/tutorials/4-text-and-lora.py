# %% [markdown]
# # 4. Text and LoRA
#
# Eight actors each own the lines of one role. A small language model was trained on other plays, and should learn their style,
# too. Sending whole language models back and forth is expensive. LoRA sends a small *adapter* instead.
#
# **You will learn**
#
# - how text becomes a federation with natural clients;
# - how to start from a trained model, and freeze a part of it;
# - what LoRA is, in ten lines, and what it saves and costs in a federation;
# - how to use `transformers` and `peft` instead.
#
# Nothing is downloaded: a slice of Shakespeare is inside the package.

# %%
import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import steppe

text = steppe.data.load("shakespeare")
decode = steppe.data.shakespeare.decode
text

# %%
sizes = np.bincount(text.groups)
largest = np.argsort(-sizes)
actors, public = largest[:8], largest[8:]
names = [name.split(": ")[1].title() for name in text.client_names]

figure, axis = plt.subplots(figsize=(8, 3))
axis.bar(
    [names[i] for i in largest],
    sizes[largest],
    color=["C1" if i in actors else "C0" for i in largest],
)
axis.set_ylabel("windows of 80 characters")
axis.tick_params(axis="x", rotation=90, labelsize=7)
axis.spines[["top", "right"]].set_visible(False)
print(decode(text.train_inputs[text.groups == actors[0]][5]))

# %% [markdown]
# A client is a role. Hamlet (orange, on the left) has many times the text of the roles on the right: no artificial rule is needed to make
# clients unequal. A sample is a window of 80 characters, and the target of each character is the next one.
#
# ## A base
#
# The blue roles are public. On them the server trains a small GPT by itself: a "federation" of one client.


# %%
def take(roles):
    """Return the training and test windows of some roles."""
    train, test = np.isin(text.groups, roles), np.isin(text.test_groups, roles)
    return (
        text.train_inputs[train],
        text.train_targets[train],
        text.test_inputs[test],
        text.test_targets[test],
    )


common = dict(
    metrics=["perplexity", "accuracy"], optimiser="adamw", batch=10, workers=0
)  # 0: all in this process
base = steppe.run(
    "fedavg",
    "gpt",
    steppe.from_arrays(*take(public), tokens=text.tokens),
    partition="iid",
    clients=1,
    per_round=1,
    rounds=4,
    max_steps=150,
    lr=0.005,
    lr_schedule="cosine",
    **common,
)
base

# %% [markdown]
# *Perplexity* is the number of equally likely characters that would be as hard to predict. There are 78 different characters, so a
# model that has learned nothing has a perplexity of 78. What does this one write?


# %%
def write(model, begin, length=160, seed=0):
    """Continue a text, character by character."""
    g = torch.Generator().manual_seed(seed)
    tokens = list(steppe.data.shakespeare.encode(begin))
    for _ in range(length):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[-80:]]))[0, -1]
        tokens.append(
            int(torch.multinomial((logits / 0.7).softmax(-1), 1, generator=g))
        )
    return decode(tokens)


print(write(base.model, "My lord, "))

# %% [markdown]
# The words look plausible but make no sense. With about a hundred thousand parameters, the model has learned only some spelling.
#
# ## The federation
#
# `from_clients` takes the eight roles with their own test windows. We fine-tune the whole base with FedAvg: four of the actors per
# round, fifteen steps each.

# %%
federation = steppe.from_clients({names[i]: take([i]) for i in actors})
rounds = dict(
    data=federation,
    per_round=4,
    rounds=8,
    max_steps=15,
    lr_schedule="constant",
    **common,
)

whole = steppe.run(
    "fedavg", copy.deepcopy(base.model).requires_grad_(True), lr=0.003, **rounds
)
whole

# %% [markdown]
# ## LoRA in ten lines
#
# A linear layer computes $Wx$. LoRA (Hu et al., 2022) freezes $W$ and adds a product of two thin matrices:
#
# $$
# Wx + BAx, \qquad W \in \mathbb R^{m\times n},\; A \in \mathbb R^{r\times n},\; B \in \mathbb R^{m\times r},\; r \ll m, n .
# $$
#
# $B$ starts at zero, so the model starts as the base. In Steppe, an algorithm ignores parameters with `requires_grad=False`:
# they are not trained, not sent and not counted. So LoRA needs no support from the library; it is a property of the model.


# %%
class LoRA(nn.Module):
    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.A, self.B = (
            nn.Linear(layer.in_features, rank, bias=False),
            nn.Linear(rank, layer.out_features, bias=False),
        )
        nn.init.zeros_(self.B.weight)

    def forward(self, x):
        return self.layer(x) + self.B(self.A(x))


def add_adapters(model, rank=4):
    torch.manual_seed(0)
    model = copy.deepcopy(model).requires_grad_(False)
    for block in model.body[:-1]:
        block.attention.qkv, block.mlp[0] = (
            LoRA(block.attention.qkv, rank),
            LoRA(block.mlp[0], rank),
        )
    return model


adapted = steppe.run("fedavg", add_adapters(base.model), lr=0.02, **rounds)
adapted

# %%
for name, result in {"whole model": whole, "LoRA": adapted}.items():
    cost = result.experiment.cost
    print(
        f"{name:11}  {len(result.x):7,} numbers trained, {(cost.bytes_down + cost.bytes_up) / 1024:6.1f} KiB per client and "
        f"round"
    )

# %% [markdown]
# ## What it saves, and what it costs
#
# Which is better depends on what limits you: the number of rounds or the number of bytes.


# %%
def find_perplexity(model, role):
    """Return the perplexity on a role's test windows."""
    _, _, x, y = take([role])
    with torch.no_grad():
        return float(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).exp())


figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.5, 3.3), layout="constrained", sharey=True
)
for name, result in {"whole model": whole, "LoRA": adapted}.items():
    perplexity = [record["perplexity"] for record in result.history]
    sent = result.experiment.cost.bytes_down + result.experiment.cost.bytes_up
    left.plot(range(1, len(perplexity) + 1), perplexity, "o-", label=name)
    right.plot(
        np.arange(1, len(perplexity) + 1) * 4 * sent / 2**20,
        perplexity,
        "o-",
        label=name,
    )
left.set(xlabel="round", ylabel="test perplexity")
right.set(xlabel="MiB sent and received by all", xscale="log")
left.legend(frameon=False)
for axis in (left, right):
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)

# %%
models = {"base": base.model, "whole model": whole.model, "LoRA": adapted.model}
found = {
    name: [find_perplexity(model, role) for role in actors]
    for name, model in models.items()
}
figure, axis = plt.subplots(figsize=(8, 3))
for i, (name, values) in enumerate(found.items()):
    axis.bar(
        np.arange(len(actors)) + 0.27 * (i - 1),
        values,
        0.25,
        label=f"{name}: mean {np.mean(values):.2f}",
    )
axis.set_xticks(range(len(actors)), [names[i] for i in actors], fontsize=8)
axis.set(ylabel="test perplexity", ylim=(5, None))
axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
axis.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# At the end both are better than the base on average over the actors (the means are in the legend). The whole model first becomes worse than the
# base, then overtakes LoRA and improves further: it has more parameters to train. Per byte, LoRA is far ahead: its last point lies to the left of the
# other's first, and below it. Note what the picture on the right does *not* say: that LoRA ends where the whole model ends. It does not.

# %% tags=["check"]
means = {name: np.mean(values) for name, values in found.items()}
curves = [[record["perplexity"] for record in r.history] for r in (whole, adapted)]
assert (
    curves[0][0] > means["base"] and curves[0][-1] < curves[1][-1] < curves[0][0]
), curves
assert means["whole model"] < means["LoRA"] < means["base"] - 0.1, found
costs = [
    r.experiment.cost.bytes_down + r.experiment.cost.bytes_up
    for r in (whole, adapted)
]
assert len(adapted.history) * costs[1] < costs[0], costs

# %% [markdown]
# An adapter is also easy to store separately. The base stays where it is, and the run's folder contains what was trained. Everything
# else in the library works as before, because parts work on one flat vector, whatever it contains: here SAM on the adapters alone.

# %%
steppe.run(
    "fedsam", add_adapters(base.model), lr=0.02, rho=0.05, **{**rounds, "rounds": 1}
)

# %% [markdown]
# ## With transformers and peft
#
# For a real base you would not write LoRA yourself. `get_peft_model(…)` of [peft](https://huggingface.co/docs/peft) returns a module whose
# base is frozen; give it to `steppe.run` as it is. The run's folder then has the adapter in peft's format, and
# `PeftModel.from_pretrained` reads it. [`examples/lora.py`](../../examples/lora.py) does this with a BERT, and
# [its output](../how-to/examples.md) is on the page of examples. It needs the extra `transformers`, which the build of this page does
# not assume.
#
# ## Exercises
#
# 1. Which rank is enough? Draw the final perplexity over `rank` 1, 2, 4, 8, 16, and the traffic next to it.
# 2. Adapt the attention only, or the perceptron only. Which one matters more?
# 3. Averaging $A$ and $B$ separately is not averaging $BA$: the mean of products is not the product of means. How large is the
#    difference? Run one round with all eight actors and compare (`FedEx-LoRA` and others correct it).
# 4. The actors differ. Does `personal=[0, 1]`, an epoch of fine-tuning by each, help Hamlet or the others more?
#
# ## Where to go next
#
# - [Losses, metrics and schedules](../how-to/objectives.md), [your own models](../how-to/own-model.md)
# - [Reading flatness](5-reading-flatness.md)
