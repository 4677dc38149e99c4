"""The operator's settings: the run, the shape of the data, deadlines. One TOML file, checked before the start.

Only the server reads it; every message to a node contains the settings that the node needs.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from steppe.config import LARGE, MANY, Config, resolve
from steppe.core.algorithm import Algorithm
from steppe.core.cost import Cost
from steppe.core.errors import SteppeError, quote
from steppe.engine.build import build_algorithm
from steppe.parts.differential_privacy import find_privacy
from steppe.read_config import parse_option, read_config_file
from steppe.references import explain_failure
from steppe.registry import find_foreign, list_catalogue_settings
from steppe.settings import explain

FILE = "federation.toml"
LARGEST_SAMPLE = 10**8
Mean = Annotated[float, Field(ge=-LARGE, le=LARGE)]
Std = Annotated[float, Field(ge=1 / LARGE, le=LARGE)]
Shape = Annotated[list[Annotated[int, Field(ge=1, le=LARGEST_SAMPLE, strict=True)]], Field(max_length=8)]


class Input(BaseModel):
    """The form of one of several inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: Shape
    inputs: Literal["uint8", "float32", "int64", "bool"] = "int64"


class Sample(BaseModel):
    """The form of one sample, which is the server's only description of the nodes' data."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    shape: Shape | None = Field(None, description="shape of one input: [channels, height, width] for images")
    inputs: Literal["uint8", "float32", "int64"] = Field("uint8", description="uint8 for images, whose range is 0..255")
    named: dict[str, Input] | None = Field(
        None, min_length=1, description="several inputs instead of one, by the names of the model's arguments"
    )
    classes: int | None = Field(
        None, ge=1, le=10**6, description="number of classes, with labels from 0; none for regression"
    )
    columns: list[str] | None = Field(
        None, min_length=1, description="columns of a table that are inputs, in the order that all nodes use"
    )
    tokens: int | None = Field(None, ge=1, le=10**7, description="number of different tokens, for sequences")
    class_names: list[str] | None = Field(None, description="class names by label, for folders of images")
    targets: Literal["int64", "float32"] = Field("int64", description="int64 for labels, float32 for regression")
    target_shape: Shape = Field([], description="shape of one target; [] for a label or a single number")
    mean: list[Mean] = Field([], description="mean of each channel, in units of 0..1, shared by all nodes")
    std: list[Std] = Field([], description="standard deviation of each channel")

    @model_validator(mode="after")
    def check_consistent(self) -> Sample:
        if self.class_names is not None and self.classes != len(self.class_names):
            raise ValueError(f"there are {len(self.class_names)} class_names, but classes is {self.classes}")
        if self.class_names is not None and len(set(self.class_names)) != len(self.class_names):
            raise ValueError("one of the class_names occurs twice")
        if self.classes is not None and (self.target_shape or self.targets != "int64"):
            raise ValueError(
                "classes are for one label per sample: leave them out for sequences, images and regression"
            )
        if len(self.mean) != len(self.std):
            raise ValueError("mean and std need one number per channel")
        if (self.shape is None) == (self.named is None):
            raise ValueError("[data] needs either shape, for one input, or a table named, for several")
        if "y" in (self.named or {}):
            raise ValueError("an input cannot be named y, which are the targets")
        shapes = {key or "shape": one.shape for key, one in self.list_inputs().items()}
        for key, shape in {**shapes, "target_shape": self.target_shape}.items():
            if math.prod(shape) > LARGEST_SAMPLE:
                raise ValueError(f"{key} is {shape}, but a sample may have at most {LARGEST_SAMPLE:,} numbers")
        if any(one.inputs == "uint8" for one in self.list_inputs().values()) and not self.mean:
            raise ValueError("images need mean and std, because all nodes must normalise in the same way")
        return self

    def list_inputs(self) -> dict[str, Input]:
        """Return the inputs by their names; a single one has none, which is ""."""
        return self.named or {"": Input(shape=self.shape or [], inputs=self.inputs)}


class Own(BaseModel):
    """The user's Python, as "module:name": in the app's folder, or installed on every machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(None, description="function without arguments that returns an nn.Module")
    parts: str | None = Field(None, description="function without arguments that returns one or several parts")
    loss: str | None = Field(None, description="loss: (outputs, targets) -> one value per sample")
    metric: str | list[str] | None = Field(
        None, description="metric of the same form as the loss, or a steppe.Metric; one or several"
    )
    predict: str | None = Field(None, description="function of the model's outputs that returns the predictions")
    head: str | None = Field(None, description="name of the module that is the head")
    loads: list[str] = Field([], description='your own code that [run] names, as "module:name"; nodes load only this')


