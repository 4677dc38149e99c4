"""Evaluation by client at the end of a run: on the client's own test samples, or on some with its own class shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import take
from steppe.core.layout import Tensors
from steppe.data import Data, Partition, align_test_sets
from steppe.evaluate.personal import Client, evaluate_personal, is_personal
from steppe.experiment import Experiment
from steppe.parts.own_model import OwnModel
from steppe.runs.client_store import Store

DEFAULT = [1, 5]  # epochs of fine-tuning, as in FedSoL's Table 5


def evaluate_clients(experiment: Experiment, x: Tensor, buffers: Tensors, store: Store) -> dict[str, Any]:
    """Return mean and standard deviation over all clients for each number of epochs; {} if none is requested."""
    config, federation, algorithm = experiment.config, experiment.federation, experiment.algorithm
    epochs = _choose_epochs(experiment)
    data, split = federation.data, federation.partition
    if not epochs or split is None:  # the nodes of a real federation evaluate their models themselves
        return {}
    tests = find_tests(data, split, config.seed)
    device = data.device

    def client(mine: Any, test: Any) -> Client:
        a, b = torch.as_tensor(mine).to(device), torch.as_tensor(test).to(device)
        return Client(
            take(data.train_inputs, a), data.train_targets[a], take(data.test_inputs, b), data.test_targets[b]
        )

    if any(isinstance(p, OwnModel) for p in algorithm.parts):
        x = torch.stack([row[OwnModel.name]["w"].to(device) for row in store.gather(range(config.clients))])
    lr = _choose_rate(experiment)
    people = (client(mine, test) for mine, test in zip(split.clients, tests, strict=True))
    found = evaluate_personal(
        algorithm, experiment.task, x, people, lr, epochs, config.batch, max(config.epochs, 1), seed=config.seed,
        buffers=buffers, plain=federation.plain, augment=federation.augmented, last_batch=config.last_batch,
    )  # fmt: skip
    return {"personal": {str(e): {"mean": p.mean, "std": p.std} for e, p in found.items()}}


def find_tests(data: Data, split: Partition, seed: int) -> tuple[np.ndarray, ...]:
    """Return each client's test samples: its own in a natural federation, otherwise with its class shares."""
    if _has_own_tests(data, split):
        assert data.groups is not None
        clients = [data.groups[own[0]] for own in split.clients]
        return tuple(np.flatnonzero(data.test_groups == client) for client in clients)
    labels, test_labels = data.train_targets.cpu(), data.test_targets.cpu()
    try:
        return align_test_sets(split, labels, test_labels)
    except SteppeError:  # a partition from a file, whose random stream cannot be replayed
        return align_test_sets(split, labels, test_labels, seed=seed)


def _has_own_tests(data: Data, split: Partition | None) -> bool:
    return data.test_groups is not None and split is not None and split.rule == "natural"


def check_rate(experiment: Experiment) -> None:
    """Refuse fine-tuning with a learning rate of 0, before anything is trained."""
    tuned = any(_choose_epochs(experiment)) and not experiment.algorithm.alone
    if tuned and _choose_rate(experiment) <= 1e-9 * experiment.config.lr:
        raise SteppeError("Clients' own models are fine-tuned with the learning rate after the last round, which is 0 "
                          "with this schedule: set personal_lr, or personal = [] to leave them out.")  # fmt: skip


def _choose_epochs(experiment: Experiment) -> list[int]:
    if experiment.config.personal is not None:
        return experiment.config.personal
    federation = experiment.federation
    own_tests = _has_own_tests(federation.data, federation.partition)
    if is_personal(experiment.algorithm) and (own_tests or federation.data.classes is not None):
        return DEFAULT
    return [0] if own_tests else []  # the global model on each client's own samples costs one evaluation


def _choose_rate(experiment: Experiment) -> float:
    own = experiment.config.personal_lr
    return experiment.lr(experiment.config.rounds) if own is None else own
