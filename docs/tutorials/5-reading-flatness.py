# %% [markdown]
# # 5. Reading flatness
#
# "FedSAM finds flatter minima, and flat minima generalise better." Papers support this with a number, λ1, and a picture, the loss
# landscape. This page measures both, and then shows how they can mislead. You will then know what they show and what they do not.
#
# **You will learn**
#
# - what λ1, the trace, sharpness and landscapes measure, and how certain each number is;
# - why two numbers can only be compared on the same sample and at a similar loss;
# - a counterexample: the same function with any λ1 you like;
# - what to report instead of one number.
#
# The network is small (2,410 parameters), so that every number on this page takes less than a second.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import steppe
from steppe import flatness


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        )


common = dict(
    model=Small,
    data="digits",
    partition="lda(0.3)",
    rounds=40,
    lr=0.1,
    measure=["lambda1:2"],
)
runs = {
    name: steppe.run(name, **common)
    for name in ("fedavg", "fedsam:rho=0.1", "fedsam:rho=0.3")
}
for name, result in runs.items():
    last = [record["accuracy"] for record in result.history[-10:]]
    print(
        f"{name:15} test accuracy: last round {last[-1]:.1%}, the one before {last[-2]:.1%}, mean of ten {np.mean(last):.1%}"
    )

# %% [markdown]
# ## The numbers
#
# The loss $f$ on training data is a function of the parameters $w$, one vector. Around a trained model it looks like a bowl, and
# the Hessian $H = \nabla^2 f(w)$ says how steep its walls are:
#
# - **λ1**, the largest eigenvalue of $H$: the curvature in the steepest direction;
# - **the trace**, the sum of all eigenvalues: the mean curvature over all directions, times their number;
# - **sharpness**, $f(w + \rho\,g/\lVert g\rVert) - f(w)$: how much the loss rises after SAM's step of length ρ.
#
# None of them needs the matrix, only products $Hv$. `steppe.flatness` has each as a function of the flat vector `result.x`:


# %%
def measure(loss, w):
    hessian = loss.hessian(w)
    return {
        "loss": loss.estimate(w),
        "λ1": flatness.spectrum(hessian, top=1).top,
        "trace": flatness.hutchinson(hessian, probes=100),
        "sharpness": flatness.worst_loss(loss, w, rho=0.1).rise,
        "adaptive": flatness.worst_loss(loss, w, rho=0.5, adaptive=True).rise,
    }


print(f"{'':15}{'loss':>17}{'λ1':>18}{'trace':>15}{'sharpness':>17}")
for name, result in runs.items():
    found = measure(flatness.Loss.of(result), result.x)
    top = found["λ1"]
    print(
        f"{name:15}{found['loss'].value:9.3f} ± {found['loss'].error:.3f}"
        f"{float(top.values[0]):10.3f} ± {float(top.residuals[0]):.0e}{found['trace'].value:8.1f} ± {found['trace'].error:.1f}"
        f"{found['sharpness'].value:10.3f} ± {found['sharpness'].error:.3f}"
    )

# %% [markdown]
# Every number has an uncertainty, and they mean different things. λ1 comes with a *residual*: an eigenvalue of this Hessian lies within
# that distance, which is negligible. The trace is estimated from random vectors, so its ± is a standard error over these. Loss and sharpness
# are means over training examples.
#
# The losses are close to each other, within two standard errors. λ1, trace and sharpness fall from row to row: FedSAM does what it was
# made for. The larger ρ is, the flatter the minimum.
#
# Now look at the accuracies above. In the last round they have the same order, the flattest model is the best, and it is tempting to stop here. One
# round earlier the order is gone. The differences between the methods are not larger than those between two rounds of one method, while λ1 differs by a factor.
# A large difference in flatness does not mean a large difference in accuracy.

# %% tags=["check"]
every = {
    name: measure(flatness.Loss.of(result), result.x)
    for name, result in runs.items()
}
fedavg, mild, strong = every.values()
for key in ("trace", "sharpness"):
    assert fedavg[key].value > mild[key].value > strong[key].value, every
