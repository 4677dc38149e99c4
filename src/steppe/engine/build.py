"""Build a checked experiment from a configuration and the user's own objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from steppe import data as datasets
from steppe import models
from steppe.config import OWN, Config
from steppe.core.algorithm import Algorithm
from steppe.core.cost import Cost, cost
from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.core.metric import Each
from steppe.core.part import Part
from steppe.core.prediction import Predict, check_predict
from steppe.core.task import Task
from steppe.core.widest_float import find_widest
from steppe.data import Data, Partition, partition
from steppe.data.divide import divide, is_file
from steppe.data.federation import Federation
from steppe.data.partition import ON_NODE
from steppe.data.value_checks import check_values
from steppe.engine import availability, model_checks, privacy, trackers
from steppe.engine.devices import find_device, set_precision
from steppe.engine.objectives import check_early_stopping, read_loss, read_metrics, take_objectives
from steppe.engine.optimisers import find_unused_momentum, make_local_schedule, make_optimiser
from steppe.engine.range_checks import explain_labels
from steppe.evaluate.client_tests import check_rate
from steppe.evaluate.running_mean import RunningMean
from steppe.experiment import Experiment
from steppe.measures.client_models import upload_models
from steppe.measures.during_training import needs_clients, parse_schedule
from steppe.registry import check_parts, complete_algorithm, make_algorithm, parse_addition
from steppe.runs.provenance import qualify_name

_POLICY = {
    "average": "averaged with the models' weights",
    "local": "each client keeps its own; the global model is evaluated with the statistics of its test batches, and "
    "those of the final model are measured on training samples",
    "recalibrate": "averaged for training, and measured again on training samples before each evaluation",
}


def build_experiment(config: Config, algorithm: str | Part | tuple[Part, ...] | Algorithm | None = None,
                     model: nn.Module | None = None, data: Data | None = None, loss: str | Each | None = None,
                     metric: Any = None, head: str | None = None,
                     split: Partition | None = None, known_cost: Cost | None = None,
                     at_nodes: bool = False, add: Sequence[Part] = (),
                     predict: Predict | None = None, optimiser: Any = None) -> Experiment:  # fmt: skip
    """Build and check everything that a run needs.

    In a real federation the data are `at_nodes`, so the server has no partition. A node passes its own data, and as
    `known_cost` the cost that the server has traced. `add` are the user's own objects among the further parts. The
    experiment's configuration marks the user's own objects as such; see `config.OWN`. `metric` is one or several, as
    names, functions or `Metric`s.
    """
    own_parts = None if isinstance(algorithm, str) else algorithm
    config = name_what_is_own(config, own_parts, model, data, add, split)
    config, loss, metric = take_objectives(config, loss, metric)
    availability.check_availability(config)
    device = find_device(config.device)
    if config.dtype == "float64" and find_widest(device) != torch.float64:
        raise SteppeError(f"dtype is float64, which {device.type} devices do not have: use float32, or device = cpu.")
    dtype = {"float32": torch.float32, "float64": torch.float64}[config.dtype]
    chosen = build_algorithm(config, own_parts, add, optimiser)
    data, split = _prepare_data(config, data, split, at_nodes)
    federation = Federation(data, split, config.batch, config.epochs, datasets.find_augmentation(config.augmentation),
                            config.seed, dtype, config.max_steps, config.last_batch).to(device)  # fmt: skip
    if model is None:
        torch.manual_seed(config.seed)
        model = build_model(config.model, data)
    task, notes = make_task(model, data, loss, metric, head, predict)
    if loss is None and split is not None:
        notes += model_checks.note_usual_loss(data)
    if config.judged_on == "validation":
        notes.append("evaluated on held-out training samples; the test set is not used")
    if data.test_groups is not None and (strangers := int((data.test_groups < 0).sum())):
        notes.append(f"{strangers} of {len(data.test_groups)} test samples are of clients without training samples: "
                     "they count for the global model, and for no client")  # fmt: skip
    task = task.to(device, dtype)
    batch = model_checks.check_batch(task, federation, notes)
    check_early_stopping(config, task.metrics)
    model_checks.check_statistics(task, federation)
    model_checks.check_passes(task, federation, config.accumulate)
    notes += set_precision(config, chosen, task)
    notes += find_unused_momentum(config, chosen)
    notes += [why for p in chosen.parts if (why := p.caution(config.per_round, config.clients))]
    model_checks.check_taps(chosen, task)
    notes += _check_buffers(config, chosen, task, at_nodes)
    notes += privacy.check_trust(config, chosen, task) if known_cost is None else []
    # The server of a federation has two made-up samples, but a step has a batch.
    batch = tree_map(lambda v: v[:1].expand(config.batch, *v.shape[1:]), batch) if at_nodes else batch
    costs = known_cost or cost(chosen, task, batch)  # without the uploads for measures, which are added below
    chosen = upload_models(chosen) if needs_clients(config.measure) else chosen
    if config.running_mean is not None:
        chosen = chosen.plus(RunningMean(config.running_mean), outermost=True)
    experiment = Experiment(config, chosen, task, federation, costs, notes)
    check_rate(experiment)
    return experiment


def _prepare_data(config: Config, data: Data | None, split: Partition | None,
                  at_nodes: bool) -> tuple[Data, Partition | None]:  # fmt: skip
    """Load the data unless they are given, and divide them among the clients; those of a federation are not divided."""
    data = datasets.load(config.data, config.data_folder) if data is None else data
    check_values(data)
    if at_nodes or (split is not None and split.rule == ON_NODE):
        data = data.with_validation(config.validation, config.seed) if config.validation else data
    else:
        data, split = divide(data, config.partition, config.clients, config.partition_stream, config.validation,
                             config.seed, split)  # fmt: skip
    return data.judged_by_validation() if config.judged_on == "validation" else data, split


def _check_buffers(config: Config, algorithm: Algorithm, task: Task, at_nodes: bool) -> list[str]:
    """Say what happens to the model's running statistics; refuse them where they could not be measured."""
    if not task.buffers:
        return []
    if config.buffers == "refuse":
        raise SteppeError("The model keeps running statistics (batch norm) and buffers = refuse: use a model with "
                          "group norm, or choose average, local or recalibrate.")  # fmt: skip
    judged = next((p.name for p in algorithm.using("evaluated")), None)
    if judged and at_nodes:
        raise SteppeError(f"{judged} evaluates a model other than the trained one. Its batch norm statistics would "
                          "have to be measured on the nodes' data: use a model with group norm.")  # fmt: skip
    changing = (
        "running statistics of batch norm" if task.uses_batch_statistics else f"buffers ({', '.join(task.buffers)})"
    )
    measured = f"; those of {judged}'s model are measured on training samples" if judged else ""
    return [f"{changing}: {_POLICY[config.buffers]}{measured}"]


