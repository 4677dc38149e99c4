"""Train all clients of a round at once with vmap: fast on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Live, Reply, Sent, begin, by_transform, end, step
from steppe.core.keyed import as_seed, key
from steppe.core.layout import Tensors
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.executors.client_conv import ClientConvolutions
from steppe.executors.executor import Answers, answer_for_all
from steppe.executors.sequential import DROPOUT


class Batched:
    """An executor that trains `chunk` clients at a time in parallel (None: all). `chunk` bounds the memory."""

    trusted = False  # drifts stay on the device, where checking them is cheap

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation, chunk: int | None = None) -> None:
        self.algorithm, self.task, self.federation, self.chunk = algorithm, task, federation, chunk
        self.round_ = 0

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Train these clients and return their replies, stacked in the order of the ids."""
        steps = [self.federation.steps(i, self.algorithm.local_steps) for i in ids]
        # Longest first, so that the clients that still have steps left are always a prefix.
        order = sorted(range(len(ids)), key=lambda i: -steps[i])
        size = self.chunk or len(ids)
        self.round_ = int(sent.round)  # the only synchronisation with the device before the end of the round
        chunks = [order[begun : begun + size] for begun in range(0, len(order), size)]
        replies = [self._train(sent, [ids[i] for i in some], [states[i] for i in some]) for some in chunks]
        back = torch.tensor(sorted(range(len(order)), key=order.__getitem__)).to(sent.x.device, non_blocking=True)
        stacked: Reply = tree_map(lambda *rows: (torch.cat(rows) if len(rows) > 1 else rows[0])[back], *replies)
        return answer_for_all(self.federation, ids, stacked)

    def _train(self, sent: Sent, ids: list[int], states: list[States]) -> Reply:
        algorithm, task, federation, device = self.algorithm, self.task, self.federation, sent.x.device
        per_step, round_ = algorithm.batches_per_step, self.round_
        plan = federation.plan(ids, round_, algorithm.local_steps, per_step)
        index, mask, keys = plan.index.to(device), plan.mask.to(device), plan.keys.to(device)
        steps = torch.tensor(plan.steps, dtype=sent.lr.dtype, device=device)
        torch.manual_seed(as_seed(key(federation.seed, round_, ids[0], DROPOUT)))

        def step_(live: Live, several: tuple[Tensors, ...], k: Tensor, n: Tensor) -> Live:
            with ClientConvolutions():
                return step(algorithm, task, sent, live, several, k, n, by_transform)

        with torch.no_grad():
            # Without out_dims, a start that does not depend on the client would come out of vmap only once.
            live = vmap(lambda s, n: begin(algorithm, task, sent, s, n), out_dims=0)(stack(states), steps)
            for k in range(max(plan.steps)):
                active = sum(n > k for n in plan.steps)
                several = []
                for j in range(k * per_step, (k + 1) * per_step):
                    batch = federation.batch(index[:active, j], keys[:active, j])
                    several.append({**batch, "mask": mask[:active, j]})
                now = tree_map(lambda t: t[:active], live)  # noqa: B023
                after = vmap(step_, in_dims=(0, 0, None, 0), randomness="different")(
                    now, tuple(several), sent.lr.new_tensor(float(k)), steps[:active]
                )
                live = tree_map(lambda new, old: torch.cat([new, old[active:]]), after, live)  # noqa: B023
            return vmap(lambda v, n: end(algorithm, task, sent, v, n))(live, steps)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