assert fedavg["λ1"].values[0] > mild["λ1"].values[0] > strong["λ1"].values[0], every
losses = [one["loss"] for one in every.values()]
assert max(losses).value - min(losses).value < 2 * fedavg["loss"].error, losses
last, before = ([r.history[i]["accuracy"] for r in runs.values()] for i in (-1, -2))
assert last == sorted(last) and before != sorted(before), (last, before)
assert max(abs(a - b) for a, b in zip(last, before)) > 0.8 * (max(last) - min(last))
assert fedavg["λ1"].values[0] > 2 * strong["λ1"].values[0]

# %% [markdown]
# ## The picture
#
# A landscape is the loss over a plane through the model. Here the plane is spanned by the two steepest directions, and the scale is
# the same for all three:

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(8.5, 3.1), layout="constrained", sharey=True
)
for axis, (name, result) in zip(axes, runs.items()):
    loss = flatness.Loss.of(result, count=500)
    steepest = flatness.spectrum(loss.hessian(result.x), top=2).top.vectors
    seen = flatness.landscape(
        loss, result.x, steepest, [flatness.ticks(21, 1.5)] * 2
    )
    levels = axis.contourf(
        *seen.axes,
        np.log10(seen.values.T),
        levels=np.linspace(-0.8, 1.2, 21),
        cmap="viridis",
        extend="both",
    )
    axis.plot(0, 0, "w+")
    axis.set(title=name, xlabel="steepest direction")
axes[0].set_ylabel("second direction")
figure.colorbar(levels, ax=axes, label="log₁₀ loss", ticks=[-0.5, 0, 0.5, 1])
# %% [markdown]
# The valley (dark) is narrow for FedAvg and wide for FedSAM. The picture is correct, but it shows only two of 2,410 directions, the two steepest.
# In most directions the loss hardly changes:

# %%
loss, w = flatness.Loss.of(runs["fedavg"], count=500), runs["fedavg"].x
top = flatness.spectrum(loss.hessian(w), top=1).top.vectors
random = steppe.unit(
    torch.randn(len(w), generator=torch.Generator().manual_seed(0))
)[None]
reach = flatness.ticks(41, 1.5)
figure, axis = plt.subplots()
for direction, name in (
    (top, "steepest direction"),
    (random, "a random direction"),
):
    axis.plot(
        reach,
        flatness.landscape(loss, w, direction, [reach]).values,
        label=name,
        lw=2,
    )
axis.set(xlabel="distance from the model", ylabel="training loss", ylim=(0, 6))
axis.legend(frameon=False)
axis.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## First trap: one moment of a run
#
# λ1 was measured every second round of these runs (`measure=["lambda1:2"]`). It varies strongly from round to round:

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
for name, result in runs.items():
    seen = [
        (r["round"], r["measures"]["lambda1"]["lambda1"], r["loss"])
        for r in result.history
        if "measures" in r
    ]
    rounds, lambda1, test_loss = np.array(seen).T
    left.plot(rounds, lambda1, ".-", label=name)
    right.plot(test_loss, lambda1, ".", label=name)
left.set(xlabel="round", ylabel="λ1")
right.set(xlabel="test loss", ylabel="λ1", xscale="log")
right.set_xticks([0.2, 0.5, 1, 2], [0.2, 0.5, 1, 2])
right.minorticks_off()
left.legend(frameon=False, fontsize=8)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)

# %%
late = {
    name: np.array(
        [
            r["measures"]["lambda1"]["lambda1"]
            for r in result.history[20:]
            if "measures" in r
        ]
    )
    for name, result in runs.items()
}
for name, values in late.items():
    print(
        f"{name:15} λ1 of the last {len(values)} measurements: mean {values.mean():.2f}, from {values.min():.2f} to {values.max():.2f}"
    )

# %% [markdown]
# Within one run λ1 changes from round to round by a large part of its value, because every round has different clients. It also depends on
# how far training has come (on the right). The order of the three methods is the same at almost every moment, so the conclusion holds here. But a
# single value at the last round is a draw from this range. Report the mean over many rounds, compare at equal losses, and use
# several seeds.