class FederationFile(BaseModel):
    """The federation's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(
        "federation", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name under which nodes keep state"
    )
    run: dict[str, Any] = Field({}, description="keys of `steppe run`: algorithm, settings, rounds, clients, …")
    data: Sample | None = Field(None, description="the nodes' data; without this, run.data names a known data set")
    test: str | None = Field(None, description="test data on the server: an .npz with x and y, or module:function")
    own: Own = Own.model_validate({})
    out: str = Field("run", description="folder of the records, relative to the SuperLink's working directory")
    enough: int | None = Field(
        None, ge=1, description="number of nodes to wait for before the first round (default: all clients)"
    )
    wait: float = Field(300.0, gt=0, le=LARGE, description="seconds to wait for nodes before giving up")
    deadline: float = Field(600.0, gt=0, le=LARGE, description="seconds per round; later replies are dropped")
    least: int = Field(
        1, ge=1, le=MANY, description="smallest number of good replies per round; with fewer, the round is repeated"
    )
    max_samples: int = Field(
        1_000_000, ge=1, lt=2**53, description="largest sample count that a node may report; it sets its weight"
    )
    refusals: int = Field(3, ge=1, le=MANY, description="number of refused replies after which a client is left out")
    leave_out: int = Field(
        10, ge=0, le=MANY, description="number of rounds for which a client with too many refused replies is left out"
    )
    lost_state: Literal["refuse", "fresh"] = Field(
        "refuse", description="if a node has lost a client's state: stop using the client, or let it start afresh"
    )

    @field_validator("out")
    @classmethod
    def check_apart(cls, out: str) -> str:
        """Refuse a name that is not a folder, and a folder that Flower ships to the nodes or that holds keys."""
        if "\0" in out or Path(out).parts[:1] in ((), ("app",), ("operator",), ("nodes",)):
            raise ValueError(f"it is {quote(out)}, but must be a folder of its own, not one of the federation's")
        return out

    def config(self, sets: Sequence[str] = ()) -> Config:
        """Return the run's configuration with a command line's settings; refuse keys that need the nodes' data here."""
        values = dict(self.run)
        for text in sets:
            key, value = parse_option(text, list_catalogue_settings(str(values.get("algorithm", "fedavg"))))
            if key.startswith("settings."):
                values["settings"] = {**values.get("settings", {}), key.removeprefix("settings."): value}
            else:
                values[key] = value
        config = resolve(values, "[run]")
        for key, value, default in (("validation", config.validation, 0.0), ("measure", config.measure, []),
                                    ("early_stopping", config.early_stopping, None)):  # fmt: skip
            if value != default:
                raise SteppeError(f"[run]: {key} needs training data on the server, but the data stay with "
                                  "their owners: leave it out.")  # fmt: skip
        if config.dropout or config.speed or config.deadline:
            raise SteppeError("[run]: dropout, speed and deadline simulate failures, which are real in a federation: "
                              "leave them out; federation.toml has its own deadline.")  # fmt: skip
        if config.buffers in ("local", "recalibrate"):
            raise SteppeError(f"[run]: buffers = {config.buffers} measures batch norm's statistics on training data, "
                              "which stay on the nodes: use average, or a model with group norm.")  # fmt: skip
        if self.own.parts is None and not find_foreign(config.algorithm, config.add):  # loaded where it runs
            check_secret(build_algorithm(config))
        if self.enough is not None and self.enough > config.clients:
            raise SteppeError(f"enough is {self.enough}, but there are only {config.clients} clients.")
        # Every round writes a checkpoint, because real nodes are too slow to repeat ten; bad replies do not stop a run.
        return config.model_copy(update={"checkpoint_every": 1, "personal": [], "nonfinite": "drop"} | self._name_own())

    def _name_own(self) -> dict[str, Any]:
        """Return what the records show in place of built-in names that are not used."""
        mine: dict[str, Any] = (
            {} if self.data is None else {"data": f"nodes of {self.name}", "partition": "at the nodes"}
        )
        return mine | ({"model": self.own.model} if self.own.model else {}) | (
            {"algorithm": self.own.parts, "settings": {}} if self.own.parts else {}
        )  # fmt: skip


