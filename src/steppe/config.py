"""What can be set, with types, ranges and help: one class is schema, defaults and documentation at once."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from steppe.core.errors import SettingError, SteppeError, quote, suggest_name
from steppe.core.schedules import SCHEDULES
from steppe.references import OWN as OWN
from steppe.settings import (
    explain,
    parse_assignment,
    parse_rule,
    parse_schedule,
    split,
    split_algorithm,
    tell_where,
)

# Momentum, decay, clipping, sampling, weights and schedule belong to an experiment, not to an algorithm.
RECIPES: dict[str, dict[str, Any]] = {
    "fedsol": {"momentum": 0.9, "weight_decay": 1e-5, "clip": None, "lr": 0.01, "lr_schedule": "exponential",
               "lr_decay": 0.99, "batch": 50, "epochs": 5, "sampling": "fixed", "weighting": "samples"},
    "fedsmoo": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "exponential",
                "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "bernoulli", "weighting": "uniform"},
    "flsam": {"momentum": 0.9, "weight_decay": 1e-5, "clip": None, "lr": 0.01, "lr_schedule": "exponential",
              "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "fixed", "weighting": "samples"},
    "man": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "exponential",
            "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "bernoulli", "sampling_seed": 0,
            "weighting": "uniform"},
    "fednsam": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "cosine",
                "batch": 50, "epochs": 5, "max_steps": 50, "sampling": "fixed", "weighting": "uniform"},
}  # fmt: skip
# What a further part needs of the run. Keys that are set win over it, and are then refused with a reason.
IMPLIED: dict[str, dict[str, Any]] = {
    "dp": {"weighting": "uniform", "sampling": "bernoulli"}, "median": {"weighting": "uniform"},
    "trimmed_mean": {"weighting": "uniform"}, "krum": {"weighting": "uniform", "sampling": "fixed"},
}  # fmt: skip
# The augmentation of each recipe by data set, where the paper states one.
RECIPE_AUGMENTATION = {
    "fedsol": {"cifar10": "cifar-fedsol", "cifar100": "cifar-fedsol", "mnist": "mnist", "svhn": "svhn",
               "cinic10": "cinic10", "pathmnist": "med", "tissuemnist": "med", "pneumoniamnist": "med"},
    "fedsmoo": {"cifar10": "cifar-fedsmoo", "cifar100": "cifar-fedsmoo"},
    "flsam": {"cifar10": "flsam", "cifar100": "flsam", "cinic10": "flsam"},
    "man": {"cifar10": "cifar-fedsmoo", "cifar100": "cifar-fedsmoo", "tiny-imagenet": "cifar-fedsmoo"},
    "fednsam": {"cifar10": "svhn", "cifar100": "svhn"},
}  # fmt: skip

# Names of earlier versions, which stored configurations still have: the entry of today, and the settings that it takes.
RENAMED = {f"fedsol_a{i}": ("fedsol_ablation", {"variant": f"a{i}"}) for i in range(7)}


# What data sets and models need that are not about labelled images. A recipe and keys that are set win over it.
_TEXT: dict[str, Any] = {"partition": "natural", "model": "lstm", "metrics": ["accuracy", "perplexity"]}
USUAL_FOR: dict[str, dict[str, Any]] = {
    "shakespeare": _TEXT, "shakespeare-full": _TEXT,
    "lstm": {"lr": 3.0, "clip": 5.0}, "lstm-fedavg": {"lr": 3.0, "clip": 5.0}, "gpt": {"lr": 0.3, "clip": 5.0},
}  # fmt: skip


def _word(value: Any) -> str:
    """Return a text; what is none is refused later."""
    return value if isinstance(value, str) else ""


def rename_old(values: dict[str, Any]) -> dict[str, Any]:
    """Give a configuration of an earlier version the names of today.

    >>> rename_old({"algorithm": "fedsol_a2", "settings": {"rho": 1.0}, "add": ["swa:cycle=5,start=0.5"]})
    {'algorithm': 'fedsol_ablation', 'settings': {'variant': 'a2', 'rho': 1.0}, 'add': ['swa:cycle=5,start_at=0.5']}
    """
    name, settings = RENAMED.get(_word(values.get("algorithm")), (None, {}))
    if name and isinstance(own := values.get("settings", {}), dict):
        values = {**values, "algorithm": name, "settings": {**settings, **own}}
    if isinstance(add := values.get("add"), list) and any(_word(text).startswith("swa:") for text in add):
        new = [re.sub(r"(?<=[:,])start=", "start_at=", t) if _word(t).startswith("swa:") else t for t in add]
        values = {**values, "add": new}
    return values


def spell_out(values: dict[str, Any]) -> dict[str, Any]:
    """Write an algorithm with settings and further parts as the keys that it is short for; those that are there win.

    >>> spell_out({"algorithm": "fedsam:rho=0.5,eps=0+man", "rho": 0.1, "add": ["ema"]})
    {'algorithm': 'fedsam', 'rho': 0.1, 'add': ['man', 'ema'], 'eps': 0}
    """
    text, table, add = _word(values.get("algorithm")), values.get("settings"), values.get("add", [])
    if not text or text.startswith(OWN):
        return values
    name, sets, parts = split_algorithm(text)
    taken = {*values, *(table if isinstance(table, dict) else ())}
    short = {key: value for key, value in map(parse_assignment, sets) if key not in taken}
    values = {**values, **short, "algorithm": name}
    return {**values, "add": [*parts, *add]} if parts and isinstance(add, list) else values


# Names that other programs use for these keys, FL-Simulator's flags among them.
ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "local_learning_rate", "local_lr", "client_lr", "eta"), "lr"),
    **dict.fromkeys(("learning_rate_decay", "lr_gamma"), "lr_decay"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "lr_schedule"),
    **dict.fromkeys(("num_clients", "n_clients", "total_client", "total_clients", "num_users"), "clients"),
    **dict.fromkeys(("clients_per_round", "num_clients_per_round", "participants"), "per_round"),
    **dict.fromkeys(("active_ratio", "fraction_fit", "sample_fraction", "participation"),
                    "per_round (a number of clients, not a share)"),
    **dict.fromkeys(("num_rounds", "n_rounds", "comm_rounds", "communication_rounds", "global_epochs"), "rounds"),
    **dict.fromkeys(("local_epochs", "local_ep", "num_epochs"), "epochs"), "local_steps": "max_steps",
    **dict.fromkeys(("batch_size", "batchsize", "local_bs"), "batch"),
    **dict.fromkeys(("dataset", "data_name"), "data"),
    **dict.fromkeys(("data_dir", "data_path", "data_file", "data_root"), "data_folder"),
    **dict.fromkeys(("split_rule", "split_coef", "dirichlet_alpha", "partition_alpha", "iid", "non_iid"),
                    "partition (such as iid, lda(0.1) or dirichlet_replace(0.1))"),
    **dict.fromkeys(("wd", "l2"), "weight_decay"), **dict.fromkeys(("grad_clip", "max_grad_norm", "max_norm"), "clip"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"), **dict.fromkeys(("gpu", "cuda"), "device"),
    "optimizer": "optimiser", **dict.fromkeys(("method", "strategy"), "algorithm"),
}  # fmt: skip
DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
MANY, LARGE = 10**9, 1e9
LONGEST = 1_000_000  # bytes of a configuration file
Role = Literal["method", "recipe", "seed", "evaluation", "machine", "onlooker"]


def key(default: Any, role: Role, description: str, **limits: Any) -> Any:
    """Return a key of the configuration. Its role says what depends on it.

    method      what is compared: the algorithm
    recipe      the protocol, which runs must share to be compared
    seed        what is varied to repeat a run
    evaluation  what is measured; training does not depend on it
    machine     where and how it is computed
    onlooker    what follows the run; runs that differ in nothing else are the same run
    """
    return Field(default, description=description, json_schema_extra={"role": role}, **limits)


Factor = Annotated[float, Field(ge=0, le=LARGE)]


class Config(BaseModel):
    """A run. Keys are flat; the algorithm's own settings stand under `settings`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    algorithm: str = key("fedavg", "method", "Algorithm, a name (steppe list algorithms) or your own: FILE.py:NAME, "
                         "MODULE:NAME")  # fmt: skip
    settings: dict[str, Any] = key({}, "method", "Settings of the algorithm, such as rho")
    add: list[str] = key([], "method", "Further parts, such as man:weight=0.1 (steppe list parts) or your own, "
                           "FILE.py:NAME:rho=0.1", max_length=100)  # fmt: skip
    recipe: Literal["fedsol", "fedsmoo", "flsam", "man", "fednsam"] | None = key(
        None, "recipe", "Local training recipe of a paper; keys that are set win over it (steppe list recipes)"
    )

    data: str = key("digits", "recipe", "Data set: a name (steppe list data), folder:PATH, hub:NAME or FILE.npz")
    data_folder: str | None = key(None, "machine", "Folder of the data sets' files (default: $STEPPE_DATA or ./data)")
    validation: float = key(0.0, "recipe", "Share of the training data held out for validation", ge=0, lt=1)
    partition: str = key("lda(0.3)", "recipe", "Rule that splits samples over clients (steppe list partitions), or the "
                         "file of a saved partition")  # fmt: skip
    partition_seed: int | None = key(None, "recipe", "Seed of the partition (default: the one that the rule's paper "
                                     "used)", ge=0, le=2**32 - 1)  # fmt: skip
    clients: int = key(20, "recipe", "Number of clients in the federation", ge=1, le=MANY)
    per_round: int = key(5, "recipe", "Clients per round (with bernoulli sampling: on average)", ge=1, le=MANY)
    sampling: Literal["fixed", "bernoulli", "sparse"] = key(
        "fixed",
        "recipe",
        "How each round's clients are sampled: a fixed number (fixed), each by a draw of its own "
        "(bernoulli), or a fixed number, drawn cheaply from millions of clients (sparse, another schedule)",
    )
    sampling_seed: int | None = key(
        None, "recipe", "Seed of the clients' schedule (default: it depends on the round alone)", ge=0, le=2**31
    )
    dropout: float = key(0.0, "recipe", "Probability that a sampled client never answers", ge=0, lt=1)
    speed: str | None = key(None, "recipe", "Simulated seconds per gradient of each client, such as lognormal(0.5)")
    deadline: Annotated[float, Field(gt=0, le=LARGE)] | str | None = key(
        None, "recipe", "Time after which late replies are dropped: simulated seconds, or 1.5x the round's median"
    )
    augmentation: str = key("auto", "recipe", "Augmentation of training images (auto: the recipe's for this data set, "
                            "or none)")  # fmt: skip
    model: str = key("cnn", "recipe", "Model, a name (steppe list models)")
    loss: str | None = key(None, "recipe", "Loss: cross_entropy, bce, mse or dice, with settings such as "
                           "cross_entropy:ignore_index=0 (default: cross_entropy for whole numbers as targets, else "
                           "mse)")  # fmt: skip
    metrics: list[str] = key([], "evaluation", "Metrics, such as accuracy,top5; the first is the main one (default: "
                             "the usual one of the loss)", max_length=100)  # fmt: skip

    rounds: int = key(30, "recipe", "Rounds of training", ge=0, le=MANY)
    epochs: int = key(2, "recipe", "Local epochs per round", ge=0, le=10**6)
    max_steps: int | None = key(None, "recipe", "Upper limit of local steps per round", ge=1, le=MANY)
    batch: int = key(20, "recipe", "Batch size of local training", ge=1, le=MANY)
    last_batch: Literal["keep", "drop", "join"] = key(
        "keep", "recipe", "A short last batch of an epoch: keep it, drop it, or join it to the batch before"
    )
    accumulate: int = key(1, "machine", "Pieces into which a batch's passes are split to save memory; the gradient is "
                          "that of the whole batch, for one more forward pass", ge=1, le=MANY)  # fmt: skip
    optimiser: str = key("sgd", "recipe", "Local optimiser: sgd or adamw, with settings such as adamw:beta1=0.8")
    lr: float = key(0.05, "recipe", "Local learning rate of the first round", gt=0, le=LARGE)
    lr_schedule: str | list[Factor] | dict[Annotated[int, Field(ge=0)], Factor] = key(
        "exponential", "recipe", "How the local learning rate changes over the rounds: constant, exponential, cosine, "
        "linear, steps(100,200;0.1), warmup(5)+cosine; or factors, one per round or from the rounds of a table on"
    )  # fmt: skip
    local_schedule: str = key("constant", "recipe", "How the learning rate changes over the local steps of each round: "
                              "constant, linear(0.1) or cosine(0.1), with the share left at the end")  # fmt: skip
    lr_decay: float = key(0.99, "recipe", "Factor per round of the exponential schedule", gt=0, le=1)
    momentum: float = key(0.0, "recipe", "Momentum of local SGD, reset every round", ge=0, lt=1)
    weight_decay: float = key(1e-4, "recipe", "Weight decay of the local optimiser", ge=0, le=LARGE)
    clip: float | None = key(None, "recipe", "Norm to which longer local gradients are scaled down", gt=0, le=LARGE)
    weighting: Literal["samples", "uniform"] = key(
        "samples", "recipe", "Weights of the clients' models in the mean: by number of samples, or all equal"
    )

    personal: Annotated[list[Annotated[int, Field(ge=0, le=10**6)]], Field(max_length=100)] | None = key(
        None, "evaluation", "Epochs of fine-tuning after which each client's own model is evaluated (default: [1, 5] "
        "for personalised algorithms, none for others)"
    )  # fmt: skip
    personal_lr: float | None = key(
        None, "evaluation", "Learning rate of clients' fine-tuning (default: that after the last round)", gt=0, le=LARGE
    )

    seed: int = key(0, "seed", "Seed of the initial model, the batch order and the augmentation", ge=0, le=2**53)
    vary: Literal["all", "model"] | None = key(
        None, "recipe", "What depends on the seed: all that is random, also the partition and the clients' schedule "
        "unless they have seeds of their own; or model, which keeps the papers' (default: all in comparisons and "
        "sweeps, model in a single run)"
    )  # fmt: skip
    device: str = key("auto", "machine", "Device: cpu, cuda, cuda:1, mps or auto")
    dtype: Literal["float32", "float64"] = key("float32", "recipe", "Floating-point type of the computation")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = key(
        "auto", "recipe", "Precision of matrix products (auto: tf32 on a GPU unless the algorithm is sensitive, else "
        "fp32)"
    )  # fmt: skip
    compile: bool = key(True, "machine", "Compile the local step and capture it as CUDA graphs, on a GPU")
    compile_cache: str | None = key(
        None, "machine", "File of steppe warm with compiled code of your own, to start without compiling (default: "
        "$STEPPE_COMPILE_CACHE)"
    )  # fmt: skip
    executor: Literal["auto", "sequential", "batched"] = key(
        "auto", "machine", "Train one client after the other, or all at once (auto: batched on a GPU)"
    )
    workers: Annotated[int, Field(ge=0, le=1024)] | Literal["auto"] = key(
        "auto", "machine", "Worker processes of the sequential executor; 0 trains in the main process"
    )
    chunk: int | None = key(
        None, "machine", "Clients trained at once by the batched executor (default: all)", ge=1, le=MANY
    )
    buffers: Literal["average", "local", "recalibrate", "refuse"] = key(
        "average", "recipe", "What happens to the running statistics of batch norm"
    )
    store: Literal["auto", "memory", "disk"] = key(
        "auto", "machine", "Where client states are kept (auto: on disk if they do not fit into memory)"
    )
    memory: float | None = key(
        None, "machine", "GiB for client states and a round's vectors (default: what is free)", gt=0, le=LARGE
    )
    reduction: Literal["sum", "ordered"] = key(
        "sum", "machine", "Sum over ranks: partial sums, or in the order of clients for the exact bits of one process"
    )
    nonfinite: Literal["stop", "drop"] = key(
        "stop", "recipe", "What to do with an update that is not finite or is refused: stop the run, or drop the update"
    )
    refuse_above: float | None = key(None, "recipe", "Norm above which an upload is refused", gt=0)
    judged_on: Literal["test", "validation"] = key(
        "test", "evaluation", "Samples that the model is judged on; validation: the held-out training samples take the "
        "place of the test set, which is not used"
    )  # fmt: skip
    running_mean: float | None = key(
        None, "evaluation", "Also score a running mean of the global models that keeps this share of itself per round, "
        "such as 0.9; training does not depend on it", ge=0, lt=1
    )  # fmt: skip
    evaluate_every: int = key(1, "evaluation", "Rounds between evaluations", ge=1, le=MANY)
    measure: list[str] = key(
        [], "evaluation", "Measures during training, such as lambda1:10 for every tenth round (steppe list measures)",
        max_length=100
    )  # fmt: skip
    track: list[str] = key([], "onlooker", "Trackers that follow the run: tensorboard, wandb, mlflow", max_length=10)
    checkpoint_every: int = key(10, "machine", "Rounds between checkpoints", ge=1, le=MANY)
    early_stopping: int | None = key(
        None, "recipe", "Evaluations without a better validation loss after which training stops", ge=1, le=MANY
    )
    early_stopping_by: str = key("loss", "recipe", "What early stopping looks at: loss, or the name of a metric")

    @field_validator("*", mode="before")
    @classmethod
    def refuse_what_is_no_value(cls, value: Any, info: Any) -> Any:
        """Refuse what pydantic would read as 0, 1 or text, and text that no file name can contain."""
        if isinstance(value, bool | bytes) and info.field_name != "compile":
            raise SettingError(f"{info.field_name} is {quote(value)}, which is none of its values", info.field_name)
        if isinstance(value, str) and "\0" in value:
            raise SettingError(f"{info.field_name} is {quote(value)}, which contains a null character", info.field_name)
        return value

    @field_validator("augmentation", mode="before")
    @classmethod
    def read_none(cls, value: Any) -> Any:
        """Take `none`, which a command line reads as no value, for the name of the augmentation that does nothing."""
        return "none" if value is None else value

    @field_validator("metrics", mode="before")
    @classmethod
    def split_names(cls, value: Any) -> Any:
        """Read `accuracy,top5` as a list, as a command line writes it."""
        return split_names(value) if isinstance(value, str) else value

    @field_validator("lr_schedule", mode="before")
    @classmethod
    def check_factors(cls, value: Any) -> Any:
        """Name the first wrong factor of a list or table."""
        factors = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        wrong = [f for f in factors if not isinstance(f, int | float) or not 0 <= f <= LARGE]
        if wrong:
            raise SettingError(f"lr_schedule has the factor {quote(wrong[0])}, but a factor must be a number, at least "
                               f"0 and at most {LARGE:g}", "lr_schedule")  # fmt: skip
        return value

    @model_validator(mode="after")
    def check_together(self) -> Config:
        """Refuse values that do not fit each other."""
        check_device(self.device)
        if isinstance(self.lr_schedule, str):
            parse_schedule(self.lr_schedule)
        elif not self.lr_schedule:
            raise SettingError("lr_schedule has no factor: give one per round, or a name such as cosine", "lr_schedule")
        parse_local_schedule(self.local_schedule)
        if self.per_round > self.clients:
            raise SettingError(f"per_round is {self.per_round}, but there are only {self.clients} clients: lower "
                               "per_round or raise clients", "per_round", "clients")  # fmt: skip
        if self.early_stopping is not None and self.validation == 0:
            raise SettingError("early_stopping looks at validation data, never at the test set: set validation, to 0.1 "
                               "for instance", "early_stopping", "validation")  # fmt: skip
        if self.judged_on == "validation" and self.validation == 0:
            raise SettingError("judged_on is validation, but no samples are held out: set validation, to 0.1 for "
                               "instance", "judged_on", "validation")  # fmt: skip
        return self

    @property
    def partition_stream(self) -> int | None:
        """Return the seed of the partition; None: that of the rule's paper."""
        return self._stream("partition") if self.partition_seed is None else self.partition_seed

    @property
    def sampling_stream(self) -> int | None:
        """Return the seed of the clients' schedule; None: the papers' schedule."""
        return self._stream("schedule") if self.sampling_seed is None else self.sampling_seed

    def _stream(self, purpose: str) -> int | None:
        """Return a seed that follows from the run's. Seed 0 has the papers' streams, so that it is the usual run."""
        if self.vary != "all" or self.seed == 0:
            return None
        digest = hashlib.sha256(f"{purpose} of seed {self.seed}".encode()).digest()
        return int.from_bytes(digest[:4], "little") >> 1

    @property
    def hash(self) -> str:
        """Eight digits that name this configuration."""
        content = self.model_dump(mode="json", exclude=list_keys("onlooker"))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def split_names(text: str) -> list[str]:
    """Return the names in a text, with their settings.

    >>> split_names("accuracy, dice:ignore_index=0,axis=1,iou")
    ['accuracy', 'dice:ignore_index=0,axis=1', 'iou']
    """
    found: list[str] = []
    for word in split(text, ","):
        if "=" in word and ":" not in word and found:  # a further setting of the last one
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def list_keys(*roles: Role) -> set[str]:
    """Return the keys with one of these roles.

    >>> sorted(list_keys("seed", "onlooker"))
    ['seed', 'track']
    """
    return {name for name, field in Config.model_fields.items() if field.json_schema_extra["role"] in roles}  # type: ignore


