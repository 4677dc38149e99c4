"""Personalised evaluation at the end of a run: each client's own model on a test set with its own class shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.layout import Tensors
from steppe.data import aligned_test_sets
from steppe.evaluate.personal import Client, is_personal, personal_accuracy
from steppe.experiment import Experiment
from steppe.parts.own_model import OwnModel
from steppe.runs.client_store import Store

DEFAULT = [1, 5]  # epochs of fine-tuning, as in FedSoL's Table 5


def evaluate_clients(experiment: Experiment, x: Tensor, buffers: Tensors, store: Store) -> dict[str, Any]:
    """Return mean and standard deviation over all clients for each number of epochs; {} if not asked for."""
    config, federation, algorithm = experiment.config, experiment.federation, experiment.algorithm
    epochs = config.personal
    if epochs is None:
        epochs = DEFAULT if is_personal(algorithm) and federation.data.classes is not None else []
    data, split = federation.data, federation.partition
    if not epochs or split is None:  # the nodes of a real federation evaluate their models themselves
        return {}
    labels, test_labels = data.train_targets.cpu(), data.test_targets.cpu()
    try:
        tests = aligned_test_sets(split, labels, test_labels)
    except SteppeError:  # a partition from a file, whose random stream cannot be replayed
        tests = aligned_test_sets(split, labels, test_labels, seed=config.seed)
    device = data.train_inputs.device

    def client(mine: Any, test: Any) -> Client:
        a, b = torch.as_tensor(mine).to(device), torch.as_tensor(test).to(device)
        return Client(data.train_inputs[a], data.train_targets[a], data.test_inputs[b], data.test_targets[b])

    if any(isinstance(p, OwnModel) for p in algorithm.parts):
        x = torch.stack([row[OwnModel.name]["w"].to(device) for row in store.gather(range(config.clients))])
    lr = experiment.lr(config.rounds) if config.personal_lr is None else config.personal_lr
    people = (client(mine, test) for mine, test in zip(split.clients, tests, strict=True))
    found = personal_accuracy(
        algorithm, experiment.task, x, people, lr, epochs, config.batch, max(config.epochs, 1), seed=config.seed,
        buffers=buffers, plain=federation.plain, augment=federation.augmented,
    )  # fmt: skip
    return {"personal": {str(e): {"mean": p.mean, "std": p.std} for e, p in found.items()}}
