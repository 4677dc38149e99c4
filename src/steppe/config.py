"""What can be set, with types, ranges and help: one class is schema, defaults and documentation at once."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from steppe.core.errors import SteppeError, nearest

# Momentum, decay, clipping, sampling, weights and schedule belong to an experiment, not to an algorithm.
RECIPES: dict[str, dict[str, Any]] = {
    "fedsol": {"momentum": 0.9, "weight_decay": 1e-5, "clip": None, "lr": 0.01, "lr_schedule": "exponential",
               "lr_decay": 0.99, "batch": 50, "epochs": 5, "sampling": "fixed", "weighting": "samples"},
    "fedsmoo": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "exponential",
                "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "bernoulli", "weighting": "uniform"},
    "flsam": {"momentum": 0.9, "weight_decay": 1e-5, "clip": None, "lr": 0.01, "lr_schedule": "exponential",
              "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "fixed", "weighting": "samples"},
    "man": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "exponential",
            "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "bernoulli", "weighting": "uniform"},
    "fednsam": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "cosine",
                "batch": 50, "epochs": 5, "max_steps": 50, "sampling": "fixed", "weighting": "uniform"},
}  # fmt: skip
# What a further part needs to keep its promise; keys that are set win over it, and are then refused with a reason.
IMPLIED: dict[str, dict[str, Any]] = {
    "dp": {"weighting": "uniform", "sampling": "bernoulli"}, "median": {"weighting": "uniform"},
    "trimmed_mean": {"weighting": "uniform"}, "krum": {"weighting": "uniform", "sampling": "fixed"},
}  # fmt: skip
# What each recipe does to training images, where it says so.
RECIPE_AUGMENTATION = {
    "fedsol": {"cifar10": "cifar-fedsol", "cifar100": "cifar-fedsol", "mnist": "mnist", "svhn": "svhn",
               "cinic10": "cinic10", "pathmnist": "med", "tissuemnist": "med", "pneumoniamnist": "med"},
    "fedsmoo": {"cifar10": "cifar-fedsmoo", "cifar100": "cifar-fedsmoo"},
    "flsam": {"cifar10": "flsam", "cifar100": "flsam", "cinic10": "flsam"},
    "man": {"cifar10": "svhn", "cifar100": "svhn", "tiny-imagenet": "svhn"},
    "fednsam": {"cifar10": "svhn", "cifar100": "svhn"},
}  # fmt: skip

OWN = "own:"  # before the name of an algorithm, model or data set that is an object of the user's own
# Names of earlier versions, which stored configurations still have: the entry of today, and the settings that it takes.
RENAMED = {f"fedsol_a{i}": ("fedsol_ablation", {"variant": f"a{i}"}) for i in range(7)}


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the names of today.

    >>> renamed({"algorithm": "fedsol_a2", "settings": {"rho": 1.0}, "add": ["swa:cycle=5,start=0.5"]})
    {'algorithm': 'fedsol_ablation', 'settings': {'variant': 'a2', 'rho': 1.0}, 'add': ['swa:cycle=5,start_at=0.5']}
    """
    name, settings = RENAMED.get(str(values.get("algorithm")), (None, {}))
    values = {**values, "algorithm": name, "settings": {**settings, **values.get("settings", {})}} if name else values
    if isinstance(add := values.get("add"), list) and any("swa:" in str(text) for text in add):
        new = [re.sub(r"(?<=[:,])start=", "start_at=", t) if str(t).startswith("swa:") else t for t in add]
        values = {**values, "add": new}
    return values


ONLOOKERS = ("track",)  # keys that look on: runs that differ in nothing else are the same run


