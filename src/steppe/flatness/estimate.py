"""A number with its uncertainty, and the conversion of results to JSON or arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steppe.core.widest_float import widen

LARGE = 10_000  # a tensor with more numbers goes into an .npz file, not into JSON


class Estimate(NamedTuple):
    """A mean and its standard error."""

    value: float  # the mean
    error: float  # its standard error; nan if unknown
    n: int  # number of draws, clients or examples

    @staticmethod
    def of(values: Tensor | Sequence[float]) -> Estimate:
        """Return the mean of independent values; the error of a single value is unknown (nan).

        >>> Estimate.of([2.0, 2.0, 2.0])
        Estimate(value=2.0, error=0.0, n=3)
        """
        each = _widen(values)
        error = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        return Estimate(float(each.mean()), error, len(each))

    @staticmethod
    def weighted(values: Tensor | Sequence[float], weights: Sequence[float]) -> Estimate:
        """Return the weighted mean, with its error by the jackknife.

        >>> [round(v, 9) for v in Estimate.weighted([1.0, 3.0, 5.0, 3.0], [1, 1, 1, 1])]  # as for a plain mean
        [3.0, 0.816496581, 4]
        """
        each = _widen(values)
        share = torch.tensor(weights, dtype=each.dtype, device=each.device)
        n, total = len(each), (each * share).sum()
        mean = float(total / share.sum())
        if n < 2:
            return Estimate(mean, math.nan, n)
        without = (total - each * share) / (share.sum() - share)
        return Estimate(mean, _jackknife(without), n)

    @staticmethod
    def of_pairs(matrix: Tensor) -> Estimate:
        """Return the mean over pairs of a symmetric (n, n) matrix. Pairs overlap, so the error is by jackknife."""
        pairs, n = widen(matrix).triu(1), len(matrix)
        if n < 2:
            return Estimate(math.nan, math.nan, n)
        mean = pairs.sum() / (n * (n - 1) / 2)
        if n == 2:
            return Estimate(float(mean), math.nan, n)
        without = (pairs.sum() - pairs.sum(0) - pairs.sum(1)) / ((n - 1) * (n - 2) / 2)
        return Estimate(float(mean), _jackknife(without), n)


def _jackknife(without: Tensor) -> float:
    """Return the standard error of a statistic from its values without one observation each."""
    n = len(without)
    return float(((n - 1) / n * (without - without.mean()).square().sum()).sqrt())


def as_json(result: Any) -> Any:
    """Convert any result to plain lists and numbers. Non-finite values become None; large tensors are left out.

    >>> as_json({"a": Estimate(1.0, math.nan, 1), "b": torch.zeros(2)})
    {'a': {'value': 1.0, 'error': None, 'n': 1}, 'b': [0.0, 0.0]}
    """
    if isinstance(result, Tensor):
        return as_json(result.tolist()) if result.numel() <= LARGE else None
    if is_dataclass(result) and not isinstance(result, type):
        small = _name_fields(result).items()
        return {k: as_json(v) for k, v in small if not (isinstance(v, Tensor) and v.numel() > LARGE)}
    if isinstance(result := _name_fields(result), Mapping):
        return {str(k): as_json(v) for k, v in result.items()}
    if isinstance(result, list | tuple):
        return [as_json(v) for v in result]
    return None if isinstance(result, float) and not math.isfinite(result) else result


def as_arrays(result: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Return every tensor of a result under its dotted name, for `np.savez`."""
    if isinstance(result, Tensor):
        return {prefix or "value": result.detach().cpu().numpy()}
    if isinstance(result := _name_fields(result), Mapping):
        inner = [as_arrays(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in result.items()]
        return {k: v for arrays in inner for k, v in arrays.items()}
    return {}


def _name_fields(result: Any) -> Any:
    """Return a dataclass or a named tuple as a dictionary, and anything else as it is."""
    if is_dataclass(result) and not isinstance(result, type):
        return {f.name: getattr(result, f.name) for f in fields(result)}
    return result._asdict() if hasattr(result, "_asdict") else result


def _widen(values: Tensor | Sequence[float]) -> Tensor:
    return widen(values) if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
