"""What pages assume that their reader has: a model, data, an idea in a file, a configuration. All of it is tiny."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import steppe


class MyModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


@dataclass(frozen=True)
class LookBack(steppe.Part):
    """The README's own idea."""

    name = "look_back"
    rho: float = 0.05

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": x * 0}

    def gradient(self, grad: steppe.Oracle, w: Tensor, s: steppe.LocalStep) -> Tensor:
        return grad(w + self.rho * steppe.unit(s.state["last"]))

    def finish(self, delta: Tensor, s: steppe.ClientRound) -> Tensor:
        s.state["last"] = delta
        return delta


def make_samples(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 4, generator=draw) + nn.functional.one_hot(y, 4), y


FILES = {
    "base.toml": 'algorithm = "fedsam"\nmodel = "mlp"\nrounds = 2\n',
    "split.json": f"[{list(range(300))}, {list(range(300, 600))}, {list(range(600, 900))}]",
}
