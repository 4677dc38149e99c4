"""Everything that a run needs and that does not change while it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.cost import Cost
from steppe.core.schedules import exponential, look_up, steps, warm_up
from steppe.core.task import Task
from steppe.data import sampling
from steppe.data.federation import Federation
from steppe.parts.differential_privacy import DifferentialPrivacy, find_privacy
from steppe.settings import parse_schedule

WORTH_WORKERS = 2e10  # FLOPs per round above which child processes are worth the cost of starting them


@dataclass
class Experiment:
    """A run before it starts: `engine.build` creates it, the round loop runs it."""

    config: Config
    algorithm: Algorithm
    task: Task
    federation: Federation
    cost: Cost
    notes: list[str] = field(default_factory=list)  # messages for the user

    @property
    def privacy(self) -> DifferentialPrivacy | None:
        """Return the differential privacy part, if there is one."""
        return find_privacy(self.algorithm.parts)

    def sample(self, round_: int) -> list[int]:
        """Sample the round's clients, in the order of the released code."""
        c, private = self.config, self.privacy
        if private is not None and private.amplified:  # with its own key; possibly no client at all
            return private.sample(c.clients, round_)
        seed = c.sampling_stream
        if c.sampling == "bernoulli":
            drawn = sampling.bernoulli(c.clients, c.per_round / c.clients, round_, 20 if seed is None else seed)
        elif c.sampling == "sparse":
            drawn = sampling.sparse(c.clients, c.per_round, round_, seed or 0)
        else:
            drawn = sampling.fixed(c.clients, c.per_round, round_, seed or 0, official=seed is None)
        return list(map(int, drawn))

    def lr(self, round_: int) -> float:
        """Return the local learning rate of a round."""
        return find_rate(self.config, round_)

    def steps(self, client: int) -> int:
        """Return the number of local steps of a client per round."""
        return self.federation.steps(client, self.algorithm.local_steps)

    @property
    def small(self) -> bool:
        """Return whether a round is too little work for child processes or several threads."""
        federation, count = self.federation, self.algorithm.local_steps
        steps = sum(n * federation.steps_over(size, count) for size, n in Counter(federation.sizes).items())
        return self.cost.flops * steps / max(federation.clients, 1) * self.config.per_round < WORTH_WORKERS


def find_rate(c: Config, round_: int) -> float:
    """Return the learning rate that the schedule of a configuration has in a round."""
    if not isinstance(c.lr_schedule, str):
        return c.lr * look_up(c.lr_schedule, round_)
    s = parse_schedule(c.lr_schedule)
    if round_ < s.warm_up:
        return c.lr * warm_up(round_, s.warm_up)
    numbers = [c.lr_decay] if s.function is exponential and not s.numbers else s.numbers
    begun = 0 if s.function is steps else int(s.warm_up)  # milestones are rounds of the run; others have their own 0
    return c.lr * s.function(round_ - begun, c.rounds - begun, *numbers, **s.named)
