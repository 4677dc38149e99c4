"""The GPU benchmark's job in a size that a CPU does in no time; a module of its own, for other processes to import.

A client's samples are one batch and its images are their own mirror images, so that neither shuffling nor flipping
changes anything: whoever does the job rightly ends with the plain loop's model.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from benchmarks import contenders, gpu_hand_loop, jobs, others
from steppe.data import from_arrays
from steppe.models import build

JOB = jobs.Job(clients=3, per_round=3, samples=4, batch=4, epochs=3, lr=0.05, momentum=0.9, decay=0.1, evaluated=True)
ROUNDS = 2


class Bytes(gpu_hand_loop.HandLoop):
    """Nobody converts images on their way: that is part of a step."""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        assert images.dtype == torch.uint8
        return super().loss(model, images, labels)


def make() -> gpu_hand_loop.HandLoop:
    torch.manual_seed(0)
    half = torch.randint(256, (12, 3, 32, 16), dtype=torch.uint8)
    images, labels = torch.cat([half, half.flip(-1)], dim=-1).numpy(), torch.arange(12).numpy() % 10
    data = from_arrays(images, labels, images, labels, classes=10)  # what is learnt is seen
    return Bytes(build("cnn", 10, (3, 32, 32)), data, tuned=False, device="cpu", job=JOB)


def race(name: str, rounds: int) -> None:
    """As a contender that is told when to train a round."""
    others.JOBS["gpu"] = (JOB, make)
    contenders.main(name, "gpu", rounds)


def compare(name: str) -> None:
    """Prints how far the framework's model is from the plain loop's, and how far that one went."""
    told: list[float | None] = []
    if name == "pfl":
        others.pfl(JOB, make, ROUNDS, told.append)
    else:
        others.flower(JOB, make, ROUNDS, told.append, 1)
    plain = make()
    start = [p.detach().clone() for p in plain.model.parameters()]
    assert told == [plain.round() for _ in range(ROUNDS)], told
    theirs = others.made(make)

    def apart(ps, qs) -> float:  # type: ignore[no-untyped-def]
        return max(float((p - q).abs().max()) for p, q in zip(ps, qs, strict=True))

    print(
        f"{name} {apart(theirs.model.parameters(), plain.model.parameters())} {apart(start, plain.model.parameters())}"
    )


if __name__ == "__main__":
    import tiny_job  # not __main__, which others cannot import

    tiny_job.compare(sys.argv[1]) if len(sys.argv) == 2 else tiny_job.race(sys.argv[1], int(sys.argv[2]))
