"""Costs of a recipe, traced without data, and a rough estimate of a run's time."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from steppe.config import Config
from steppe.core.cost import Cost, cost
from steppe.core.task import Task
from steppe.data.partition import parse
from steppe.engine.build import build_algorithm
from steppe.models import build

NOT_TRACED: dict[str, Any] = {"partition": "iid", "partition_seed": None, "rounds": 1, "seed": 0, "measure": [],
                              "validation": 0.0, "judged_on": "test", "running_mean": None}  # fmt: skip


def trace_costs(config: Config) -> Cost:
    """Trace one client's round and step: on 32×32 images, or the digits."""
    return _trace(config.model_copy(update=NOT_TRACED).model_dump_json())


@cache
def _trace(text: str) -> Cost:
    config = Config.model_validate_json(text)
    shape = (1, 8, 8) if config.data == "digits" else (3, 32, 32)
    task = Task(build(config.model, 10, shape))
    batch = {"x": torch.zeros(config.batch, *shape), "y": torch.zeros(config.batch, dtype=torch.int64)}
    return cost(build_algorithm(config), task, batch)


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
