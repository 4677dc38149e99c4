"""Combinations as users run them, through `steppe.run`, against one plain program on a network that is not convex."""

from pathlib import Path

import pytest
import torch
from tests.references import combinations
from torch import nn
from torch.nn import functional as F

import steppe

COMMON = {"lr": 0.2, "lr_decay": 0.9, "momentum": 0.6, "decay": 0.03, "clip": 0.7, "weighting": "samples"}
SHAPES = [torch.Size(shape) for shape in ((6, 5), (6,), (4, 6), (4,), (3, 4), (3,))]  # of the network's tensors
# What is run; what the plain program is told; and what the run is told besides.
CASES = {
    "fedsam, no clip": (["fedsam"], {"rho": 0.3, "sam": 1e-12, "clip": None}, {"rho": 0.3}),
    "fedsam+ema": (["fedsam", "ema:keep=0.7"], {"rho": 0.3, "sam": 1e-12, "ema": 0.7}, {"rho": 0.3}),
    "fedsmoo+man": (["fedsmoo", "man:weight=0.4"], {"rho": 0.2, "smoo": 1, "alpha": 0.3, "man": 0.4},
                    {"rho": 0.2, "alpha": 0.3}),
    "fedlesam_d+man+ema": (["fedlesam_d", "man:weight=0.4", "ema:keep=0.5"],
                           {"rho": 0.2, "lesam": 1, "alpha": 0.3, "man": 0.4, "ema": 0.5}, {"rho": 0.2, "alpha": 0.3}),
    "scaffold+sam": (["scaffold", "sam:rho=0.3"], {"rho": 0.3, "sam": 1e-12, "variates": 1}, {}),
    "scaffold+sam, uniform": (["scaffold", "sam:rho=0.3"],
                              {"rho": 0.3, "sam": 1e-12, "variates": 1, "weighting": "uniform"}, {}),
    "fedgamma+norm_bound": (["fedgamma", "norm_bound:limit=0.6"],
                            {"rho": 0.2, "sam": 1e-7, "variates": 1, "bound": 0.6}, {"rho": 0.2}),
    "feddyn+sam": (["feddyn", "sam:rho=0.3"], {"rho": 0.3, "sam": 1e-12, "alpha": 0.3}, {"alpha": 0.3}),
    "feddyn official+sam": (["feddyn", "sam:rho=0.3"], {"rho": 0.3, "sam": 1e-12, "alpha": 0.3, "order": "official"},
                            {"alpha": 0.3, "variant": "official"}),
    "feddyn+relaxed_start": (["feddyn", "relaxed_start:beta=0.4"], {"alpha": 0.3, "beta": 0.4}, {"alpha": 0.3}),
    "fedspeed+norm_bound": (["fedspeed", "norm_bound:limit=0.5"],
                            {"rho": 0.2, "sam": 1e-7, "alpha": 0.3, "over": "active", "bound": 0.5},
                            {"rho": 0.2, "alpha": 0.3}),
    "feddyn+norm_bound": (["feddyn", "norm_bound:limit=0.3"], {"alpha": 0.3, "bound": 0.3}, {"alpha": 0.3}),
    "mofedsam": (["mofedsam"], {"rho": 0.2, "sam": 1e-7, "cm": 0.4}, {"rho": 0.2, "alpha": 0.4}),
    "mofedsam, uniform": (["mofedsam"], {"rho": 0.2, "sam": 1e-7, "cm": 0.4, "weighting": "uniform"},
                          {"rho": 0.2, "alpha": 0.4}),
    "fedcm+relaxed_start": (["fedcm", "relaxed_start:beta=0.4"], {"cm": 0.4, "beta": 0.4}, {"alpha": 0.4}),
    "fedavgm+man+ema": (["fedavgm", "man:weight=0.4", "ema:keep=0.5"], {"server_momentum": 0.5, "man": 0.4, "ema": 0.5},
                        {"server_momentum": 0.5}),
    "feddc+sam": (["feddc", "sam:rho=0.2"], {"rho": 0.2, "sam": 1e-12, "variates": 1, "alpha": 0.3},
                  {"alpha": 0.3, "variant": "official"}),
    "fedprox+sam+rate_cycle": (["fedprox", "sam:rho=0.2", "rate_cycle:end=0.2"],
                               {"rho": 0.2, "sam": 1e-12, "mu": 0.5, "end": 0.2}, {"mu": 0.5}),
    "fedgamma+rate_cycle": (["fedgamma", "rate_cycle:end=0.2"], {"rho": 0.2, "sam": 1e-7, "variates": 1, "end": 0.2},
                            {"rho": 0.2}),
    "fednova+sam+rate_cycle+ema": (["fednova", "sam:rho=0.2", "rate_cycle:end=0.2", "ema:keep=0.5"],
                                   {"rho": 0.2, "sam": 1e-12, "nova": 1, "end": 0.2, "ema": 0.5}, {}),
    "fedcm+rate_cycle+relaxed_start": (["fedcm", "rate_cycle:end=0.2", "relaxed_start:beta=0.4"],
                                       {"cm": 0.4, "end": 0.2, "beta": 0.4}, {"alpha": 0.4}),
    "fedspeed official+man": (["fedspeed", "man:weight=0.4"], {"rho": 0.2, "sam": 1e-7, "alpha": 0.3, "man": 0.4,
                              "order": "official"}, {"rho": 0.2, "alpha": 0.3, "variant": "official"}),
    "curved dual+man+ema": (["fedsol", "man:weight=0.4", "dynamic_regularisation:alpha=0.3,prox=none", "ema:keep=0.5"],
                            {"rho": 0.5, "curved": SHAPES, "alpha": 0.3, "order": "none", "man": 0.4, "ema": 0.5},
                            {"rho": 0.5, "proximal": "l2"}),
    "takyr": (["takyr"], {"rho": 0.5, "curved": SHAPES, "alpha": 0.3, "order": "none", "man": 0.4, "ema": 0.5},
              {"rho": 0.5, "alpha": 0.3, "weight": 0.4, "keep": 0.5}),
    "curved dual of the head+man": (["fedsol", "man:weight=0.4",
                                     "dynamic_regularisation:alpha=0.3,prox=none,last=15", "norm_bound:limit=0.6"],
                                    {"rho": 0.5, "curved": SHAPES, "alpha": 0.3, "order": "none", "man": 0.4,
                                     "last": 15, "bound": 0.6}, {"rho": 0.5, "proximal": "l2"}),
    "dual of the head, active": (["fedavg", "dynamic_regularisation:alpha=0.3,over=active,last=15"],
                                 {"alpha": 0.3, "over": "active", "last": 15}, {}),
    "dual of the head+relaxed_start": (["fedavg", "dynamic_regularisation:alpha=0.3,last=15", "relaxed_start:beta=0.4"],
                                       {"alpha": 0.3, "last": 15, "beta": 0.4}, {}),
    "feddyn+man+server_ascent": (["feddyn", "man:weight=0.4", "server_ascent:rho=0.2"],
                                 {"rho": 0.2, "shift": "mean", "alpha": 0.3, "man": 0.4}, {"alpha": 0.3}),
    "feddyn+server_ascent, update": (["feddyn", "server_ascent:rho=0.2,along=update"],
                                     {"rho": 0.2, "shift": "update", "alpha": 0.3}, {"alpha": 0.3}),
}  # fmt: skip


