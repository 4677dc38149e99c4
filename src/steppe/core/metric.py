"""How a model is judged: a value per example, with the name and the direction that records keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line's help needs metrics, and must not wait for torch
    from torch import Tensor

Each = Callable[["Tensor", "Tensor"], "Tensor"]  # (outputs, targets) -> one value per example


@dataclass(frozen=True)
class Metric:
    """A mean over examples. Its name is its key in records; `each` is None if it was read from a record."""

    name: str
    each: Each | None = None
    lower: bool = False  # whether lower is better
    percent: bool = False  # whether it is a share, shown as a percentage

    def best(self, values: Sequence[float]) -> float:
        """Return the best of several values."""
        return min(values) if self.lower else max(values)

    def number(self, value: float, sign: bool = False) -> str:
        """Return a value without its unit.

        >>> Metric("accuracy", percent=True).number(0.5), Metric("mse", lower=True).number(0.5, sign=True)
        ('50.00', '+0.5')
        """
        plus = "+" if sign else ""
        return f"{100 * value:{plus}.2f}" if self.percent else f"{value:{plus}.4g}"

    def pair(self, mean: float, spread: float, count: int) -> str:
        """Return a mean with its spread over `count` runs."""
        return f"{self.number(mean)} ± {self.number(spread)}" if count > 1 else self.number(mean)

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
