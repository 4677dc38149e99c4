"""The keys of a run with types, ranges and help: one class is schema, defaults and documentation at once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from steppe.core.errors import SettingError, quote, suggest_name
from steppe.core.schedules import SCHEDULES
from steppe.presets import ELSEWHERE, IMPLIED, RECIPE_AUGMENTATION, RECIPES, RENAMED, USUAL_FOR
from steppe.references import OWN as OWN
from steppe.settings import explain, parse_rule, parse_schedule, split, take_text, tell_where


def rename_old(values: dict[str, Any]) -> dict[str, Any]:
    """Give a configuration of an earlier version today's names.

    >>> rename_old({"algorithm": "fedsol_a2", "settings": {"rho": 1.0}, "add": ["swa:cycle=5,start=0.5"]})
    {'algorithm': 'fedsol_ablation', 'settings': {'variant': 'a2', 'rho': 1.0}, 'add': ['swa:cycle=5,start_at=0.5']}
    """
    name, settings = RENAMED.get(take_text(values.get("algorithm")), (None, {}))
    if name and isinstance(own := values.get("settings", {}), dict):
        values = {**values, "algorithm": name, "settings": {**settings, **own}}
    if isinstance(add := values.get("add"), list) and any(take_text(text).startswith("swa:") for text in add):
        new = [re.sub(r"(?<=[:,])start=", "start_at=", t) if take_text(t).startswith("swa:") else t for t in add]
        values = {**values, "add": new}
    return values


DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
MANY, LARGE = 10**9, 1e9
Role = Literal["method", "recipe", "seed", "evaluation", "machine", "tracking"]


def key(default: Any, role: Role, description: str, **limits: Any) -> Any:
    """Return a key of the configuration. Its role says what depends on it.

    method      what is compared: the algorithm
    recipe      the protocol, which runs must share to be compared
    seed        what is varied to repeat a run
    evaluation  what is measured; training does not depend on it
    machine     where and how it is computed
    tracking    what follows the run; runs that differ in nothing else are the same run
    """
    return Field(default, description=description, json_schema_extra={"role": role}, **limits)


Factor = Annotated[float, Field(ge=0, le=LARGE)]


class Config(BaseModel):
    """A run. Keys are flat; the algorithm's own settings are under `settings`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    algorithm: str = key("fedavg", "method", "Algorithm: a name (steppe list algorithms) or your own, FILE.py:NAME "
                         "or MODULE:NAME")  # fmt: skip
    settings: dict[str, Any] = key({}, "method", "Settings of the algorithm, such as rho")
    add: list[str] = key([], "method", "Further parts, such as man:weight=0.1 (steppe list parts), or your own, "
                           "FILE.py:NAME:rho=0.1", max_length=100)  # fmt: skip
    recipe: Literal["fedsol", "fedsmoo", "flsam", "man", "fednsam"] | None = key(
        None, "recipe", "Local training recipe of a paper, which keys that you set override (steppe list recipes)"
    )

    data: str = key("digits", "recipe", "Data set: a name (steppe list data), folder:PATH, hub:NAME or FILE.npz")
    data_folder: str | None = key(None, "machine", "Folder of the data sets' files (default: $STEPPE_DATA or ./data)")
    validation: float = key(0.0, "recipe", "Share of the training data held out for validation", ge=0, lt=1)
    partition: str = key("lda(0.3)", "recipe", "Rule that divides samples among clients (steppe list partitions), or "
                         "the file of a saved partition")  # fmt: skip
    partition_seed: int | None = key(None, "recipe", "Seed of the partition (default: the one that the rule's paper "
                                     "used)", ge=0, le=2**32 - 1)  # fmt: skip
    clients: int = key(20, "recipe", "Number of clients in the federation", ge=1, le=MANY)
    per_round: int = key(5, "recipe", "Clients per round (with bernoulli sampling: on average)", ge=1, le=MANY)
    sampling: Literal["fixed", "bernoulli", "sparse"] = key(
        "fixed", "recipe", "How each round's clients are sampled: a fixed number (fixed), each independently "
        "(bernoulli), or a fixed number at low cost from millions of clients (sparse, whose schedule differs from "
        "fixed)"
    )  # fmt: skip
    sampling_seed: int | None = key(
        None, "recipe", "Seed of the clients' schedule (default: it depends only on the round)", ge=0, le=2**31
    )
    dropout: float = key(0.0, "recipe", "Probability that a sampled client never answers", ge=0, lt=1)
    speed: str | None = key(
        None, "recipe", "Simulated seconds that each client needs per gradient, such as lognormal(0.5)"
    )
    deadline: Annotated[float, Field(gt=0, le=LARGE)] | str | None = key(
        None, "recipe", "Time after which late replies are dropped: simulated seconds, or 1.5x the round's median"
    )
    augmentation: str = key("auto", "recipe", "Augmentation of training images (steppe list augmentations; auto: "
                            "that of the recipe for this data set, otherwise none)")  # fmt: skip
    model: str = key("cnn", "recipe", "Model: a name (steppe list models)")
    loss: str | None = key(None, "recipe", "Loss: cross_entropy, bce, mse or dice, with settings such as "
                           "cross_entropy:ignore_index=0 (default: cross_entropy for whole numbers as targets, else "
                           "mse)")  # fmt: skip
    metrics: list[str] = key([], "evaluation", "Metrics, such as accuracy,top5; the first is the main one (default: "
                             "the usual metric of the loss)", max_length=100)  # fmt: skip

    rounds: int = key(30, "recipe", "Number of training rounds", ge=0, le=MANY)
    epochs: int = key(2, "recipe", "Local epochs per round", ge=0, le=10**6)
    max_steps: int | None = key(None, "recipe", "Upper limit of local steps per round", ge=1, le=MANY)
    batch: int = key(20, "recipe", "Batch size of local training", ge=1, le=MANY)
    last_batch: Literal["keep", "drop", "join"] = key(
        "keep", "recipe", "What happens to an epoch's short last batch: keep it, drop it, or join it to the one before"
    )
    accumulate: int = key(1, "machine", "Number of pieces into which each batch is split to save memory; the gradient "
                          "is that of the whole batch, and one more forward pass is needed", ge=1, le=MANY)  # fmt: skip
    optimiser: str = key("sgd", "recipe", "Local optimiser: sgd or adamw, with settings such as adamw:beta1=0.8")
    lr: float = key(0.05, "recipe", "Local learning rate of the first round", gt=0, le=LARGE)
    lr_schedule: str | list[Factor] | dict[Annotated[int, Field(ge=0)], Factor] = key(
        "exponential", "recipe", "How the local learning rate changes over the rounds: constant, exponential, cosine, "
        "linear, steps(100,200;0.1), warmup(5)+cosine; or a list of factors, one per round; or a table of rounds "
        "with the factor from each round on"
    )  # fmt: skip
    local_schedule: str = key("constant", "recipe", "How the learning rate changes over the local steps of each round: "
                              "constant, linear(0.1) or cosine(0.1), ending at that share of the rate")  # fmt: skip
    lr_decay: float = key(0.99, "recipe", "Factor per round of the exponential schedule", gt=0, le=1)
    momentum: float = key(0.0, "recipe", "Momentum of local SGD, reset every round", ge=0, lt=1)
    weight_decay: float = key(1e-4, "recipe", "Weight decay of the local optimiser", ge=0, le=LARGE)
    clip: float | None = key(
        None, "recipe", "Largest norm of a local gradient, to which longer ones are scaled down", gt=0, le=LARGE
    )
    weighting: Literal["samples", "uniform"] = key(
        "samples", "recipe", "How clients' models are weighted in the mean: by number of samples, or uniformly"
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
        None, "recipe", "What depends on the seed: everything random (all), including the partition and the clients' "
        "schedule unless they have their own seeds, or everything except these two (model) (default: all in "
        "comparisons and sweeps, model in a single run)"
    )  # fmt: skip
    device: str = key("auto", "machine", "Device: cpu, cuda, cuda:1, mps or auto")
    dtype: Literal["float32", "float64"] = key("float32", "recipe", "Floating-point type of the computation")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = key(
        "auto", "recipe", "Precision of matrix products (auto: tf32 on a GPU unless the algorithm is sensitive, else "
        "fp32)"
    )  # fmt: skip
    compile: bool = key(True, "machine", "On a GPU, compile the local step and capture it as CUDA graphs")
    compile_cache: str | None = key(
        None, "machine", "File written by steppe warm, so that a run starts without compiling; it contains code: use "
        "only your own (default: $STEPPE_COMPILE_CACHE)"
    )  # fmt: skip
    executor: Literal["auto", "sequential", "batched"] = key(
        "auto", "machine", "How a round's clients are trained: one after the other (sequential), all at once "
        "(batched), or whichever suits the device (auto: batched on a GPU)"
    )  # fmt: skip
    workers: Annotated[int, Field(ge=0, le=1024)] | Literal["auto"] = key(
        "auto",
        "machine",
        "Number of worker processes of the sequential executor; 0 trains in the main process, auto chooses",
    )
    chunk: int | None = key(
        None, "machine", "Number of clients that the batched executor trains at once (default: all)", ge=1, le=MANY
    )
    buffers: Literal["average", "local", "recalibrate", "refuse"] = key(
        "average", "recipe", "What happens to the running statistics of batch norm"
    )
    store: Literal["auto", "memory", "disk"] = key(
        "auto", "machine", "Where client states are kept (auto: on disk if they do not fit into memory)"
    )
    memory: float | None = key(
        None, "machine", "GiB allowed for client states and a round's vectors (default: the free memory)", gt=0,
        le=LARGE
    )  # fmt: skip
    reduction: Literal["sum", "ordered"] = key(
        "sum", "machine", "How ranks add up replies: as partial sums (sum), or in the order of the clients, to the "
        "exact bits of one process (ordered)"
    )  # fmt: skip
    nonfinite: Literal["stop", "drop"] = key(
        "stop", "recipe", "What to do with an update that is not finite or is refused: stop the run, or drop the update"
    )
    refuse_above: float | None = key(None, "recipe", "Norm above which an upload is refused", gt=0)
    judged_on: Literal["test", "validation"] = key(
        "test", "evaluation", "Samples on which the model is evaluated: those of the test set or, with validation, the "
        "held-out training samples; the test set is then not used"
    )  # fmt: skip
    running_mean: float | None = key(
        None, "evaluation", "Also evaluate a running mean of the global models that keeps this share of its old value "
        "per round, such as 0.9; training does not depend on it", ge=0, lt=1
    )  # fmt: skip
    evaluate_every: int = key(1, "evaluation", "Number of rounds between evaluations", ge=1, le=MANY)
    measure: list[str] = key(
        [], "evaluation", "Measures during training, such as lambda1:10 for every tenth round (steppe list measures)",
        max_length=100
    )  # fmt: skip
    track: list[str] = key([], "tracking", "Trackers that follow the run: tensorboard, wandb, mlflow", max_length=10)
    checkpoint_every: int = key(10, "machine", "Number of rounds between checkpoints", ge=1, le=MANY)
    early_stopping: int | None = key(
        None, "recipe", "Evaluations without improvement on the validation data after which training stops", ge=1,
        le=MANY
    )  # fmt: skip
    early_stopping_by: str = key("loss", "recipe", "What early stopping goes by: loss, or the name of a metric")

    @field_validator("*", mode="before")
    @classmethod
    def refuse_what_is_no_value(cls, value: Any, info: Any) -> Any:
        """Refuse what pydantic would read as 0, 1 or text, and text that no file name can contain."""
        if isinstance(value, bool | bytes) and info.field_name != "compile":
            raise SettingError(f"{info.field_name} is {quote(value)}, which is not a valid value; `steppe list keys "
                               f"{info.field_name}` shows the valid ones", info.field_name)  # fmt: skip
        if isinstance(value, str) and "\0" in value:
            raise SettingError(f"{info.field_name} is {quote(value)}, which contains a null character", info.field_name)
        return value

    @field_validator("augmentation", mode="before")
    @classmethod
    def read_none(cls, value: Any) -> Any:
        """Take `none`, which a command line reads as no value, for the name of the augmentation that does nothing."""
        return "none" if value is None else value

    @field_validator("metrics", "measure", "track", mode="before")
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
        return self._derive_stream("partition") if self.partition_seed is None else self.partition_seed

    @property
    def sampling_stream(self) -> int | None:
        """Return the seed of the clients' schedule; None: the papers' schedule."""
        return self._derive_stream("schedule") if self.sampling_seed is None else self.sampling_seed

    def _derive_stream(self, purpose: str) -> int | None:
        """Return a seed that follows from the run's. Seed 0 has the papers' streams, so that it is the usual run."""
        if self.vary != "all" or self.seed == 0:
            return None
        digest = hashlib.sha256(f"{purpose} of seed {self.seed}".encode()).digest()
        return int.from_bytes(digest[:4], "little") >> 1

    @property
    def hash(self) -> str:
        """Return eight digits that name this configuration."""
        content = self.model_dump(mode="json", exclude=list_keys("tracking"))
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

    >>> sorted(list_keys("seed", "tracking"))
    ['seed', 'track']
    """
    return {name for name, field in Config.model_fields.items() if field.json_schema_extra["role"] in roles}  # type: ignore


def parse_local_schedule(text: str) -> tuple[str, float] | None:
    """Return the shape of a schedule over local steps and the share at its end; None if the rate is constant.

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
    """Refuse a name that is not a kind of device; whether this machine has one is checked later."""
    if not DEVICES.fullmatch(name):
        raise SettingError(f"device is {quote(name)}, but must be cpu, cuda, cuda:1, mps or auto", "device")


def resolve(values: dict[str, Any], source: str = "the settings") -> Config:
    """Check a configuration, whose values override the recipe's; errors name the key and the source."""
    with tell_where(dict.fromkeys(values, source) if source else {}):
        values = rename_old(values)
        for name in values:
            find_key(name, ())
        usual = USUAL_FOR.get(take_text(values.get("data")), {})
        usual = usual | USUAL_FOR.get(take_text(values.get("model", usual.get("model"))), {})
        recipe = usual | RECIPES.get(take_text(values.get("recipe")), {})
        added = values.get("add")
        for text in added if isinstance(added, list) else []:
            recipe = {**recipe, **IMPLIED.get(take_text(text).partition(":")[0], {})}
        merged = {**recipe, **values}
        clients, usual = merged.get("clients"), merged.get("per_round", Config.model_fields["per_round"].default)
        if "per_round" not in values and isinstance(clients, int) and 0 < clients < usual:
            merged["per_round"] = clients  # nobody asked for more
        try:
            config = Config(**merged)
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
    if "did you mean" not in known:
        settings = ", ".join(sorted(own)) or "none"
        known = f": the algorithm's own settings are {settings}, and `steppe list keys` has the rest"
    raise SettingError(f"there is no key {quote(name)}{known}", bare)
