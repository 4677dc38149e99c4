"""A metric: a function that evaluates a model, with the name and the direction that records keep."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steppe.core.errors import SteppeError, quote
from steppe.core.rounding import format_number

if TYPE_CHECKING:  # the command line's help needs metrics, and must not import torch
    from torch import Tensor

# (outputs, targets) -> one value per sample, token or pixel; or such values with weights
Each = Callable[["Tensor", "Tensor"], Any]
# Entries of a round's record, of a run's summary and of the tables over runs, which a metric must not replace.
TAKEN = {"round", "lr", "clients", "participants", "samples", "loss", "train_loss", "validation_loss", "by_class",
         "drift", "steps", "seconds", "measures", "sample", "update_norm", "x_norm", "server_norms", "client_norms",
         "running_mean", "refused", "dropped", "late", "simulated_seconds", "epsilon", "delta", "nodes",
         "algorithm", "metric", "rounds", "model_of_round", "last", "mean_of_last_ten", "best", "evaluations",
         "metrics", "executor", "notes", "missing", "personal", "folder", "validation", "seeds", "bytes_round",
         "gradients", "forwards", "flops", "against_first", "simulated"}  # fmt: skip
SHARES = {"accuracy", "top5", "auc", "iou", "dice"}  # names for which everybody expects higher to be better


def name_function(function: Any) -> str:
    """Return the name of a function, also of one with settings, or of an object's class.

    >>> name_function(max), name_function(functools.partial(max, key=abs)), name_function(3)
    ('max', 'max', 'int')
    """
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


@dataclass(frozen=True)
class Metric:
    """A number that rates a model. Its name is its key in records; a metric read from a record has no function.

    each    (outputs, targets) -> one value per sample, token or pixel; the metric is their mean. A pair of values and
            weights is a weighted mean: ignored tokens have weight 0
    tally   (outputs, targets) -> counts per sample, (N, k); `finish` makes the metric of their sums
    on_all  (outputs, targets) -> the metric, called once with all samples, as a ranking needs it
    finish  applied to the mean of `each` (exp for perplexity), or to the sums of `tally`

    >>> def distance(outputs, targets):
    ...     return (outputs - targets).abs()
    >>> Metric(distance, lower=True).record
    {'name': 'distance', 'direction': 'lower', 'percent': False}
    """

    name: str  # or the function itself, whose name is then taken
    each: Each | None = None
    lower: bool = False  # whether lower is better
    percent: bool = False  # whether it is a share, shown as a percentage
    finish: Callable[[Any], float] | None = None
    tally: Each | None = None
    on_all: Each | None = None

    def __post_init__(self) -> None:
        if callable(self.name):
            object.__setattr__(self, "each", self.name)
            object.__setattr__(self, "name", name_function(self.name))
        given = [k for k in ("each", "tally", "on_all") if getattr(self, k) is not None]
        if given:  # a metric that was read from a record is not checked
            self._check(given)

    def _check(self, given: list[str]) -> None:
        if not isinstance(self.name, str) or not self.name or "<" in self.name or self.name != self.name.strip():
            raise SteppeError(f'{quote(self.name)} cannot be the name of a metric: write steppe.Metric("name", f).')
        column = self.name.partition(".")[0].removesuffix("_std")  # tables join nested keys by dots
        if column in TAKEN or column.startswith(("validation_", "against_first_")):
            raise SteppeError(
                f"A metric cannot be called {self.name}, because records or tables use that name: choose another."
            )
        if self.lower and re.split(r"[\W_]+", self.name.lower())[-1] in SHARES:  # also test_accuracy
            raise SteppeError(f"{self.name} cannot be better when lower, because everybody expects the opposite: "
                              'give it a different name, such as steppe.Metric("error", f, lower=True).')  # fmt: skip
        for key in ("lower", "percent"):
            if not isinstance(value := getattr(self, key), bool):
                raise SteppeError(f"{key} of the metric {self.name} is {quote(value)}, but must be True or False.")
        if len(given) > 1:
            raise SteppeError(f"The metric {self.name} has {' and '.join(given)}: give it one of them.")
        wrong = next((k for k in (*given, "finish") if not callable(getattr(self, k) or abs)), None)
        if wrong is not None:
            raise SteppeError(f"{wrong} of the metric {self.name} is {quote(getattr(self, wrong))}, but must be a "
                              "function.")  # fmt: skip
        if self.tally is not None and self.finish is None:
            raise SteppeError(
                f"The metric {self.name} has a tally but no finish: add the function that turns its sums into a number."
            )

    def best(self, values: Sequence[float]) -> float:
        """Return the best of several values, ignoring NaN."""
        there = [v for v in values if v == v] or list(values)
        return min(there) if self.lower else max(there)

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better than another."""
        return value < than if self.lower else value > than

    def number(self, value: float, sign: bool = False) -> str:
        """Return a value without its unit.

        >>> Metric("accuracy", percent=True).number(0.5), Metric("mse", lower=True).number(0.5, sign=True)
        ('50.00', '+0.5')
        """
        plus = "+" if sign else ""
        return f"{100 * value:{plus}.2f}" if self.percent else f"{value:{plus}.4g}"

    def pair(self, mean: float, spread: float, count: int = 2) -> str:
        """Return a mean with its spread over `count` runs.

        >>> Metric("accuracy", percent=True).pair(0.5, 0.012, 3), Metric("mse", lower=True).pair(0.51234, 4e-9, 3)
        ('50.00 ± 1.20', '0.51234 ± <0.00001')
        """
        if count == 1:
            return self.number(mean)
        fixed = self.percent or not spread
        return f"{self.number(mean)} ± {self.number(spread)}" if fixed else format_number((mean, spread))

    @property
    def heading(self) -> str:
        """Return its name for a column or an axis: with the unit that the numbers there have."""
        return f"{self.name} (%)" if self.percent else self.name

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    def text(self, value: float) -> str:
        """Return a value with its name and unit.

        >>> Metric("accuracy", percent=True).text(0.5)
        'accuracy 50.00 %'
        """
        return f"{self.name} {self.number(value)}{self.unit}"

    @property
    def record(self) -> dict[str, Any]:
        """Return what a run's folder records about it."""
        return {"name": self.name, "direction": "lower" if self.lower else "higher", "percent": self.percent}

    @staticmethod
    def from_record(record: dict[str, Any] | None) -> Metric:
        """Read the metric from a run's folder; version 0.1.0 wrote no name and called every metric accuracy."""
        if record is None:
            return Metric("accuracy", percent=True)
        return Metric(record["name"], None, record["direction"] == "lower", record["percent"])


def show_loss(value: float | None) -> str:
    """Return a loss as text; records have null where it is not finite.

    >>> show_loss(0.25), show_loss(None), show_loss(float("inf"))
    ('loss 0.2500', 'loss not finite', 'loss not finite')
    """
    return f"loss {value:.4f}" if value is not None and math.isfinite(value) else "loss not finite"
