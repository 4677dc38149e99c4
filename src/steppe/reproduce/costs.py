"""Costs of a recipe, traced without data, and a rough estimate of a run's time."""

from __future__ import annotations

from functools import cache
from typing import Any

from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SteppeError
from steppe.data.partition import parse
from steppe.engine.build import build_algorithm
from steppe.engine.traced_costs import CostTracer


def trace_costs(config: Config) -> dict[str, Any]:
    """Trace one client's round and step, also as multiples of FedAvg's: on 32×32 images, or the digits."""
    shape = (1, 8, 8) if config.data == "digits" else (3, 32, 32)
    return _trace(build_algorithm(config), _make_tracer(config.model, config.batch, shape))


@cache
def _trace(algorithm: Algorithm, tracer: CostTracer) -> dict[str, Any]:
    return tracer.trace(algorithm.name, algorithm)


@cache
def _make_tracer(model: str, batch: int, shape: tuple[int, ...]) -> CostTracer:
    return CostTracer(model, shape=shape, batch=batch)


def compare_costs(config: Config) -> dict[str, float]:
    """Return traffic and FLOPs as multiples of FedAvg's, and passes per step."""
    found = trace_costs(config)
    return {key: found[key] for key in ("bytes_x", "flops_x", "gradients", "forwards")}


def estimate_work(config: Config) -> float:
    """Return a number roughly proportional to a run's time: FLOPs per step, and more steps if clients are unequal."""
    rule, numbers = parse(config.partition)
    skew = 1 + 0.1 / numbers[0] if rule.__name__ in ("lda", "dirichlet") else 1.0
    precise = 2.5 if config.precision == "fp32" else 1.0
    try:
        flops = float(trace_costs(config)["flops"])
    except (SteppeError, RuntimeError, NotImplementedError):
        flops = 1.0  # a model that cannot be traced without data; this affects only the order of the runs
    return config.rounds * max(config.epochs, 1) * skew * precise * flops
