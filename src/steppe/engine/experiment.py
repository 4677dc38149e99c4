"""From a configuration to the things a run needs: data, partition, task, algorithm, executor."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steppe import data as datasets
from steppe import models
from steppe.algorithms import CATALOGUE
from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.client import Reply
from steppe.core.cost import Cost, cost
from steppe.core.errors import SteppeError, nearest
from steppe.core.part import Part
from steppe.core.task import LOSSES, METRICS, Each, Task
from steppe.data import Data, Partition, partition, sampling
from steppe.data.federation import Federation
from steppe.distributed import torchrun
from steppe.distributed.ranks import placed
from steppe.engine import availability, model_checks, privacy, trackers
from steppe.executors.batched import Batched
from steppe.executors.captured import Captured, best_width
from steppe.executors.sequential import Sequential
from steppe.executors.workers import CannotShareError, Workers
from steppe.measures.client_models import witnessed
from steppe.measures.during_training import needs_clients, schedule
from steppe.parts.adamw import AdamW
from steppe.parts.proximal_ascent import ProximalAscent
from steppe.parts.sgd import SGD
from steppe.registry import assembled, make, parse_addition, settings_of

Executor = Callable[..., Reply]
WORTH_WORKERS = 2e10  # FLOPs a round above which child processes pay for their start
CORES = "STEPPE_CORES"  # the environment may say how many cores a run should use, where several share a machine


def cores() -> int:
    if os.environ.get(CORES, "").isdecimal():
        return int(os.environ[CORES])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Experiment:
    """Everything that a run needs and that does not change during it."""

    config: Config
    algorithm: Algorithm
    task: Task
    federation: Federation
    cost: Cost
    named_model: dict[str, Any] | None = None  # how to build the model again; None: it is the user's own
    notes: list[str] = field(default_factory=list)  # what the user should know before it starts

    def sample(self, round_: int) -> list[int]:
        """The round's clients, in their official order."""
        c, private = self.config, privacy.privacy(self.algorithm)
        if private is not None and private.amplified:  # perhaps nobody, and with its own key
            return private.sample(c.clients, round_)
        if c.sampling == "bernoulli":
            seed = 20 if c.sampling_seed is None else c.sampling_seed
            return list(map(int, sampling.bernoulli(c.clients, c.per_round / c.clients, round_, seed)))
        seed, official = c.sampling_seed or 0, c.sampling_seed is None
        return list(map(int, sampling.fixed(c.clients, c.per_round, round_, seed, official)))

    def lr(self, round_: int) -> float:
        c = self.config
        if c.lr_schedule == "cosine":
            return 0.5 * c.lr * (1 + float(np.cos(np.pi * round_ / max(c.rounds, 1))))
        return c.lr * (c.lr_decay**round_ if c.lr_schedule == "exponential" else 1.0)

    def weights(self, ids: list[int]) -> Tensor:
        sizes = [float(self.federation.sizes[i]) if self.config.weighting == "samples" else 1.0 for i in ids]
        return self.task.x0.new_tensor(sizes)

    def executor(self, say: Callable[[str], None] | None = None) -> Any:
        """What the configuration asks for. Whatever goes otherwise is a note; what is found out later is also said."""

        def tell(note: str) -> None:
            self.notes.append(note)
            if say:
                say(note)

        c, cuda = self.config, self.task.x0.is_cuda
        batched = c.executor == "batched" or (c.executor == "auto" and cuda)
        if batched and self.task.uses_batch_statistics:
            batched = False
            self.notes.append("this model's batch statistics would see padding, so clients are trained one after "
                              "the other; a model with group norm can be batched")  # fmt: skip
        if batched and (why := model_checks.not_batchable(self.task, self.federation)):
            batched = False
            self.notes.append(f"clients are trained one after the other, because vmap cannot run this model ({why})")
        if batched and cuda and c.compile:
            ahead = [[self.federation.steps(i, self.algorithm.local_steps) for i in self.sample(t)] for t in range(50)]
            width = best_width([_first_share(steps) for steps in ahead], c.chunk)
            return Captured(self.algorithm, self.task, self.federation, width, say=tell)
        if batched:
            return Batched(self.algorithm, self.task, self.federation, c.chunk)
        count = 0 if cuda else self._workers()
        if count:
            try:
                own_buffers = bool(self.task.buffers) and c.buffers == "local"
                return Workers(self.algorithm, self.task, self.federation, count, max(c.per_round, count), own_buffers)
            except CannotShareError as reason:
                self.notes.append(f"clients are trained in this process, because {reason}")
        return Sequential(self.algorithm, self.task, self.federation)

    def _workers(self) -> int:
        if torchrun.size() > 1:
            return 0  # the ranks are the workers
        if self.config.workers != "auto":
            return self.config.workers
        return min(cores(), self.config.per_round) if not self.small and cores() > 1 else 0

    @property
    def small(self) -> bool:
        """Whether a round is too little work for child processes, and for more than one thread."""
        steps = [self.federation.steps(i, self.algorithm.local_steps) for i in range(self.federation.clients)]
        return self.cost.flops * float(np.mean(steps)) * self.config.per_round < WORTH_WORKERS


