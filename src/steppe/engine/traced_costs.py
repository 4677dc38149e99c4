"""Costs of algorithms before any run: traced on a model with inputs of a shape, or with a batch of some data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe import data as datasets
from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.cost import cost
from steppe.core.errors import SettingError, SteppeError, take_first_line
from steppe.core.metric import Each
from steppe.core.prediction import Predict, check_predict
from steppe.core.task import Task
from steppe.data.augment import Augmentation
from steppe.data.federation import Federation
from steppe.engine.build import build_model, complete_parts, make_task
from steppe.engine.model_checks import check_batch
from steppe.engine.objectives import read_loss
from steppe.models import build
from steppe.models.model_argument import take_model
from steppe.parts.sgd import SGD
from steppe.read_config import parse_option
from steppe.registry import find_entry, list_settings, make_algorithm, parse_addition
from steppe.settings import split_algorithm

FEDAVG = make_algorithm("fedavg", SGD())


class CostTracer:
    """A model with a batch, on which costs are traced, also as multiples of FedAvg's."""

    def __init__(self, model: str | nn.Module | type[nn.Module], data: Any = None, shape: Sequence[int] = (3, 32, 32),
                 classes: int = 10, batch: int = 50, example: Mapping[str, Any] | None = None,
                 loss: str | Each | None = None, predict: Predict | None = None) -> None:  # fmt: skip
        chosen: Any = model if isinstance(model, nn.Module) else take_model(model)  # also one without numbers
        name = chosen if isinstance(chosen, str) else type(chosen).__name__
        if data is not None:
            given = datasets.load(str(data)) if isinstance(data, str | Path) else datasets.as_data(data)
            module = build_model(chosen, given) if isinstance(chosen, str) else chosen
            self.task = make_task(module, given, loss, predict=predict)[0].to("cpu", torch.float32)
            self.batch = check_batch(self.task, Federation(given, None, batch, 1, Augmentation(), seed=0), [])
            self.base = cost(FEDAVG, self.task, self.batch)
            return
        check_predict(predict)
        try:
            with torch.device("meta" if isinstance(chosen, str) else "cpu"):  # of a name, sizes are enough
                module = build(chosen, classes, tuple(shape)) if isinstance(chosen, str) else chosen
                zeros = {"x": torch.zeros(batch, *shape), "y": torch.zeros(batch, dtype=torch.int64)}
            self.task = Task(module, read_loss("cross_entropy" if loss is None else loss), predict=predict)
            self.batch = dict(example or zeros)
            self.base = cost(FEDAVG, self.task, self.batch)
        except SteppeError:
            raise
        except Exception as error:  # a model may fail in any way
            raise SteppeError(f"{name} cannot be traced with inputs of shape {tuple(shape)} in batches of {batch}: "
                              f"{take_first_line(error)}. Name a data set to trace with one of its "
                              "batches.") from error  # fmt: skip

    def trace(self, label: str, algorithm: Algorithm) -> dict[str, Any]:
        """Return an algorithm's cost, also as multiples of FedAvg's."""
        found = cost(algorithm, self.task, self.batch)
        ratio = (found.bytes_down + found.bytes_up) / (self.base.bytes_down + self.base.bytes_up)
        return {
            "algorithm": label,
            **asdict(found),
            "bytes_x": ratio,
            "flops_x": found.flops / self.base.flops if self.base.flops else nan,
        }

    def trace_written(self, text: str, sets: Sequence[str], add: Sequence[str]) -> dict[str, Any]:
        """Return the cost of an algorithm as the command line writes it, with `key=value` settings."""
        name, own_sets, parts = split_algorithm(text)
        given = dict(parse_option(word, list_settings(find_entry(name))) for word in (*own_sets, *sets))
        if own := next((key for key in ("model", "data", "batch") if key in given), None):
            raise SettingError(f"{own} decides on what costs are traced, for all algorithms: write --{own} "
                               f"{given[own]}")  # fmt: skip
        if given.get("dtype", "float32") != "float32":
            raise SteppeError("cost traces float32: in float64, every number of bytes is twice as large.")
        settings = {key.removeprefix("settings."): value for key, value in given.items() if key.startswith("settings.")}
        algorithm = make_algorithm(name, SGD(), settings, tuple(map(parse_addition, (*parts, *add))))
        return self.trace(text, complete_parts(algorithm, Config()))
