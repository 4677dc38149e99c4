"""What a user might bring: a model, and a part with a state on both sides."""

from dataclasses import dataclass

import torch
from torch import nn

from steppe import Metric, Part


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def next_token():
    return nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 20))


def norm_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


@dataclass(frozen=True)
class Drag(Part):
    """Pulls a client towards where it ended last, and towards the mean of all such ends."""

    name = "drag"
    down = ("mean",)
    strength: float = 0.1

    def server_state(self, x):
        return {"mean": x.clone()}

    def client_state(self, x):
        return {"last": x.clone()}

    def gradient(self, grad, w, s):
        return grad(w) + self.strength * (2 * w - s.state["last"] - s.down["mean"])

    def finish(self, delta, s):
        s.up["end"] = s.state["last"] = s.w
        return delta

    def server(self, delta, s):
        s.state["mean"] = s.up["end"]
        return delta


def parts():
    return Drag()


def private_parts():
    from steppe.parts.differential_privacy import DifferentialPrivacy

    return Drag(), DifferentialPrivacy(noise=1.0)


def few_samples():
    g = torch.Generator().manual_seed(3)
    return torch.randint(256, (30, 1, 8, 8), generator=g).to(torch.uint8), torch.arange(30) % 10


def broken():
    raise ValueError("patient 4711 has a secret")


margin = Metric("margin", lambda outputs, targets: outputs.max(1).values, lower=True)


class Masked(nn.Module):
    """Two inputs per sample, and predictions under a name that is not usual."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(20, 6), nn.Linear(6, 2)

    def forward(self, ids, keep):
        keep = keep[..., None].to(self.table.weight.dtype)
        return {"scores": self.last((self.table(ids) * keep).sum(1) / keep.sum(1))}


def scores(outputs):
    return outputs["scores"]


def focal(outputs, targets):
    nll = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (1 - (-nll).exp()) ** 2 * nll


def sentences(seed, count):
    g = torch.Generator().manual_seed(seed)
    keep = torch.arange(5) < torch.randint(2, 6, (count, 1), generator=g)
    return {"ids": torch.randint(20, (count, 5), generator=g), "keep": keep}, torch.randint(2, (count,), generator=g)


def of_client_0():
    return sentences(0, 30)


def of_client_1():
    """The same form as a torch data set."""
    inputs, y = sentences(1, 40)
    return [({k: v[i] for k, v in inputs.items()}, int(y[i])) for i in range(40)]


def of_the_server():
    return sentences(2, 50)


def nested():
    return {"ids": {"a": torch.zeros(3, 5)}, "keep": torch.ones(3, 5)}, torch.zeros(3).long()


def in_order():
    return tuple(sentences(0, 3)[0].values()), torch.zeros(3).long()
