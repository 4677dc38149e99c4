"""Costs of a recipe, traced without data, and a rough estimate of a run's time."""

from __future__ import annotations

from functools import cache

import torch

from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.cost import Cost, cost
from steppe.core.task import Task
from steppe.data.partition import parse
from steppe.engine.build import build_algorithm
from steppe.models import build


def trace_costs(config: Config) -> Cost:
    """Trace one client's round and step: on 32×32 images, or the digits."""
    shape = (1, 8, 8) if config.data == "digits" else (3, 32, 32)
    return _trace(build_algorithm(config), config.model, config.batch, shape)


@cache
def _trace(algorithm: Algorithm, model: str, count: int, shape: tuple[int, ...]) -> Cost:
    batch = {"x": torch.zeros(count, *shape), "y": torch.zeros(count, dtype=torch.int64)}
    return cost(algorithm, _make_task(model, shape), batch)


@cache
def _make_task(model: str, shape: tuple[int, ...]) -> Task:
    return Task(build(model, 10, shape)).to("meta")


def compare_costs(config: Config) -> dict[str, float]:
    """Return traffic and FLOPs as multiples of FedAvg's, and passes per step."""
    mine = trace_costs(config)
    base = trace_costs(config.model_copy(update={"algorithm": "fedavg", "settings": {}, "add": []}))
    return {"bytes_x": (mine.bytes_down + mine.bytes_up) / (base.bytes_down + base.bytes_up),
            "flops_x": mine.flops / base.flops, "gradients": mine.gradients, "forwards": mine.forwards}  # fmt: skip


def estimate_work(config: Config) -> float:
    """Return a number roughly proportional to a run's time: FLOPs per step, and more steps if clients are unequal."""
    rule, numbers = parse(config.partition)
    skew = 1 + 0.1 / numbers[0] if rule.__name__ in ("lda", "dirichlet") else 1.0
    precise = 2.5 if config.precision == "fp32" else 1.0
    try:
        flops = float(trace_costs(config).flops)
    except (RuntimeError, NotImplementedError):
        flops = 1.0  # a model that cannot be traced without data; this affects only the order of the runs
    return config.rounds * max(config.epochs, 1) * skew * precise * flops
