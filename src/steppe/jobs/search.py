"""Search over ranges with Optuna (extra `optuna`), by the validation metric and never by the test set.

Trials are kept in trials.json, so that an interrupted search continues: the sampler learns again from finished
trials, whose runs exist, and unfinished trials are completed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe import settings
from steppe.core.errors import SteppeError, make_missing_error, quote
from steppe.jobs.points import Point
from steppe.runs.folder import RunFolder

FILE = "trials.json"
DIGITS = 4  # of a suggested number: enough for any setting, and short enough for the name of a folder


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, evenly or evenly on a logarithmic scale."""

    low: float
    high: float
    log: bool
    whole: bool  # integers only

    def tidy(self, value: float) -> float:
        """Round a suggestion to a few digits, still between the ends."""
        return int(value) if self.whole else min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


def parse_range(text: str, said: str = "") -> tuple[str, Range]:
    """Read `key=low..high`, or `key=low..high:log`; both ends written as integers make a range of integers.

    `said` is how the user wrote it, for errors.

    >>> parse_range("rho=0.01..1:log")
    ('rho', Range(low=0.01, high=1.0, log=True, whole=False))
    """
    with settings.tell_where({"range": said or f"--range {text}"}):
        key, low, high, log, whole = settings.parse_range(text)
    return key, Range(float(low), float(high), log, whole)


class Search:
    """A search that suggests values, and learns from their results."""

    def __init__(self, ranges: dict[str, Range], choices: dict[str, list[str]], trials: int,
                 make: Callable[[dict[str, Any]], Point], seed: int, out: Path) -> None:  # fmt: skip
        try:
            import optuna
        except ImportError:
            raise make_missing_error("A search needs Optuna", "optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.ranges, self.choices, self.trials, self.make = ranges, choices, trials, make
        self.path = out / FILE
        self.tried = self._read()[:trials]
        # A sampler that starts again must not repeat its suggestions.
        sampler = optuna.samplers.TPESampler(seed=seed + len(self.tried))
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        for values in self.tried:
            self.study.enqueue_trial(values)
        self.asked = 0
        self.points: dict[str, Point] = {}
        self.complete: set[str] = set()
        self.waiting: dict[str, list[Any]] = {}  # trials by the label of the point that they wait for

    def _read(self) -> list[dict[str, Any]]:
        """Return the values of earlier trials."""
        if not self.path.exists():
            return []
        try:
            found = json.loads(self.path.read_bytes())
            if not all(isinstance(values.get(key, 0), int | float) for values in found for key in self.ranges):
                raise ValueError("a value is not a number")
            if not all(isinstance(value, str | int | float) for values in found for value in values.values()):
                raise ValueError("a value is neither a number nor a text")
            for values, (key, options) in itertools.product(found, self.choices.items()):
                if key in values and values[key] not in options:
                    raise ValueError(f"{key} is {quote(values[key])}, which is not one of this search's choices")
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SteppeError(
                f"{self.path} is damaged, or of another search ({error}): delete it to begin the search again."
            ) from None
        return list(found)

    def __iter__(self) -> Iterator[Point]:
        """Yield the next new point, until all trials have been suggested."""
        while self.asked < self.trials:
            trial, values = self._ask()
            point = self.make(values)
            self.waiting.setdefault(point.label, []).append(trial)
            if point.label not in self.points:
                self.points[point.label] = point
                yield point
            elif point.label in self.complete:
                self.tell(self.points[point.label])

    def _ask(self) -> tuple[Any, dict[str, Any]]:
        trial = self.study.ask()
        values: dict[str, Any] = {key: trial.suggest_categorical(key, options) for key, options in self.choices.items()}
        for key, r in self.ranges.items():
            if r.whole:
                values[key] = trial.suggest_int(key, int(r.low), int(r.high), log=r.log)
            else:
                values[key] = r.tidy(trial.suggest_float(key, r.low, r.high, log=r.log))
        if self.asked == len(self.tried):
            self.tried.append(values)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            RunFolder(self.path.parent).write(self.path.name, self.tried)
        self.asked += 1
        return trial, values

    def tell(self, point: Point) -> None:
        """Give a point's mean validation metric to the sampler; its sign is such that higher is better."""
        import optuna

        self.complete.add(point.label)
        for trial in self.waiting.pop(point.label, []):
            if point.failed or not all("validation" in r for r in point.results.values()):
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self.study.tell(trial, point.mean("validation") * (-1 if point.metric.lower else 1))
