"""A running mean of the global models, evaluated in addition to the model; training does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.core.part import Part
from steppe.parts.ema import EMA


@dataclass(frozen=True)
class RunningMean(EMA):
    """The average of `ema`, kept by the server but not evaluated in place of the model (key `running_mean`)."""

    name = "running_mean"
    addable = False
    evaluated = Part.evaluated