def parse_local_schedule(text: str) -> tuple[str, float] | None:
    """The shape of a schedule over local steps and the share at its end; None if the rate is constant.

    >>> parse_local_schedule("cosine(0.1)"), parse_local_schedule("linear"), parse_local_schedule("constant")
    (('cosine', 0.1), ('linear', 0.0), None)
    """
    known = {name: SCHEDULES[name] for name in ("constant", "linear", "cosine")}
    function, numbers = parse_rule(text, "local_schedule", known, given=2)
    if any(n > 1 for n in numbers):
        raise SettingError(f"local_schedule is {quote(text)}: its number is the share of the rate at the end, at most "
                           "1", "local_schedule")  # fmt: skip
    return None if function is SCHEDULES["constant"][0] else (function.__name__, numbers[0] if numbers else 0.0)


def check_device(name: str) -> None:
    """Refuse what names no kind of device; whether this machine has it is another question."""
    if not DEVICES.fullmatch(name):
        raise SettingError(f"device is {quote(name)}, but must be cpu, cuda, cuda:1, mps or auto", "device")


def resolve(values: dict[str, Any], source: str = "the settings") -> Config:
    """Check a configuration, with the recipe's values below the given ones; errors name the key and the source."""
    with tell_where(dict.fromkeys(values, source) if source else {}):
        values = rename_old(values)
        for name in values:
            find_key(name, ())
        usual = USUAL_FOR.get(_word(values.get("data")), {})
        usual = usual | USUAL_FOR.get(_word(values.get("model", usual.get("model"))), {})
        recipe = usual | RECIPES.get(_word(values.get("recipe")), {})
        added = values.get("add")
        for text in added if isinstance(added, list) else []:
            recipe = {**recipe, **IMPLIED.get(_word(text).partition(":")[0], {})}
        try:
            config = Config(**{**recipe, **values})
        except ValidationError as error:
            raise explain(error, Config) from None
    if config.augmentation == "auto":
        chosen = RECIPE_AUGMENTATION.get(config.recipe or "", {}).get(config.data, "none")
        config = config.model_copy(update={"augmentation": chosen})
    return config