def network():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()


def data():
    g = torch.Generator().manual_seed(1)
    return torch.randn(60, 5, generator=g).double(), torch.randint(3, (60,), generator=g)


def gradient(w, batch, man):
    model, begin = network(), 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(w[begin : begin + p.numel()].reshape(p.shape))
            begin += p.numel()
    a = torch.tanh(model[0](batch[0]))
    b = torch.relu(model[2](a))
    loss = F.cross_entropy(model[4](b), batch[1]) + man / 2 * ((a**2).mean() + (b**2).mean())
    return torch.cat([v.reshape(-1) for v in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("case", CASES)
def test_the_combination_is_what_the_plain_program_computes(case):
    (name, *add), recipe, settings = CASES[case]
    recipe = {k: v for k, v in {**COMMON, **recipe}.items() if v is not None}
    x, y = data()
    torch.manual_seed(3)
    model = network()
    x0 = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    keys = {"rounds": 5, "clients": 4, "sampling": "bernoulli", "per_round": 3, "dropout": 0.35, "seed": 3}
    result = steppe.run(name, model=model, data=(x, y, x[:9], y[:9]), partition="lda(1)", add=add,
                        settings=settings, epochs=2, batch=4, dtype="float64", lr=recipe["lr"],
                        lr_decay=recipe["lr_decay"], momentum=recipe["momentum"], weight_decay=recipe["decay"],
                        clip=recipe.get("clip"), progress=False, weighting=recipe["weighting"], **keys)  # fmt: skip
    calls = [record.get("participants", []) for record in result.history]
    assert [len(ids) for ids in calls] == [1, 3, 1, 0, 2], "nobody, one, some of the clients"
    federation, algorithm = result.experiment.federation, result.experiment.algorithm

    def batches(t, i):
        plan = federation.plan([i], t, algorithm.local_steps, 1)
        for index, mask in zip(plan.index[0], plan.mask[0], strict=True):
            yield x[index[mask]], y[index[mask]]

    trained, judged = combinations.run(recipe, x0, gradient, batches, calls, federation.sizes)
    assert float((result.server.x - trained[-1]).abs().max()) < 1e-10
    assert float((result.x - judged[-1]).abs().max()) < 1e-10
    assert float((trained[-1] - x0).norm()) > 0.1


def test_the_evidence_says_how_many():
    text = (Path(__file__).parents[2] / "docs/evidence.md").read_text()
    assert f"{len(CASES)}\n  combinations that people use equal one plain program to 1e-10" in text