def read_federation_file(folder: Path, sets: Sequence[str] = ()) -> tuple[FederationFile, Config]:
    """Read federation.toml in a folder, and its configuration."""
    path = folder / FILE
    if not path.exists():
        raise SteppeError(
            f"{folder} is not a federation's folder: it has no {FILE}. Create one with steppe federate init."
        )
    content = read_config_file(path)
    try:
        settings = parse(content)
        return settings, settings.config(sets)
    except SteppeError as error:
        raise SteppeError(f"{path}: {error}") from None


def parse(content: dict[str, Any]) -> FederationFile:
    try:
        return FederationFile.model_validate(content)
    except ValidationError as error:
        raise explain(error, FederationFile) from None


def check_secret(algorithm: Algorithm) -> None:
    """Refuse noise that follows from the seed, because every node knows the seed."""
    dp = find_privacy(algorithm.parts)
    if dp is not None and dp.noise and dp.secret is None:
        raise SteppeError("dp without a secret derives its noise from the seed, which every node knows: give it a "
                          'secret, for example add = ["dp:secret=operator/dp.secret"].')  # fmt: skip


def find_named(name: str, what: str) -> Any:
    """Import the object "module:name"."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise SteppeError(f'{what} is {name!r}, but must be written as "module:name".')
    try:
        thing = importlib.import_module(module)
        for word in attribute.split("."):
            thing = getattr(thing, word)
    except (ImportError, AttributeError) as error:
        raise SteppeError(f"{what} {name!r} cannot be found: {error}.") from error
    except Exception as error:  # the user's file may raise anything
        raise SteppeError(f"{explain_failure(f'{what} {name!r} cannot be loaded', error)}.") from error
    return thing


def call_named(name: str | None, what: str) -> Any:
    """Call the function "module:name"; return None if no name is given."""
    if name is None:
        return None
    function: Callable[[], Any] = find_named(name, what)
    try:
        return function()
    except SteppeError:
        raise
    except Exception as error:
        raise SteppeError(f"{explain_failure(f'{what} {name!r} fails', error)}.") from error


class Terms(NamedTuple):
    """The settings that a node receives; they do not name code to import."""

    name: str
    lost_state: str
    config: Config
    sample: Sample
    cost: Cost  # because tracing it takes a second in a new process


def write_terms(terms: Terms) -> str:
    """Write the terms as JSON."""
    told = {"config": terms.config.model_dump(mode="json"), "sample": terms.sample.model_dump()}
    return json.dumps({"name": terms.name, "lost_state": terms.lost_state, "cost": asdict(terms.cost), **told})


def read_terms(text: str) -> Terms:
    told = json.loads(text)
    checked = FederationFile.model_validate({k: told[k] for k in ("name", "lost_state")})
    config, sample = Config.model_validate(told["config"]), Sample.model_validate(told["sample"])
    return Terms(checked.name, checked.lost_state, config, sample, Cost(**told["cost"]))
