"""What the operator lays down: the run, the shape of the data, deadlines. One TOML file, checked before a start.

The server reads it, and every message to a node carries what the node needs of it, so that there is one authority.
"""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from steppe.config import Config, assign, resolve
from steppe.core.algorithm import Algorithm
from steppe.core.cost import Cost
from steppe.core.errors import SteppeError
from steppe.engine.build import build_algorithm
from steppe.engine.privacy import find_privacy
from steppe.registry import catalogue_settings, find_foreign
from steppe.settings import explain

FILE = "federation.toml"


class Sample(BaseModel):
    """One sample, describe_data: all that the server knows of the data on the nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: list[int] = Field(description="of one input: [channels, height, width] for images")
    inputs: Literal["uint8", "float32", "int64"] = Field("uint8", description="uint8 for images, whose range is 0..255")
    classes: int | None = Field(None, ge=1, description="labels are 0 to classes − 1; none for a regression")
    tokens: int | None = Field(None, ge=1, description="of sequences: how many different tokens there are")
    class_names: list[str] | None = Field(None, description="in the order of the labels; needed by folders of images")
    targets: Literal["int64", "float32"] = Field("int64", description="labels, or numbers of a regression")
    target_shape: list[int] = Field([], description="of one target; [] for a label or a single number")
    mean: list[float] = Field([], description="of each channel, in units of 0..1; nodes must not each use their own")
    std: list[float] = Field([], description="of each channel")

    @model_validator(mode="after")
    def consistent(self) -> Sample:
        if self.class_names is not None and self.classes != len(self.class_names):
            raise ValueError(f"{len(self.class_names)} class_names do not make {self.classes} classes")
        if len(self.mean) != len(self.std) or any(s <= 0 for s in self.std):
            raise ValueError("mean and std need one number a channel each, and std > 0")
        if self.inputs == "uint8" and not self.mean:
            raise ValueError("images need mean and std, because nodes must not normalise each by its own")
        return self


class Own(BaseModel):
    """The user's Python, as "module:name": in the app's folder, or installed on every machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(None, description="a function without arguments that gives an nn.Module")
    parts: str | None = Field(None, description="a function without arguments that gives a part or several")
    loss: str | None = Field(None, description="(outputs, targets) -> one value a sample")
    metric: str | list[str] | None = Field(None, description="the same, or a steppe.Metric; one or several")
    head: str | None = Field(None, description="the name of the module that is the head")
    loads: list[str] = Field([], description='what [run] names of your own, as "module:name"; nothing else is loaded')


