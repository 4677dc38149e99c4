"""Personalised evaluation: the metric of each client after it has fine-tuned the model on its own data.

Each client trains the global model for e epochs and is evaluated on a test set with its own class shares. The result
is the mean and the population standard deviation over clients, with equal weights. How a client trains depends on the
algorithm, as in FedSoL's Table 5:

    perfedavg     its own meta-steps, e·⌈B/E⌉ of them for B batches per epoch and E epochs per round
    fedbabu       plain gradients, with the head unfrozen
    knnper        plain gradients (none for e = 0), then predictions mixed with those of the nearest training examples
    local         no training: the clients' own models are evaluated as they are
    any other     plain gradients with fresh momentum: FedAvg-FT, FedSoL-FT (the ascent is not used for fine-tuning)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.client import Sent, begin, step
from steppe.core.inputs import Inputs, take
from steppe.core.keyed import as_seed, key, permutation
from steppe.core.layout import Tensors
from steppe.core.task import Task
from steppe.data.plan import size_batches
from steppe.evaluate.score import judge, make_judge, score
from steppe.parts.adamw import AdamW
from steppe.parts.frozen_head import FrozenHead
from steppe.parts.look_ahead import FixedRate, LookAhead
from steppe.parts.nearest_neighbours import NearestNeighbours
from steppe.parts.own_model import OwnModel
from steppe.parts.own_optimiser import OwnOptimiser
from steppe.parts.sgd import SGD

MEMORY = 500  # at most this many training examples are in kNN-Per's memory
_ORDER, _AUGMENT, _MEMORY, _DROPOUT = 11, 12, 13, 14  # separates the uses of (seed, client)


class Client(NamedTuple):
    """One client's own data."""

    inputs: Inputs
    targets: Tensor
    test_inputs: Inputs
    test_targets: Tensor


class Personal(NamedTuple):
    """A metric over clients."""

    mean: float
    std: float
    each: tuple[float, ...]


def is_personal(algorithm: Algorithm) -> bool:
    """Return whether the algorithm is meant to be evaluated by its clients' own models."""
    return any(isinstance(p, OwnModel | FrozenHead | LookAhead | NearestNeighbours) for p in algorithm.parts)


