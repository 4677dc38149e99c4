"""Which clients answer in a round: simulated failures, slow devices and a deadline.

    time of client i in round t = speed_i · jitter_ti · steps_i · passes        passes = gradients + forwards / 3

`speed` gives the distribution over clients of the seconds per gradient, as one of the rules below. The last number,
the jitter, is optional. It is the σ of a log-normal factor, drawn for every round and client.

    constant(1, jitter)          every client takes 1 s
    uniform(0.5, 2, jitter)      between 0.5 s and 2 s
    lognormal(0.5, jitter)       exp(0.5 z) s with z normal: half of the clients are slower than 1 s, some much slower

A step of SAM takes two gradients, and therefore twice the time. An additional forward pass counts a third of a
gradient. `deadline` is a number of seconds, or a multiple of the median time of the round's clients, such as `1.5x`.
With a deadline, a round ends when all clients have answered, or else at the deadline. Without one, the server notices
a failure when the answer would have been due.

A reply is not counted if the client failed (with probability `dropout`) or was late. Such a client has no effect.
The weights are renormalised over the clients that answered, and the server's rules use only those. The next time the
client is called, it starts from its previous state, as a node must whose reply was never acknowledged. Otherwise the
variates of SCAFFOLD and FedDyn would count work that the server never saw. Such a client is therefore not trained.
All draws are keyed by (seed, round, client), so that all algorithms, executors and resumed runs see the same failures.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steppe.config import Config
from steppe.core.errors import SettingError, quote
from steppe.core.keyed import key, uniform
from steppe.experiment import Experiment
from steppe.settings import parse_rule

WIDEST = 20.0  # largest spread or jitter, in units of the logarithm: e²⁰ seconds are 15 years
FAILS, SPEED, JITTER = 0xFA11, 0x59EED, 0x717  # keep these uses of a key apart from every other


class Available(NamedTuple):
    """The clients that answer in time, and the record's facts about the others."""

    ids: list[int]
    facts: dict[str, Any]


def find_available(experiment: Experiment, t: int, called: list[int]) -> Available:
    """Find which of the clients called in round t answer in time."""
    config = experiment.config
    if not config.dropout and config.speed is None:
        return Available(list(called), {})
    who = torch.tensor(called)
    fails = (uniform(key(config.seed, t, who, FAILS), 1)[:, 0] < config.dropout).tolist()
    facts: dict[str, Any] = {}
    late: list[int] = []
    if config.speed is not None:
        took = draw_times(experiment, t, called)
        limit = _limit(config.deadline, list(took.values()))
        late = [i for i, failed in zip(called, fails, strict=True) if took[i] > limit and not failed]
        missing = bool(late) or any(fails)
        facts["simulated_seconds"] = limit if missing and limit < math.inf else max(took.values())
    dropped = [i for i, failed in zip(called, fails, strict=True) if failed]
    facts |= {name: clients for name, clients in (("dropped", dropped), ("late", late)) if clients}
    return Available([i for i in called if i not in {*dropped, *late}], facts)


def draw_times(experiment: Experiment, t: int, called: list[int]) -> dict[int, float]:
    """Return the simulated seconds that each client takes in round t."""
    seed, who = experiment.config.seed, torch.tensor(called)
    rule, numbers, jitter = parse_speed(str(experiment.config.speed))
    speed = rule(uniform(key(seed, who, SPEED), 1)[:, 0], *numbers)
    luck = lognormal(uniform(key(seed, t, who, JITTER), 1)[:, 0], jitter)
    passes = experiment.cost.gradients + experiment.cost.forwards / 3
    steps = [experiment.steps(i) for i in called]
    return {i: s * n * passes for i, s, n in zip(called, (speed * luck).tolist(), steps, strict=True)}


# ---------------------------------------------------------------- from uniform numbers u to seconds, one per client
def constant(u: Tensor, seconds: float) -> Tensor:
    """Give every client the same time."""
    return torch.full_like(u, seconds)


def between(u: Tensor, least: float, most: float) -> Tensor:
    """Spread the times uniformly between `least` and `most`."""
    return least + (most - least) * u


def lognormal(u: Tensor, spread: float) -> Tensor:
    """Return exp(spread · z) with z standard normal."""
    return torch.exp(spread * torch.special.ndtri(u + 2.0**-54))  # ndtri(0) would be −∞


RULES: dict[str, tuple[Callable[..., Tensor], str]] = {
    "constant": (constant, "constant(1)"),
    "uniform": (between, "uniform(0.5, 2)"),
    "lognormal": (lognormal, "lognormal(0.5), or lognormal(0.5, 0.2) with a jitter"),
}


def parse_speed(text: str) -> tuple[Callable[..., Tensor], list[float], float]:
    """Parse a speed rule into its function, its numbers and the jitter.

    >>> parse_speed("lognormal(0.5, 0.1)")[1:], parse_speed("uniform(1, 2)")[1:]
    (([0.5], 0.1), ([1.0, 2.0], 0.0))
    """
    function, numbers = parse_rule(text, "speed", RULES, given=1, more=1)
    wanted = len(inspect.signature(function).parameters) - 1
    spread = numbers[wanted - (function is lognormal) :]
    if any(n > WIDEST for n in spread):
        raise SettingError(f"speed is {quote(text)}: a spread or jitter must be at most {WIDEST:g}", "speed")
    return function, numbers[:wanted], [*numbers, 0.0][wanted]


def _limit(deadline: float | str | None, seconds: list[float]) -> float:
    """Return the deadline in seconds, for clients that take these times."""
    if deadline is None:
        return math.inf
    number, factor = _parse_deadline(deadline)
    return number * median(seconds) if factor else number


def _parse_deadline(deadline: float | str) -> tuple[float, bool]:
    text = str(deadline).strip()
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise SettingError(f"deadline is {quote(deadline)}: write seconds, such as 60, or 1.5x for one and a half "
                           "times the median time of the round's clients", "deadline")  # fmt: skip
    return number, text.endswith("x")


def check_availability(config: Config) -> None:
    """Refuse an invalid speed or deadline before the run starts."""
    if config.speed is not None:
        parse_speed(config.speed)
    if config.deadline is not None:
        _parse_deadline(config.deadline)
        if config.speed is None:
            raise SettingError("deadline needs the speed of the clients: set speed, for instance to lognormal(0.5)",
                               "deadline", "speed")  # fmt: skip
