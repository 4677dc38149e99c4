"""What a user might bring: a model, and a part with a state on both sides."""

from dataclasses import dataclass

import torch
from torch import nn

from steppe import Metric, Part


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


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
