"""One client after the other: what a CPU wants, what batch statistics need, and the plainest thing to read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Reply, Sent, begin, end, step
from steppe.core.keyed import as_seed, key
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.simulate.stacking import stack

DROPOUT = 3  # keeps this use of (seed, round, client) apart


def train(algorithm: Algorithm, task: Task, federation: Federation, sent: Sent, client: int, state: States) -> Reply:
    """One client's whole round. Its last batches are cut to their real size, so nothing is padded."""
    round_, per_step = int(sent.round), algorithm.batches_per_step
    batches = federation.plan([client], round_, algorithm.local_steps, per_step)
    real = batches.mask[0].sum(1).tolist()
    index, keys = batches.index[0].to(sent.x.device), batches.keys[0].to(sent.x.device)
    steps = sent.lr.new_tensor(float(batches.steps[0]))
    _seed(as_seed(key(federation.seed, round_, client, DROPOUT)), sent.x.is_cuda)
    with torch.no_grad():
        live = begin(algorithm, task, sent, state, steps)
        for k in range(batches.steps[0]):
            several = tuple(
                federation.batch(index[j, : real[j]], keys[j]) for j in range(k * per_step, (k + 1) * per_step)
            )
            live = step(algorithm, task, sent, live, several, sent.lr.new_tensor(float(k)), steps)
        return end(algorithm, task, sent, live, steps)


def _seed(seed: int, cuda: bool) -> None:
    """What torch.manual_seed does, less the traceback that it formats for devices that are not there."""
    torch.default_generator.manual_seed(seed)
    if cuda:
        torch.cuda.manual_seed(seed)


class Sequential:
    """Trains the round's clients in this process."""

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation) -> None:
        self.algorithm, self.task, self.federation = algorithm, task, federation

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Reply:
        """Replies stacked in the order of the ids."""
        replies: Reply = stack([train(self.algorithm, self.task, self.federation, sent, i, s)
                                for i, s in zip(ids, states, strict=True)])  # fmt: skip
        return replies

    def close(self) -> None:
        """Nothing to give back."""
