"""Evaluation of the global model after a round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.core.inputs import Inputs, take
from steppe.core.keyed import key, permutation
from steppe.core.layout import Tensors
from steppe.core.server import Server, choose_evaluated
from steppe.evaluate.running_mean import RunningMean
from steppe.evaluate.score import Score, recalibrate, score
from steppe.experiment import Experiment


def choose_evaluated_model(
    experiment: Experiment, server: Server, t: int, exported: bool = False
) -> tuple[Tensor, Tensors]:
    """Return the model to evaluate after round t, and its running statistics."""
    x0 = experiment.task.x0
    lr, now = x0.new_tensor(experiment.lr(t)), x0.new_tensor(float(t))
    x = choose_evaluated(experiment.algorithm, experiment.task.layout, server, lr, now, experiment.config.clients)
    another = bool(server.buffers) and not torch.equal(x, server.x)
    return x, choose_statistics(experiment, x, server.buffers, exported, another)


def evaluate(experiment: Experiment, server: Server, t: int) -> dict[str, Any]:
    """Compute loss and metrics of the model on the test set and, if there is one, on the validation set."""
    task, federation, data = experiment.task, experiment.federation, experiment.federation.data
    if not len(data.test_targets):  # the server of a real federation may have no data
        return {}
    evaluated = choose_evaluated_model(experiment, server, t)
    by_batch = bool(task.buffers) and experiment.config.buffers == "local"

    def of(inputs: Inputs, targets: Tensor, model: tuple[Tensor, Tensors] = evaluated) -> Score:
        return score(task, *model, inputs, federation.targets(targets), federation.plain, data.classes,
                     learning=by_batch)  # fmt: skip

    test = of(data.test_inputs, data.test_targets)
    main = task.metric.name
    record: dict[str, Any] = {"loss": test.loss, **_leave_out_undefined(test, main)}
    if test.by_class:
        record["by_class"] = [round(v, 6) if v == v else None for v in test.by_class]
    if data.validation_inputs is not None and data.validation_targets is not None:
        held_out = of(data.validation_inputs, data.validation_targets)
        record |= {"validation_loss": held_out.loss}
        record |= {f"validation_{name}": value for name, value in _leave_out_undefined(held_out, main).items()}
    if RunningMean.name in server.state:
        e = server.state[RunningMean.name]["e"]
        mean = of(
            data.test_inputs, data.test_targets, (e, choose_statistics(experiment, e, server.buffers, another=True))
        )
        record[RunningMean.name] = {"loss": mean.loss, **_leave_out_undefined(mean, main)}
    return record


def _leave_out_undefined(found: Score, main: str) -> dict[str, float]:
    """Leave out metrics that are NaN on these samples, such as an AUC without positive ones, except the main metric."""
    return {name: value for name, value in found.metrics.items() if value == value or name == main}


def choose_statistics(experiment: Experiment, x: Tensor, buffers: Tensors, exported: bool = False,
               another: bool = False) -> Tensors:  # fmt: skip
    """Return batch norm's running statistics for the evaluated model, according to the run's policy.

    With the policy `local`, clients keep their own statistics and the global model has none; when it is exported, they
    are measured. They are also measured for a model that is `another` than the trained one (a mean of several models),
    because averaged statistics belong to the trained one.
    """
    policies = {"recalibrate"} | ({"local"} if exported else set()) | ({"average"} if another else set())
    if not buffers or experiment.config.buffers not in policies:
        return buffers
    data = experiment.federation.data
    order = permutation(key(experiment.config.seed, 4), len(data.train_targets))[:2000].to(data.device)
    split = torch.split(order, 200)
    batches = [i for i in split if len(i) == len(split[0])]  # equal sizes, because the mean gives them equal weights
    plain = [experiment.federation.plain(take(data.train_inputs, i)) for i in batches]
    return recalibrate(experiment.task, x, buffers, plain)