class FederationFile(BaseModel):
    """The federation's terms."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(
        "federation", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="nodes keep state under it"
    )
    run: dict[str, Any] = Field({}, description="keys of `steppe run`: algorithm, settings, rounds, clients, …")
    data: Sample | None = Field(None, description="the nodes' data; without it, run.data names a known data set")
    test: str | None = Field(None, description="test data on the server: an .npz with x and y, or module:function")
    own: Own = Own.model_validate({})
    out: str = Field("run", description="the server's folder of records, in the SuperLink's working directory")
    enough: int | None = Field(
        None, ge=1, description="nodes to wait for before the first round (default: all clients)"
    )
    wait: float = Field(300.0, gt=0, description="seconds to wait for nodes before giving up")
    deadline: float = Field(600.0, gt=0, description="seconds a round may take; later replies are dropped")
    least: int = Field(1, ge=1, description="good replies without which a round fails")
    max_samples: int = Field(
        1_000_000, ge=1, lt=2**53, description="what a node may say that it has; its weight in the mean goes by it"
    )
    refusals: int = Field(3, ge=1, description="refused replies after which a client is left out")
    leave_out: int = Field(10, ge=0, description="rounds for which it then is")
    lost_state: Literal["refuse", "fresh"] = Field(
        "refuse", description="when a node lost a client's state: stop using the client, or let it start afresh"
    )

    def config(self, sets: Sequence[str] = ()) -> Config:
        """The run's configuration, with a command line's words on top; what needs the nodes' data here is refused."""
        values = dict(self.run)
        for text in sets:
            key, value = assign(text, catalogue_settings(str(values.get("algorithm", "fedavg"))))
            if key.startswith("settings."):
                values["settings"] = {**values.get("settings", {}), key.removeprefix("settings."): value}
            else:
                values[key] = value
        config = resolve(values, "[run]")
        for key, value, default in (("validation", config.validation, 0.0), ("measure", config.measure, []),
                                    ("early_stopping", config.early_stopping, None)):  # fmt: skip
            if value != default:
                raise SteppeError(f"[run]: {key} needs training data where the server is, and here they stay with "
                                  "their owners: leave it out.")  # fmt: skip
        if config.dropout or config.speed or config.deadline:
            raise SteppeError("[run]: dropout, speed and deadline are for simulated failures, and here they are real: "
                              "leave them out; federation.toml has a deadline of its own.")  # fmt: skip
        if config.buffers in ("local", "recalibrate"):
            raise SteppeError(f"[run]: buffers = {config.buffers} measures batch norm's statistics on training data, "
                              "which stay on the nodes: use average, or a model with group norm.")  # fmt: skip
        if self.own.parts is None and not find_foreign(config.algorithm, config.add):  # loaded where it runs
            check_secret(build_algorithm(config))
        if self.enough is not None and self.enough > config.clients:
            raise SteppeError(f"enough is {self.enough}, but there are only {config.clients} clients.")
        # Every round is a checkpoint, because real nodes are too slow to repeat ten; nobody's bad reply stops the rest.
        return config.model_copy(update={"checkpoint_every": 1, "personal": [], "nonfinite": "drop"} | self._named())

    def _named(self) -> dict[str, Any]:
        """Return what the records are to say where names of ours are not what is used."""
        mine: dict[str, Any] = (
            {} if self.data is None else {"data": f"nodes of {self.name}", "partition": "at the nodes"}
        )
        return mine | ({"model": self.own.model} if self.own.model else {}) | (
            {"algorithm": self.own.parts, "settings": {}} if self.own.parts else {}
        )  # fmt: skip


def read(folder: Path, sets: Sequence[str] = ()) -> tuple[FederationFile, Config]:
    """federation.toml in a folder, and its configuration."""
    path = folder / FILE
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SteppeError(
            f"{folder} is no federation: it has no {FILE}. Make one with: steppe federate init."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SteppeError(f"{path} is not valid TOML: {error}.") from None
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
    """Noise that follows from the seed protects nobody where every node is told the seed."""
    dp = find_privacy(algorithm)
    if dp is not None and dp.noise and dp.secret is None:
        raise SteppeError("dp without a secret makes its noise from the seed, which every node is told: give it one, "
                          'for example add = ["dp:secret=operator/dp.secret"].')  # fmt: skip


def find_named(name: str, what: str) -> Any:
    """Return the thing behind "module:name"."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise SteppeError(f'{what} is {name!r}, but must be written as "module:name".')
    try:
        thing = importlib.import_module(module)
        for word in attribute.split("."):
            thing = getattr(thing, word)
    except (ImportError, AttributeError) as error:
        raise SteppeError(f"{what} {name!r} cannot be found: {error}.") from error
    return thing


def call_named(name: str | None, what: str) -> Any:
    """Return what the function behind "module:name" gives; None where nothing is named."""
    if name is None:
        return None
    function: Callable[[], Any] = find_named(name, what)
    return function()


class Terms(NamedTuple):
    """What a node is told: names of its own code are not among it."""

    name: str
    lost_state: str
    config: Config
    sample: Sample
    cost: Cost  # because tracing it takes a new process a second


def write_terms(terms: Terms) -> str:
    """As JSON."""
    told = {"config": terms.config.model_dump(mode="json"), "sample": terms.sample.model_dump()}
    return json.dumps({"name": terms.name, "lost_state": terms.lost_state, "cost": asdict(terms.cost), **told})


def read_terms(text: str) -> Terms:
    told = json.loads(text)
    checked = FederationFile.model_validate({k: told[k] for k in ("name", "lost_state")})
    config, sample = Config.model_validate(told["config"]), Sample.model_validate(told["sample"])
    return Terms(checked.name, checked.lost_state, config, sample, Cost(**told["cost"]))