class Config(BaseModel):
    """A run. Keys are flat; the algorithm's own settings stand under `settings`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    algorithm: str = Field("fedavg", description="a name of the catalogue: steppe list")
    settings: dict[str, Any] = Field({}, description="the algorithm's own settings, such as rho")
    add: list[str] = Field([], description="further parts, such as man:weight=0.1")
    recipe: Literal["fedsol", "fedsmoo", "flsam", "man", "fednsam"] | None = Field(
        None, description="a paper's local recipe; keys that are set win over it"
    )

    data: str = Field("digits", description="a data set: steppe list")
    data_folder: str | None = Field(None, description="where official files lie (default: $STEPPE_DATA or ./data)")
    validation: float = Field(0.0, ge=0, lt=1, description="share of the training data held out for validation")
    partition: str = Field("lda(0.3)", description="how samples are split over clients, or a saved partition's file")
    partition_seed: int | None = Field(None, description="its seed (default: the rule's official one)")
    clients: int = Field(20, ge=1, description="clients in all")
    per_round: int = Field(5, ge=1, description="clients a round (bernoulli: on average)")
    sampling: Literal["fixed", "bernoulli"] = Field("fixed", description="how they are drawn")
    sampling_seed: int | None = Field(
        None, description="makes the schedule depend on this seed instead of the round alone"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="probability that a client which was called never answers")
    speed: str | None = Field(
        None, description="seconds that a gradient takes each client, simulated, such as lognormal(0.5)"
    )
    deadline: float | str | None = Field(
        None, description="when late replies are not waited for: simulated seconds, or 1.5x the median of the round"
    )
    augmentation: str = Field("auto", description="of training images; auto: the recipe's for this data set, or none")
    model: str = Field("cnn", description="a model: steppe list")

    rounds: int = Field(30, ge=0, description="rounds of training")
    epochs: int = Field(2, ge=0, description="local epochs a round")
    max_steps: int | None = Field(None, ge=1, description="at most this many local steps a round")
    batch: int = Field(20, ge=1, description="batch size of local training")
    optimiser: Literal["sgd", "adamw"] = Field("sgd", description="the local optimiser")
    lr: float = Field(0.05, gt=0, description="local learning rate of the first round")
    lr_schedule: Literal["exponential", "cosine", "constant"] = Field("exponential", description="over the rounds")
    lr_decay: float = Field(0.99, gt=0, le=1, description="factor a round of the exponential schedule")
    momentum: float = Field(0.0, ge=0, lt=1, description="of local SGD, fresh every round")
    weight_decay: float = Field(1e-4, ge=0, description="of the local optimiser")
    clip: float | None = Field(None, gt=0, description="gradient norm above which local gradients are scaled down")
    weighting: Literal["samples", "uniform"] = Field("samples", description="weights of the clients' models")

    personal: list[int] | None = Field(
        None,
        description="judge each client's own model after these epochs of fine-tuning; default: [1, 5] for "
        "personalised algorithms, none for others",
    )
    personal_lr: float | None = Field(None, gt=0, description="its learning rate (default: that after the last round)")

    seed: int = Field(0, ge=0, description="of the initial model, batch order and augmentation")
    device: str = Field("auto", description="cpu, cuda, cuda:1 or auto")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of the computation")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto", description="of matrix products (auto: tf32 on a GPU unless the algorithm is sensitive, else fp32)"
    )
    compile: bool = Field(True, description="on a GPU, compile the local step and capture it as graphs")
    executor: Literal["auto", "sequential", "batched"] = Field(
        "auto", description="one client after the other, or all at once (auto: batched on a GPU)"
    )
    workers: int | Literal["auto"] = Field("auto", description="processes of the sequential executor; 0: none")
    chunk: int | None = Field(None, ge=1, description="clients at once in the batched executor (default: all)")
    buffers: Literal["average", "local", "recalibrate", "refuse"] = Field(
        "average", description="what happens to batch norm's running statistics"
    )
    store: Literal["auto", "memory", "disk"] = Field("auto", description="where client states are kept")
    memory: float | None = Field(
        None,
        gt=0,
        description="GiB for client states and a round's vectors (default: what is free); auto: more go to disk",
    )
    reduction: Literal["sum", "ordered"] = Field(
        "sum", description="over ranks: partial sums, or in the clients' order, to the bits of one process"
    )
    nonfinite: Literal["stop", "drop"] = Field("stop", description="on an update that is not finite, or is refused")
    refuse_above: float | None = Field(None, gt=0, description="refuse an upload whose norm is above this")
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")
    measure: list[str] = Field([], description="measures during training, such as lambda1:10 for every tenth round")
    track: list[str] = Field([], description="trackers that follow the run: tensorboard, wandb, mlflow")
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")
    early_stopping: int | None = Field(
        None, ge=1, description="stop after this many evaluations without a better validation loss"
    )

    @model_validator(mode="after")
    def consistent(self) -> Config:
        if self.per_round > self.clients:
            raise ValueError(
                f"per_round is {self.per_round}, but there are only {self.clients} clients: "
                "lower per_round or raise clients"
            )
        if self.early_stopping is not None and self.validation == 0:
            raise ValueError(
                "early_stopping looks at validation data, never at the test set: set validation, to 0.1 for instance"
            )
        if isinstance(self.workers, int) and self.workers < 0:
            raise ValueError(f"workers is {self.workers}, but must be at least 0, or auto")
        return self

    @property
    def hash(self) -> str:
        """Eight digits that name this configuration."""
        told = self.model_dump(mode="json", exclude=set(ONLOOKERS))
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def resolve(values: dict[str, Any], source: str = "the settings") -> Config:
    """A checked configuration: the recipe's values below the given ones; errors name the key and the source."""
    values = renamed(values)
    unknown = [k for k in values if k not in Config.model_fields]
    if unknown:
        told = f"there is no key {unknown[0]!r}{_near(unknown[0], list(Config.model_fields))}"
        raise SteppeError(f"{source}: {told}" if source else told)
    recipe = RECIPES.get(str(values.get("recipe")), {})
    added = values.get("add")
    for text in added if isinstance(added, list) else []:
        recipe = {**recipe, **IMPLIED.get(str(text).partition(":")[0], {})}
    try:
        config = Config(**{**recipe, **values})
    except ValidationError as error:
        told = "; ".join(_sentence(e) for e in error.errors())
        raise SteppeError(f"{source}: {told}" if source else told) from None
    if config.augmentation == "auto":
        chosen = RECIPE_AUGMENTATION.get(config.recipe or "", {}).get(config.data, "none")
        config = config.model_copy(update={"augmentation": chosen})
    return config