def _first_share(steps: list[int]) -> list[int]:
    """What the first rank gets of a round's clients; the others get about as much. All of it where there is one."""
    owners = placed(steps, torchrun.size(), [None] * len(steps))
    return [n for n, owner in zip(steps, owners, strict=True) if owner == 0]


def experiment(config: Config, algorithm: str | Part | tuple[Part, ...] | Algorithm | None = None,
               model: nn.Module | None = None, data: Data | None = None, loss: str | Each | None = None,
               metric: str | Each | None = None, head: str | None = None,
               split: Partition | None = None, known_cost: Cost | None = None) -> Experiment:  # fmt: skip
    """Build and check everything before anything is written.

    A node of a real federation brings the partition, and the cost that its server has found by tracing.
    """
    notes: list[str] = []
    availability.check(config)
    device = find_device(config.device)
    dtype = {"float32": torch.float32, "float64": torch.float64}[config.dtype]
    chosen = build_algorithm(config, None if isinstance(algorithm, str) else algorithm)
    data = datasets.load(config.data, config.data_folder) if data is None else data
    if config.validation:
        data = data.with_validation(config.validation, config.seed)
    split = _partition(config, data) if split is None else split
    federation = Federation(data, split, config.batch, config.epochs, datasets.augmentation(config.augmentation),
                            config.seed, dtype, config.max_steps).to(device)  # fmt: skip
    named = None
    if model is None:
        named = {"name": config.model, "classes": data.classes, "shape": list(data.train_inputs.shape[1:])}
        if data.classes is None:
            raise SteppeError("A model by name needs class labels; for regression, give your own nn.Module.")
        torch.manual_seed(config.seed)
        model = models.build(config.model, data.classes, tuple(data.train_inputs.shape[1:]))
    task = _task(model, data, loss, metric, head).to(device, dtype)
    _set_precision(config, chosen, task, notes)
    batch = model_checks.check_batch(task, federation)
    model_checks.check_statistics(task, federation)
    model_checks.check_taps(chosen, task)
    if task.buffers:
        if config.buffers == "refuse":
            raise SteppeError("The model keeps running statistics (batch norm) and buffers = refuse: use a model with "
                              "group norm, or choose average, local or recalibrate.")  # fmt: skip
        notes.append(f"running statistics of batch norm: {_POLICY[config.buffers]}")
    notes += privacy.check(config, chosen, task) if known_cost is None else []
    costs = known_cost or _cost(chosen, task, batch)  # of the algorithm, not of looking at it
    chosen = witnessed(chosen) if needs_clients(config.measure) else chosen
    return Experiment(config, chosen, task, federation, costs, named, notes)


_POLICY = {
    "average": "averaged with the models' weights",
    "local": "each client keeps its own; the global model is judged with the statistics of its test batches, and "
    "those of the final model are measured on training samples",
    "recalibrate": "averaged for training, and measured anew on training samples before each evaluation",
}


def build_algorithm(config: Config, own: Part | tuple[Part, ...] | Algorithm | None = None) -> Algorithm:
    """The catalogue's entry with its settings and additions, or the user's own parts, and the local optimiser."""
    optimiser: Part = SGD(config.momentum, config.weight_decay, config.clip)
    if config.optimiser == "adamw":
        optimiser = AdamW(decay=config.weight_decay, clip=config.clip)
    add = tuple(parse_addition(text) for text in config.add)
    if own is None:
        algorithm = make(config.algorithm, optimiser, config.settings, add)
    elif isinstance(own, Algorithm):  # complete as it is, optimiser included
        algorithm = own.plus(*add)
    else:
        parts = _own_parts(own)
        algorithm = assembled(parts, optimiser, add, "+".join(p.name for p in parts))
    return Algorithm(tuple(_told(p, config) for p in algorithm.parts), algorithm.name)


def _told(part: Part, config: Config) -> Part:
    """A part that depends on the run (its length, its clients) says so by a field of that name that is still open."""
    asked = [name for name in ("rounds", "clients", "per_round", "seed") if getattr(part, name, 0) is None]
    return dataclasses.replace(part, **{k: getattr(config, k) for k in asked}) if asked else part  # type: ignore


