"""Measures by name: those that `steppe analyze` computes, and those that a run records every n rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from steppe import flatness
from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.core.layout import Tensors
from steppe.experiment import Experiment
from steppe.flatness import Sample
from steppe.measures import for_figures, scalars  # noqa: F401  # the measures themselves, in this order
from steppe.measures.subject import MEASURES, Measure, Round, Subject

__all__ = ["GROUPS", "MEASURES", "Round", "Schedule", "Subject", "choose_measures", "find_measure", "needs_clients",
           "parse_schedule"]  # fmt: skip

# During training the memory limit is fixed: it decides how sums are split into chunks, which changes their last digit,
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

RENAMED = {"local_accuracy": "local_score"}  # names of earlier versions


def choose_measures(words: Iterable[str]) -> list[str]:
    """Expand names of measures and groups to names of measures, in the order of the registry.

    >>> choose_measures(["smallest", "lambda1"])
    ['lambda1', 'smallest']
    """
    found: set[str] = set()
    for word in (RENAMED.get(word, word) for word in words):
        if word in GROUPS:
            found |= {name for name, m in MEASURES.items() if GROUPS[word](m)}
        else:
            find_measure(word)
            found.add(word)
    return [name for name in MEASURES if name in found]


def find_measure(name: str) -> Measure:
    """Return the measure of this name; refuse an unknown name."""
    if name not in MEASURES:
        raise SteppeError(f"there is no measure {quote(name)}{suggest_name(name, [*MEASURES, *GROUPS])}")
    return MEASURES[name]


# ------------------------------------------------------------------------------------------------ during training
def parse_schedule(words: Sequence[str]) -> dict[str, int]:
    """Parse `name` and `name:every` into {name: rounds between two measurements}.

    >>> parse_schedule(["lambda1:10", "gradient_norm"])
    {'lambda1': 10, 'gradient_norm': 1}
    """
    found = {}
    for word in words:
        name, colon, every = word.partition(":")
        if find_measure(name).kind == "drawn":
            raise SteppeError(f"measure {word!r}: {name} is not available during training; use steppe analyze after it")
        if colon and not (every.isdecimal() and int(every) > 0):
            raise SteppeError(f"measure {word!r}: write {name}:10 for every tenth round")
        found[name] = int(every) if colon else 1
    return found


def needs_clients(words: Sequence[str]) -> bool:
    """Return whether any of these measures needs the clients' models."""
    return any(MEASURES[name].clients for name in parse_schedule(words))


class Schedule:
    """The measures that a run's configuration schedules. They never change the training."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.every = experiment, parse_schedule(experiment.config.measure)

    def list_due(self, round_: int, anybody: bool = True) -> list[str]:
        """Return the measures that are due in this round; without answers, those of clients are skipped."""
        names = [name for name, every in self.every.items() if round_ % every == 0]
        return [name for name in names if anybody or MEASURES[name].kind != "clients"]

    @cached_property
    def sample(self) -> Sample:
        """Return the sample of training data on which all measures are taken."""
        return flatness.of_training_data(self.experiment.federation)

    def take(self, names: list[str], w: Tensor, buffers: Tensors,
             played: Callable[[], Round] | None) -> dict[str, Any]:  # fmt: skip
        """Compute these measures and return them as JSON values."""
        limit = FIXED_MEMORY.get(w.device.type, 1 << 30)
        subject = Subject(self.experiment, w, buffers, self.sample, play=played, memory_limit=limit)
        return {name: flatness.as_json(MEASURES[name].of(subject)) for name in names}