# %% tags=["check"]
assert late["fedavg"].max() > 1.3 * late["fedavg"].min(), late
above = np.mean(
    (late["fedavg"] > late["fedsam:rho=0.1"])
    & (late["fedsam:rho=0.1"] > late["fedsam:rho=0.3"])
)
assert above > 0.85, late

# %% [markdown]
# ## Second trap: the same function, any λ1
#
# Now the counterexample (Dinh et al., 2017). In a network with ReLU units, multiply the first layer by α and divide the next by α. Because
# $\mathrm{relu}(\alpha z) = \alpha\,\mathrm{relu}(z)$, the *function is the same* for every input: same predictions, same loss, same
# generalisation. The parameters are different, and so is the Hessian.


# %%
def rescale(loss, w, alpha):
    """Return other parameters of the same function."""
    parts = dict(loss.layout.unflatten(w))
    parts["1.weight"], parts["1.bias"] = (
        alpha * parts["1.weight"],
        alpha * parts["1.bias"],
    )
    parts["3.weight"] = parts["3.weight"] / alpha
    return loss.layout.flatten(parts)


loss, w = flatness.Loss.of(runs["fedsam:rho=0.3"]), runs["fedsam:rho=0.3"].x
factors = np.geomspace(0.2, 5, 11)
found = [measure(loss, rescale(loss, w, float(alpha))) for alpha in factors]

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
left.loglog(factors, [float(f["λ1"].values[0]) for f in found], "o-", label="λ1")
left.loglog(factors, [f["trace"].value for f in found], "s-", label="trace")
for key, mark in (("sharpness", "o-"), ("adaptive", "s-"), ("loss", "--")):
    right.loglog(
        factors,
        [f[key].value for f in found],
        mark,
        label={"adaptive": "adaptive sharpness"}.get(key, key),
    )
for axis in (left, right):
    axis.axvline(1, color="gray", lw=0.8, ls=":")
    axis.set_xlabel("α")
    axis.set_xticks([0.2, 0.5, 1, 2, 5], [0.2, 0.5, 1, 2, 5])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
ratio = max(float(f["λ1"].values[0]) for f in found) / min(
    float(f["λ1"].values[0]) for f in found
)
spread = max(f["loss"].value for f in found) - min(f["loss"].value for f in found)
print(f"λ1 varies by a factor of {ratio:.0f}, the loss by {spread:.0e}")

# %% [markdown]
# The dotted line is the trained model, and the dashed one its loss, which does not change. λ1, trace and sharpness grow in both directions without
# limit. The flattest of the three models above is now the sharpest, and its predictions have not changed.
#
# One measure does not change: *adaptive* sharpness (ASAM, Kwon et al., 2021) perturbs every parameter in proportion to its size, so that α cancels. It
# is immune to this rescaling, but that alone does not show that it predicts generalisation.

# %% tags=["check"]
assert ratio > 10 and spread < 1e-5
adaptive = [f["adaptive"].value for f in found]
assert max(adaptive) - min(adaptive) < 1e-4, adaptive
assert float(found[0]["λ1"].values[0]) > every["fedavg"]["λ1"].values[0]

# %% [markdown]
# ## Third trap: confidence
#
# Multiply the last layer by a number c. The loss changes now, but not a single decision: the largest output stays the largest.


# %%
def sharpen(loss, w, c):
    parts = dict(loss.layout.unflatten(w))
    return loss.layout.flatten(
        {**parts, "3.weight": c * parts["3.weight"], "3.bias": c * parts["3.bias"]}
    )


before = loss.outputs(w).argmax(1)
for c in (0.25, 0.5, 1.0, 2.0, 4.0, 16.0):
    there = sharpen(loss, w, c)
    same = (loss.outputs(there).argmax(1) == before).float().mean()
    lambda1 = flatness.spectrum(loss.hessian(there), top=1).lambda1
    print(
        f"c = {c:5}  decisions equal {same:.0%}   loss {loss.value(there):6.3f}   λ1 {lambda1:7.3f}"
    )