def name_what_is_own(config: Config, algorithm: Any, model: nn.Module | None, data: Data | None,
                      add: Sequence[Part] = (), split: Partition | None = None) -> Config:  # fmt: skip
    """Return the configuration with the names of the user's own objects; refuse one that is named but not given."""
    names: dict[str, str | None] = {
        "algorithm": None if algorithm is None else name_parts(algorithm),
        "model": None if model is None else qualify_name(model),
        "data": None if data is None or data.name == config.data else data.name,
    }
    given = {"algorithm": algorithm, "model": model, "data": data, "partition": split}
    for key, value in given.items():
        if value is None and getattr(config, key).startswith(OWN):
            raise SteppeError(f"The {key} of this run is your own object ({getattr(config, key)}), so it has no name: "
                              f"pass it again from Python, with {key}=….")  # fmt: skip
    absent = [text for text in config.add if text.startswith(OWN)][len(add) :]
    if absent:
        raise SteppeError(f"A part of this run is your own object ({absent[0]}), so it has no name: pass it "
                          "again from Python, with add=[…].")  # fmt: skip
    return config.model_copy(update={key: f"{OWN}{name}" for key, name in names.items() if name is not None
                                     and getattr(config, key) != f"{OWN}{name}"})  # fmt: skip


def name_parts(algorithm: Any) -> str:
    """Return the classes of the user's own parts."""
    parts = algorithm.parts if isinstance(algorithm, Algorithm) else algorithm
    return "+".join(map(qualify_name, parts if isinstance(parts, tuple | list) else (parts,)))


def build_algorithm(config: Config, own: Part | tuple[Part, ...] | Algorithm | None = None,
                    own_add: Sequence[Part] = (), own_optimiser: Any = None) -> Algorithm:  # fmt: skip
    """Combine the catalogue's entry, or the user's own parts, with settings, additions and the local optimiser.

    `own_add` are the user's own objects among the additions, in the order of their places in `config.add`.
    """
    optimiser = make_optimiser(config, own_optimiser)
    objects = iter(check_parts(tuple(own_add)))
    add = tuple(next(objects) if text.startswith(OWN) else parse_addition(text) for text in config.add)
    add = (*add, *make_local_schedule(config))
    if own is None:
        algorithm = make_algorithm(config.algorithm, optimiser, config.settings, add)
    else:
        algorithm = complete_algorithm(own, optimiser, add)
    return complete_parts(algorithm, config)


