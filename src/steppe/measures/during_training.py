"""Measures of a trained model by name: what `steppe analyze` computes, and what a run may record every n rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from steppe import flatness
from steppe.core.errors import SteppeError, nearest
from steppe.core.layout import Tensors
from steppe.experiment import Experiment
from steppe.flatness import Sample
from steppe.measures import drawn, scalars  # noqa: F401  # the measures themselves, in this order
from steppe.measures.subject import MEASURES, Measure, Round, Subject

__all__ = ["GROUPS", "MEASURES", "During", "Round", "Subject", "chosen", "known", "needs_clients", "schedule"]

# During training the memory that may be used is fixed, because how a sum is cut into chunks shows in its last digit,
# and a resumed run must end with the same bits.
FIXED_MEMORY = {"cpu": 1 << 30, "cuda": 4 << 30}

GROUPS: dict[str, Callable[[Measure], bool]] = {
    "usual": lambda m: m.usual,
    "hessian": lambda m: m.kind == "hessian",
    "clients": lambda m: m.kind == "clients",
    "numbers": lambda m: m.kind != "drawn",
    "drawn": lambda m: m.kind == "drawn" and m.runs == 1,
    "all": lambda m: m.runs == 1,
}


def chosen(words: Iterable[str]) -> list[str]:
    """Names of measures and of groups as names of measures, in the registry's order.

    >>> chosen(["smallest", "lambda1"])
    ['lambda1', 'smallest']
    """
    found: set[str] = set()
    for word in words:
        if word in GROUPS:
            found |= {name for name, m in MEASURES.items() if GROUPS[word](m)}
        else:
            known(word)
            found.add(word)
    return [name for name in MEASURES if name in found]


def known(name: str) -> Measure:
    if name not in MEASURES:
        raise SteppeError(f"there is no measure {name!r}{nearest(name, [*MEASURES, *GROUPS])}")
    return MEASURES[name]


# ------------------------------------------------------------------------------------------------ during training
def schedule(words: Sequence[str]) -> dict[str, int]:
    """`name` or `name:every` as name -> rounds between two of them.

    >>> schedule(["lambda1:10", "gradient_norm"])
    {'lambda1': 10, 'gradient_norm': 1}
    """
    found = {}
    for word in words:
        name, colon, every = word.partition(":")
        if known(name).kind == "drawn":
            raise SteppeError(f"measure {word!r}: {name} is not for training; steppe analyze computes it afterwards")
        if colon and not (every.isdecimal() and int(every) > 0):
            raise SteppeError(f"measure {word!r}: write it as {name}:10, for every tenth round")
        found[name] = int(every) if colon else 1
    return found


def needs_clients(words: Sequence[str]) -> bool:
    """Whether any of them looks at the clients' models."""
    return any(MEASURES[name].clients for name in schedule(words))


class During:
    """The measures of a run's configuration, each in its rounds. They never change what is trained."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.every = experiment, schedule(experiment.config.measure)

    def due(self, round_: int, anybody: bool = True) -> list[str]:
        """Those of this round; in a round that nobody answered there are no clients to look at."""
        names = [name for name, every in self.every.items() if round_ % every == 0]
        return [name for name in names if anybody or MEASURES[name].kind != "clients"]

    @cached_property
    def sample(self) -> Sample:
        return flatness.of_training_data(self.experiment.federation)

    def taken(self, names: list[str], w: Tensor, buffers: Tensors,
              played: Callable[[], Round] | None) -> dict[str, Any]:  # fmt: skip
        limit = FIXED_MEMORY.get(w.device.type, 1 << 30)
        subject = Subject(self.experiment, w, buffers, self.sample, play=played, memory_limit=limit)
        return {name: flatness.as_json(MEASURES[name].of(subject)) for name in names}