# %% [markdown]
# λ1 changes by a factor of ten, and no decision changes. Weight decay, label smoothing, longer training or a temperature change c, and with it λ1, without any
# change in what is usually meant by "a flat minimum". The loss changes as well, which is one more reason to compare curvatures only at similar losses.

# %% tags=["check"]
seen = [
    flatness.spectrum(loss.hessian(sharpen(loss, w, c)), top=1).lambda1
    for c in (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
]
assert 9 < max(seen) / min(seen) < 15, seen
assert all(
    (loss.outputs(sharpen(loss, w, c)).argmax(1) == before).all()
    for c in (0.25, 0.5, 2.0, 4.0, 16.0)
)

# %% [markdown]
# ## Fourth trap: the plane you choose
#
# A random direction does not scale with the parameters. Along such a direction of fixed length, the rescaled model looks sharp. If every
# filter of the direction is scaled to the norm of the model's filter (Li et al., 2018), both look the same:

# %%
reach = flatness.ticks(31, 1.0)
figure, axes = plt.subplots(
    1, 2, figsize=(8.5, 3), layout="constrained", sharey=True
)
for alpha in (1.0, 4.0):
    there = rescale(loss, w, alpha)
    plain = random * w.norm()
    normalised = flatness.filter_normalised(loss.layout, there, count=1)
    for axis, direction in zip(axes, (plain, normalised)):
        values = flatness.landscape(loss, there, direction, [reach]).values
        axis.plot(
            reach,
            values,
            lw=2,
            ls="-" if alpha == 1 else "--",
            label=f"α = {alpha:g}",
        )
axes[0].set(title="plain random direction", xlabel="step", ylabel="training loss")
axes[1].set(title="filter-normalised", xlabel="step")
axes[0].legend(frameon=False)
for axis in axes:
    axis.spines[["top", "right"]].set_visible(False)

# %% tags=["check"]
lines = [
    [
        flatness.landscape(loss, rescale(loss, w, a), d, [reach]).values
        for a in (1.0, 4.0)
        for d in (
            [random * w.norm()]
            if kind
            else [
                flatness.filter_normalised(
                    loss.layout, rescale(loss, w, a), count=1
                )
            ]
        )
    ]
    for kind in (True, False)
]
plain, normal = (np.abs(a - b).max() for a, b in lines)
assert normal < 0.02 and plain > 10 * normal, (plain, normal)

# %% [markdown]
# ## What can be concluded
#
# | | |
# |---|---|
# | λ1, trace, sharpness **show** | how the loss reacts to small changes of *these* parameters, on *this* sample; whether an optimiser that penalises them succeeds |
# | they **do not show** | how well the model generalises; anything across architectures, scalings or losses |
# | a landscape **shows** | what two chosen directions look like |
# | it **does not show** | what the other directions look like; which model is better |
#
# A convincing statement needs the same sample for all, similar losses, several seeds, the mean over late rounds, an invariant measure in
# addition to λ1, and the test metric. The commands do this by default: `steppe compare fedavg fedsam --seeds 3 -m lambda1,trace,asam`
# measures all final models on one sample, and `steppe analyze` names the sample in every output.
#
# ## Exercises
#
# 1. Rescale FedAvg's model with the α that minimises λ1. How much of FedSAM's advantage was a matter of scale?
# 2. Measure λ1 on 100 and on 1,000 training examples (`Loss.of(result, count=…)`). Which one is larger, and why?
# 3. Train with weight decay 0 and 0.01 at equal rounds. Compare λ1 and adaptive sharpness.
# 4. Draw the eigenvalues' density (`flatness.density(loss.hessian(w))`). How many of the 2,410 directions carry the trace?
#
# ## Where to go next
#
# - [All measures, their samples and uncertainties](../how-to/flatness.md)
# - [The methods that look for flat minima](../methods/index.md)
# - [Reproducing a table](7-reproducing-a-table.md)