def _own_parts(own: Any) -> tuple[Part, ...]:
    parts = tuple(own) if isinstance(own, tuple | list) else (own,)
    for p in parts:
        if not isinstance(p, Part):
            raise SteppeError(f"{p!r} is no part: give instances of steppe.Part (with their settings, not the class), "
                              "the name of an algorithm, or a steppe.Algorithm.")  # fmt: skip
        if not isinstance(getattr(p, "name", None), str):
            raise SteppeError(f'{type(p).__name__} needs a name: write name = "my_part" in the class.')
    return parts


def _is_place(data: str) -> bool:
    return data.startswith(("hub:", "folder:")) or data.endswith(".npz")


def check_names(config: Config) -> tuple[str, SteppeError] | None:
    """The first key whose name is unknown or whose settings are wrong, with what to say about it."""
    checks: dict[str, Callable[[], Any]] = {
        "algorithm": lambda: build_algorithm(config),
        "add": lambda: privacy.check_accountant(build_algorithm(config)),
        "data": lambda: config.data in datasets.DATASETS or _is_place(config.data) or datasets.load(config.data),
        "partition": lambda: Path(config.partition).is_file() or partition.parse(config.partition),
        "augmentation": lambda: datasets.augmentation(config.augmentation),
        "model": lambda: config.model in models.MODELS or models.build(config.model, 1, (1,)),
        "measure": lambda: schedule(config.measure),
        "speed": lambda: availability.check(config),
        "track": lambda: trackers.check(config.track),
    }
    for key, check in checks.items():
        try:
            check()
        except SteppeError as error:
            return key, error
    return None


def find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SteppeError(f"device is {name!r}{nearest(name, ['auto', 'cpu', 'cuda', 'cuda:0'])}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SteppeError(f"device is {name!r}, but PyTorch sees no GPU here: use cpu or auto.")
    if device.type == "cuda" and device.index is None and torchrun.launched():
        return torch.device("cuda", torchrun.local_gpu())
    return device


def _set_precision(config: Config, algorithm: Algorithm, task: Task, notes: list[str]) -> None:
    """Tensor cores where they are right: never for a gradient that an algorithm normalises near its zero."""
    cuda, sensitive = task.x0.is_cuda, any(isinstance(p, ProximalAscent) and p.sensitive for p in algorithm.parts)
    chosen = config.precision
    if chosen == "auto":
        chosen = "tf32" if cuda and not sensitive and config.dtype == "float32" else "fp32"
    if chosen == "tf32" and sensitive:
        notes.append(f"{algorithm.name} normalises a gradient that may be mere rounding, which TF32 makes larger: "
                     "fp32, or bf16 (which spares that gradient), is safer")  # fmt: skip
    if chosen == "bf16":
        if task.buffers:
            raise SteppeError("precision = bf16 does not go with running statistics (batch norm): use group norm.")
        task.fast = torch.bfloat16
    if cuda:
        allowed = chosen == "tf32" or (chosen == "bf16" and not sensitive)  # teachers, for instance, stay out of bf16
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def _partition(config: Config, data: Data) -> Partition:
    if Path(config.partition).is_file():
        split = Partition.load(config.partition)
        if len(split.clients) != config.clients:
            raise SteppeError(f"{config.partition} has {len(split.clients)} clients, but clients is {config.clients}.")
        if max(int(c.max()) for c in split.clients) >= len(data.train_targets):
            raise SteppeError(f"{config.partition} was made for more samples than {data.name} has.")
        return split
    targets = data.train_targets.cpu()
    return partition.make(config.partition, targets, config.clients, config.partition_seed, classes=data.classes)


def _task(model: nn.Module, data: Data, loss: str | Each | None, metric: str | Each | None, head: str | None) -> Task:
    loss = loss or ("mse" if data.train_targets.is_floating_point() else "cross_entropy")
    for name, value, known in (("loss", loss, LOSSES), ("metric", metric, METRICS)):
        if isinstance(value, str) and value not in known:
            raise SteppeError(f"there is no {name} {value!r}{nearest(value, known)}")
    if not any(p.requires_grad for p in model.parameters()):
        raise SteppeError("The model has no trainable parameter: set requires_grad on those that are to be trained.")
    if head is not None and head not in dict(model.named_modules()):
        raise SteppeError(
            f"the model has no module {head!r}{nearest(head, [n for n, _ in model.named_modules() if n])}"
        )
    return Task(model, loss, metric, head)


def _cost(algorithm: Algorithm, task: Task, batch: dict[str, Tensor]) -> Cost:
    """By tracing without data, or by a real step for a model that looks at its numbers or makes tensors of its own."""
    try:
        return cost(algorithm, task, batch)
    except Exception:  # without data it may fail in any way
        return cost(algorithm, task, batch, task.x0.device)


def catalogue_settings(name: str) -> dict[str, Any]:
    """The settings of an algorithm by name, for `--set`; none for an unknown one, which is refused later."""
    return settings_of(CATALOGUE[name]) if name in CATALOGUE else {}