def find_key(name: str, own: Collection[str]) -> str:
    """Return where a key belongs: `settings.rho` for a setting of the algorithm (`own`), `lr` for a key of the run.

    >>> find_key("rho", {"rho"}), find_key("settings.rho", {"rho"}), find_key("lr", {"rho"})
    ('settings.rho', 'settings.rho', 'lr')
    """
    bare = name.removeprefix("settings.")
    if bare in own:
        return f"settings.{bare}"
    if name in Config.model_fields:
        return name
    if usual := ELSEWHERE.get(bare.lower().replace("-", "_")):
        raise SettingError(f"there is no key {quote(name)}; did you mean {usual}?", bare)
    known = suggest_name(bare, {*Config.model_fields, *own})
    more = "" if "did you mean" in known else f". The algorithm's own [settings]: {', '.join(sorted(own)) or 'none'}"
    raise SettingError(f"there is no key {quote(name)}{known}{more}", bare)


def list_own_settings(values: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the settings that the algorithm of a configuration has."""
    from steppe.registry import find_entry, list_settings  # torch, which `steppe --help` does not wait for

    name = _word(values.get("algorithm", Config.model_fields["algorithm"].default))
    return list_settings(find_entry(name)) if name and not name.startswith(OWN) else ()


def nest_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put settings of the algorithm, which may be given next to the run's keys, under `settings`.

    >>> nest_settings({"algorithm": "fedsam", "lr": 1, "rho": 2, "settings": {"eps": 0}})
    {'algorithm': 'fedsam', 'lr': 1, 'settings': {'eps': 0, 'rho': 2}}
    >>> nest_settings({"algorithm": "fedsam", "settings.rho": 2})
    {'algorithm': 'fedsam', 'settings': {'rho': 2}}
    """
    values = spell_out(dict(values))
    own = list_own_settings(values)
    places = {name: find_key(name, own) for name in values}
    nested = {name: values[name] for name, place in places.items() if not place.startswith("settings.")}
    table = {place.removeprefix("settings."): values[name] for name, place in places.items() if name not in nested}
    return put_value(nested, "settings", table) if table else nested


def put_value(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the values with one more on top; a table of settings is merged with the one that is there."""
    if key != "settings":
        return {**values, key: value}
    for table in (value, values.get(key, {})):
        if not isinstance(table, dict):
            raise SettingError(f"settings is {quote(table)}, but must be a table, such as settings.rho=0.1", key)
    return {**values, key: {**values.get(key, {}), **value}}


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file, or of a run's config.json."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1).decode()
        if len(text) > LONGEST:
            raise SteppeError(f"{path} is longer than {LONGEST:,} bytes: it is not a configuration.")
        content = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except FileNotFoundError:
        raise SteppeError(f"There is no configuration file {path}.") from None
    except IsADirectoryError:
        inside = f", for example {path / 'config.json'}" if (path / "config.json").exists() else ""
        raise SteppeError(f"{path} is a folder: give a file{inside}.") from None
    except OSError as error:
        raise SteppeError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise SteppeError(f"{path} is not valid {kind}: it is nested too deeply.") from None
    except ValueError as error:  # also of text that is not UTF-8, and of very long numbers, where Python has advice
        raise SteppeError(f"{path} is not valid {kind}: {str(error).partition('; use sys.')[0]}.") from None
    if not isinstance(content, dict):
        raise SteppeError(f"{path} must hold an object with keys of the run.")
    return content


def parse_option(text: str, own: Collection[str]) -> tuple[str, Any]:
    """Read `key=value` from a command line; the key is a setting of the algorithm (`own`) or of the run.

    >>> parse_option("rho=0.5", {"rho": 0.1}), parse_option("data=mnist", {}), parse_option("clip=none", {})
    (('settings.rho', 0.5), ('data', 'mnist'), ('clip', None))
    """
    name, value = parse_assignment(text)
    with tell_where({name.removeprefix("settings."): format_option(text)}):
        return find_key(name, own), value


def format_option(text: str) -> str:
    """Return how a setting was written on the command line.

    >>> format_option("lr=0.1"), format_option("--lr=0.1")
    ('--set lr=0.1', '--lr 0.1')
    """
    text = text if len(text) <= 80 else f"{text[:79]}…"
    return text.replace("=", " ", 1) if text.startswith("--") else f"--set {text}"