def read(path: Path) -> dict[str, Any]:
    """The keys of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SteppeError(f"There is no configuration file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SteppeError(f"{path} is not valid TOML: {error}.") from None


def assign(text: str, settings: dict[str, Any]) -> tuple[str, Any]:
    """`key=value` from a command line; the key is a setting of the algorithm (`settings`) or of the run.

    >>> assign("rho=0.5", {"rho": 0.1}), assign("data=mnist", {}), assign("clip=none", {})
    (('settings.rho', 0.5), ('data', 'mnist'), ('clip', None))
    """
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals:
        raise SteppeError(f"--set {text}: write it as key=value")
    value = parse(raw.strip())
    bare = key.removeprefix("settings.")
    if bare in settings:
        return f"settings.{bare}", value
    if key in Config.model_fields:
        return key, value
    known = sorted({*Config.model_fields, *settings})
    raise SteppeError(f"--set {text}: there is no key {key!r}{_near(key, known)}")


def parse(raw: str) -> Any:
    """A value as TOML reads it; bare words are text."""
    if raw.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        return raw


def _near(word: str, options: list[str]) -> str:
    """Like `nearest`, but a long list of keys is not repeated in full."""
    close = difflib.get_close_matches(word, options, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else nearest(word, options)


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part not in ("int", "constrained-int"))
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{where} is {error['input']!r}: {message}" if where else message
