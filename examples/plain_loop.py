"""Steppe's rules inside your own loop.

Two clients train with SCAFFOLD; they and the server exchange only dicts of tensors.
"""

import torch
from torch import nn

import steppe


def main(rounds: int = 20, algorithm: str = "scaffold") -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    y = torch.arange(120) % 3
    x = torch.randn(120, 6) + 2 * nn.functional.one_hot(y, 6)
    shares = {0: (x[:80], y[:80]), 1: (x[80:], y[80:])}

    server = steppe.server(algorithm, model, clients=2, samples=120, lr=0.1)
    clients = {i: steppe.client(algorithm, model) for i in shares}
    for _ in range(rounds):
        message, replies = server.send(), []
        for i, (inputs, targets) in shares.items():
            batches = list(zip(inputs.split(20), targets.split(20), strict=True))
            clients[i].begin(message, steps=len(batches))
            for pair in batches:
                clients[i].step(*pair)
            replies.append(clients[i].end(samples=len(targets)))
        server.aggregate(replies)
    score = (server.model(x).argmax(1) == y).float().mean().item()
    print(f"{algorithm}, {server.round} rounds: {score:.1%} of the training samples")
    return score


if __name__ == "__main__":
    main()