def make_tuner(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm for fine-tuning: the local optimiser, and meta-steps if the algorithm has them."""
    kept = (SGD, AdamW, OwnOptimiser, LookAhead, FixedRate)
    return Algorithm(tuple(p for p in algorithm.parts if isinstance(p, kept)), f"{algorithm.name}, tuned")


def fine_tune(
    algorithm: Algorithm, task: Task, w: Tensor, batches: Iterable[Tensors], steps: Sequence[int],
    lr: Callable[[int], float], buffers: Tensors | None = None,
) -> list[tuple[Tensor, Tensors]]:  # fmt: skip
    """Return parameters and statistics after each of these numbers of steps; `lr` is a function of the step."""
    sent = Sent(w, {}, task.buffers if buffers is None else buffers, w.new_tensor(lr(0)), w.new_zeros(()))
    total, stream = w.new_tensor(float(max(steps))), iter(batches)
    with torch.no_grad():
        live = begin(algorithm, task, sent, algorithm.client_state(w), total)
        reached = {0: (live.w, live.buffers)}
        for k in range(max(steps)):
            several = tuple(next(stream) for _ in range(algorithm.batches_per_step))
            now = sent._replace(lr=w.new_tensor(lr(k)))
            live = step(algorithm, task, now, live, several, w.new_tensor(float(k)), total)
            if k + 1 in steps:
                reached[k + 1] = (live.w, live.buffers)
    return [reached[k] for k in steps]


def shuffle_batches(inputs: Inputs, targets: Tensor, size: int, seed: int, client: int,
                    augment: Callable[[Inputs, Tensor], Any], last: str = "keep") -> Iterator[Tensors]:  # fmt: skip
    """Yield batches without end: a new order every epoch."""
    sizes = size_batches(len(targets), size, last)
    for epoch in count():
        order = permutation(key(seed, client, epoch, _ORDER), len(targets)).to(targets.device)
        for j, part in enumerate(torch.split(order[: sum(sizes)], sizes)):
            k = key(seed, client, epoch, j, _AUGMENT).to(targets.device)
            yield {"x": augment(take(inputs, part), k), "y": targets[part]}


def evaluate_personal(
    algorithm: Algorithm, task: Task, x: Tensor, clients: Iterable[Client], lr: float, epochs: Sequence[int] = (1, 5),
    batch_size: int = 50, round_epochs: int = 5, lr_decay: float = 1.0, seed: int = 0, buffers: Tensors | None = None,
    plain: Callable[[Inputs], Inputs] = lambda inputs: inputs,
    augment: Callable[[Inputs, Tensor], Any] | None = None, last_batch: str = "keep",
) -> dict[int, Personal]:  # fmt: skip
    """Compute the task's metric after each number of epochs; an algorithm whose clients train alone has only 0.

    `x` is the global model (P,), or the clients' own models (N, P). `lr_decay` applies per epoch. `plain` normalises
    raw inputs, `augment` (inputs, key) prepares a training batch. To train a local model from scratch with momentum,
    call this with `fedavg` parts, the initial x and 200 epochs.
    """
    own = make_tuner(algorithm)
    neighbours = next((p for p in algorithm.parts if isinstance(p, NearestNeighbours)), None)
    epochs = (0,) if algorithm.alone else tuple(epochs)
    statistics = task.buffers if buffers is None else buffers
    results: dict[int, list[float]] = {e: [] for e in epochs}
    for i, client in enumerate(clients):
        an_epoch = len(size_batches(len(client.targets), batch_size, last_batch))
        per_epoch = own.local_steps(round_epochs, an_epoch) // round_epochs
        stream = shuffle_batches(client.inputs, client.targets, batch_size, seed, i, augment or (lambda v, _: plain(v)),
                                 last_batch)  # fmt: skip
        torch.manual_seed(as_seed(key(seed, i, _DROPOUT)))
        rates = [lr * lr_decay ** (k // per_epoch) for k in range(max(epochs) * per_epoch + 1)]
        tuned = fine_tune(own, task, x if x.ndim == 1 else x[i], stream, [e * per_epoch for e in epochs],
                          rates.__getitem__, statistics)  # fmt: skip
        if not len(client.test_targets):  # a client of a natural federation may have no test samples
            continue
        for e, (w, after) in zip(epochs, tuned, strict=True):
            if neighbours is None:
                metric = score(task, w, after, client.test_inputs, client.test_targets, plain).metric
            else:
                metric = _score_with_neighbours(neighbours, task, w, after, client, plain, key(seed, i, _MEMORY))
            results[e].append(metric)
    return {e: average_clients(each) for e, each in results.items()}


def average_clients(each: Sequence[float]) -> Personal:
    """Return the mean and the population standard deviation."""
    values = torch.tensor(each, dtype=torch.float64)
    return Personal(float(values.mean()), float(values.std(correction=0)), tuple(each))


def _score_with_neighbours(part: NearestNeighbours, task: Task, w: Tensor, buffers: Tensors, client: Client,
                     plain: Callable[[Inputs], Inputs], k: Tensor, batch: int = 1000) -> float:  # fmt: skip
    def seen(inputs: Inputs) -> tuple[Tensor, Tensor]:
        out = task.forward(w, plain(inputs), buffers, frozenset({"features"}), learning=False)
        assert out.features is not None
        return out.logits, out.features.flatten(1)

    chosen = permutation(k, len(client.targets))[:MEMORY].to(client.targets.device)
    with torch.no_grad():
        memory, labels = seen(take(client.inputs, chosen))[1], client.targets[chosen]
        (found,) = judge([make_judge(task.metric)], (
            (part.predict(*seen(take(client.test_inputs, some)), memory, labels), client.test_targets[some])
            for some in torch.split(torch.arange(len(client.test_targets), device=client.targets.device), batch)
        ))  # fmt: skip
    return found.value()
