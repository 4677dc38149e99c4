"""Train one client after the other: fast on a CPU, required by batch statistics, and the simplest to read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Live, Reply, Sent, begin, end, find_storages, list_tensors, make_empty_replies, step
from steppe.core.keyed import as_seed, key
from steppe.core.stacking import put_row, stack
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.executors.executor import Answers, answer_for_all

DROPOUT = 3  # separates this use of (seed, round, client) from all others


def train(algorithm: Algorithm, task: Task, federation: Federation, sent: Sent, client: int, state: States,
          into: Tensor | None = None) -> Reply:  # fmt: skip
    """Train one client for a whole round. Short batches keep their real size, so nothing is padded."""
    steps = sent.lr.new_tensor(float(federation.steps(client, algorithm.local_steps)))
    with torch.no_grad():
        live = begin(algorithm, task, sent, state, steps)
        if steps:  # otherwise there is nothing to plan
            live = _take_steps(algorithm, task, federation, sent, client, live, steps)
        return end(algorithm, task, sent, live, steps, into)


def _take_steps(algorithm: Algorithm, task: Task, federation: Federation, sent: Sent, client: int, live: Live,
             steps: Tensor) -> Live:  # fmt: skip
    round_, per_step = int(sent.round), algorithm.batches_per_step
    batches = federation.plan([client], round_, algorithm.local_steps, per_step)
    real = batches.mask[0].sum(1).tolist()
    index, keys = batches.index[0].to(sent.x.device), batches.keys[0].to(sent.x.device)
    _seed(as_seed(key(federation.seed, round_, client, DROPOUT)), sent.x.is_cuda)
    for k in range(batches.steps[0]):
        several = tuple(federation.batch(index[j, : real[j]], keys[j]) for j in range(k * per_step, (k + 1) * per_step))
        now = sent.lr.new_tensor(float(k))
        live = step(algorithm, task, sent, live, several, now, steps, spend=_may_overwrite(algorithm, live, sent))
    return live


def _may_overwrite(algorithm: Algorithm, live: Live, sent: Sent) -> bool:
    """Return whether a step may overwrite w and the optimiser's state.

    Three conditions: no two tensors share memory, either here or with what was sent; no part takes the optimiser's
    step twice; and no client continues from the rows of the store (`alone`).
    """
    held = [live.w, *list_tensors(live.parts), *live.core.values(), *live.buffers.values()]
    places = find_storages(*held)
    received = find_storages(sent.x, *list_tensors(sent.down), *sent.buffers.values())
    apart = len(places) == len(held) and not places & received
    return apart and not algorithm.alone and not algorithm.repeats_optimiser


def _seed(seed: int, cuda: bool) -> None:
    """Do what torch.manual_seed does, without the traceback that it formats for absent devices, which is slow."""
    torch.default_generator.manual_seed(seed)
    if cuda:
        torch.cuda.manual_seed(seed)


class Sequential:
    """An executor that trains the round's clients in this process, one after the other."""

    trusted = True

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation) -> None:
        self.algorithm, self.task, self.federation = algorithm, task, federation
        self.rows: Reply | None = None  # kept, because new memory every round would cost more than the copies

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Train these clients and return their replies, stacked. The next call reuses all memory but the states'."""
        if self.rows is None or len(self.rows.loss) < len(ids):
            like = make_empty_replies(self.algorithm, self.task, sent, states[0])._replace(state={})
            self.rows = tree_map(lambda t: t.new_empty((len(ids), *t.shape[1:])), like)
        kept = []
        for place, (client, state) in enumerate(zip(ids, states, strict=True)):
            into = self.rows.update[place]
            reply = train(self.algorithm, self.task, self.federation, sent, client, state, into)
            kept.append(reply.state)
            put_row(self.rows, place, reply._replace(state={}))
        together: Reply = tree_map(lambda rows: rows[: len(ids)], self.rows)
        return answer_for_all(self.federation, ids, together._replace(state=stack(kept)))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