def complete_parts(algorithm: Algorithm, config: Config) -> Algorithm:
    """Fill in the fields of its parts that depend on the run (rounds, clients, …): those that are None."""
    return Algorithm(tuple(_complete(p, config) for p in algorithm.parts), algorithm.name)


def _complete(part: Part, config: Config) -> Part:
    asked = [name for name in ("rounds", "clients", "per_round", "seed") if getattr(part, name, 0) is None]
    return dataclasses.replace(part, **{k: getattr(config, k) for k in asked}) if asked else part  # type: ignore


def check_names(config: Config) -> None:
    """Refuse the first key whose name is unknown or whose settings are wrong, before anything is loaded."""
    checks: dict[str, Callable[[], Any]] = {
        "own": lambda: name_what_is_own(config, None, None, None),
        "algorithm settings add": lambda: privacy.check_accountant(build_algorithm(config)),
        "data": lambda: config.data in datasets.DATASETS or _is_place(config.data) or datasets.load(config.data),
        "partition": lambda: is_file(config.partition) or partition.parse(config.partition),
        "augmentation": lambda: datasets.find_augmentation(config.augmentation),
        "loss metrics": lambda: read_metrics(config.metrics, read_loss(config.loss or "cross_entropy")),
        "model": lambda: config.model in models.MODELS or models.build(config.model, 1, (1,)),
        "measure": lambda: parse_schedule(config.measure),
        "speed deadline": lambda: availability.check_availability(config),
        "track": lambda: trackers.check_trackers(config.track),
    }
    for keys, check in checks.items():
        try:
            check()
        except SteppeError as error:
            error.keys = error.keys or tuple(keys.split())
            raise


def _is_place(data: str) -> bool:
    return data.startswith(("hub:", "folder:")) or data.endswith(".npz")


def build_model(name: str, data: Data) -> nn.Module:
    """Build a built-in model for the shape and the classes of some data."""
    if data.outputs is None:
        raise SteppeError("A built-in model needs class labels; for regression, give your own nn.Module."
                          + explain_labels(data))  # fmt: skip
    return models.build(name, data.outputs, data.shape)


def check_head(model: nn.Module, head: Any) -> None:
    """Refuse what is not the name of a module of the model."""
    known = [name for name, _ in model.named_modules() if name]
    if head is None or head in known:
        return
    if not isinstance(head, str):
        raise SteppeError(f"head is {quote(head)}, but must be the name of a module{suggest_name('', known)}")
    raise SteppeError(f"the model has no module {quote(head)}{suggest_name(head, known)}")


def make_task(model: nn.Module, data: Data, loss: Any, metric: Any = None, head: str | None = None,
              predict: Predict | None = None) -> tuple[Task, list[str]]:  # fmt: skip
    """Return the model with its loss and metrics, by default those of the data's targets, and notes about them."""
    check_predict(predict)
    each = read_loss(("mse" if data.train_targets.is_floating_point() else "cross_entropy") if loss is None else loss)
    metrics, notes = read_metrics(metric, each)
    if not any(p.requires_grad for p in model.parameters()):
        raise SteppeError("The model has no trainable parameter: set requires_grad on the parameters to train.")
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_complex():
            raise SteppeError(f"The model's {name} is complex: train its real and imaginary parts as two parameters.")
        if p.requires_grad and p.numel() and not all(bound.isfinite() for bound in p.detach().aminmax()):
            raise SteppeError(f"The model's {name} has values that are not finite, before any training.")
    check_head(model, head)
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.weight.requires_grad:
            continue
        if module.sparse:
            raise SteppeError(f"The model's {name or 'table'} has sparse gradients, and parameters are trained as one "
                              "dense vector here: build it with sparse=False.")  # fmt: skip
        if module.max_norm is not None:
            raise SteppeError(f"The model's {name or 'table'} changes its rows in every pass (max_norm), but "
                              "no pass may write to the vector of what is trained: leave max_norm out.")  # fmt: skip
    try:
        return Task(model, each, metrics, head, predict=predict), notes
    except TypeError as error:
        if "pickle" not in str(error):
            raise
        raise SteppeError(f"The model cannot be copied, because it holds an open file, a lock or a generator "
                          f"({error}): leave it out of the module's attributes.") from error  # fmt: skip
