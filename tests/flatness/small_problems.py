"""Small problems whose Hessian can be written down as a matrix."""

import torch
from torch import nn

from steppe.core.task import Task
from steppe.engine.quadratics import Quadratic
from steppe.flatness import Loss, Sample


class Normed(nn.Module):
    """Convolution, a normalisation, a linear layer: every kind of tensor in a few numbers."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), norm, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "group norm": lambda: Normed(nn.GroupNorm(2, 4)),
    "running statistics": lambda: Normed(nn.BatchNorm2d(4)),
    "batch statistics": lambda: Normed(nn.BatchNorm2d(4, track_running_stats=False)),
    "regression": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
}


def make(name, n=40, **options):
    """A loss in double precision, the model's vector, and f as a plain function."""
    torch.manual_seed(0)
    regression = name == "regression"
    task = Task(NETS[name](), "mse" if regression else "cross_entropy").to("cpu", torch.float64)
    if task.buffers:
        task.buffers = {k: b + torch.rand_like(b) for k, b in task.buffers.items()}
    inputs = (
        torch.randn(n, 6, dtype=torch.float64) if name in ("mlp", "regression") else torch.randn(n, 1, 5, 5).double()
    )
    targets = torch.randn(n, 2, dtype=torch.float64) if regression else torch.arange(n) % 3
    loss = Loss(task, Sample("toy", inputs, targets), **options)
    w = task.x0 + 0.3 * torch.randn_like(task.x0)

    def f(v):
        return task.loss(task.forward(v, inputs, loss.buffers, learning=False).logits, {"y": targets})

    return loss, w, f


def matrix(name, w, f):
    """The Hessian of f. torch.func.hessian fails for group norm, and is wrong for batch statistics: differences."""
    if name in ("group norm", "batch statistics"):
        slope, step = torch.func.grad(f), 1e-5
        rows = [(slope(w + step * e) - slope(w - step * e)) / (2 * step) for e in torch.eye(len(w), dtype=w.dtype)]
        return torch.stack(rows)
    return torch.func.hessian(f)(w)


def quadratic(problem):
    """The task, and each client's Loss, of a federation of quadratics."""
    x0 = torch.tensor(problem["x0"], dtype=torch.float64)
    task = Task(Quadratic(x0, problem["tensors"]), loss=lambda outputs, _: outputs, head="head")
    clients = []
    for i, c in enumerate(problem["clients"]):
        A, b = torch.tensor(c["A"], dtype=torch.float64), torch.tensor(c["b"], dtype=torch.float64)
        clients.append(Loss(task, Sample(f"client {i}", torch.cat([A, b[:, None]], 1)[None], torch.zeros(1))))
    return task, clients


class Matrix:
    """A symmetric matrix with the manners of a Hessian."""

    def __init__(self, H):
        self.H, self.size, self.w, self.products = H, len(H), H[0], 0

    def __call__(self, v):
        self.products += 1 if v.ndim == 1 else len(v)
        return v @ self.H
