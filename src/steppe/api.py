"""The library's main functions: `run`, `analyze` and `load`. The command line is a thin layer over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steppe import data as datasets
from steppe import models
from steppe.analysis import Analysis, Options
from steppe.config import OWN, Config
from steppe.core.errors import SettingError, SteppeError, quote
from steppe.core.metric import Each, Metric
from steppe.core.part import Part
from steppe.core.prediction import Predict
from steppe.data.divide import take_division
from steppe.distributed.torchrun import is_first, join, run_on_first
from steppe.engine.build import build_experiment
from steppe.engine.caller_state import keep_caller_state
from steppe.engine.objectives import choose_given, split_objectives
from steppe.engine.optimisers import take_optimiser
from steppe.engine.progress import Progress
from steppe.engine.read_call import Added, Asked, find_own, read_call, say_options
from steppe.engine.result import Result
from steppe.engine.rounds import Watch, simulate
from steppe.engine.trackers import Callback, Tracker
from steppe.measures.during_training import choose_measures
from steppe.models.model_argument import UNSET, check_buildable, take_model, take_module
from steppe.runs.folder import RunFolder, check_place, explain_damage
from steppe.runs.outcome import Outcome
from steppe.runs.trained_parameters import put_together
from steppe.settings import tell_where


@keep_caller_state()
def run(algorithm: Asked = "fedavg", model: str | nn.Module | type[nn.Module] = UNSET, data: Any = None, *,
        loss: str | Each | None = None, metric: Any = None, metrics: Any = None, head: str | None = None,
        predict: Predict | None = None, out: str | Path | None = None, resume: bool = False,
        watch: Watch | Sequence[Watch] | None = None, track: str | Sequence[str | Tracker] = (),
        add: Added = (), progress: bool = True,
        **options: Any) -> Result:  # fmt: skip
    """Train a federation and return its result.

    algorithm  a name from the catalogue, optionally with settings and parts ("fedsam:rho=0.1+man"), your own as
               "FILE.py:NAME" or "MODULE:NAME", your own part or parts (the local optimiser is added), the class of a
               part, a function that returns parts, or a complete Algorithm
    add        further parts: names with settings ("man:weight=0.1", "FILE.py:NAME") or your own objects
    model      a name, your own nn.Module, or its class, which is then built from the run's seed; parameters with
               requires_grad=False stay as they are
    predict    a function that returns the predictions from your model's outputs. Not needed for one tensor, for
               outputs with `logits` (an entry or an attribute), and for a tuple that begins with the predictions
    data       a name, a Data, arrays (x, y, test_x, test_y), two data sets, loaders or tables (train, test), a dict of
               splits, or steppe.from_clients([…])
    loss       "cross_entropy", "bce", "mse", "dice", or a function (outputs, targets) -> one value per sample
    metrics    one or several, the main one first: names ("accuracy", "perplexity", …), steppe.Metric objects,
               functions of the same form, or tuples such as ("error", f, "lower"); `metric` is the same
    head       the name of the module that is the classifier head (default: the last one with parameters)
    out        a folder for records, checkpoints and the model; without it, nothing is written
    resume     continue from the last checkpoint in that folder, if there is one
    watch      a function, or several, called with every round's record. One that raises is named and not called again;
               to stop the run, raise KeyboardInterrupt
    track      names (tensorboard, wandb, mlflow), or your own objects with begin, round and end (steppe.Tracker)
    progress   show rounds, time left and messages on standard error
    partition  a rule such as "lda(0.3)", a file, or the indices of each client's training samples
    groups     instead of a partition: the client of each training sample, any id
    by         what a label rule divides by instead of the labels: one value, id or text per training sample
    lr_schedule  a name such as "warmup(5)+cosine", factors of lr per round, or a function of the round
    optimiser  "sgd", "adamw", a part, a function (gradient, w, memory, k) -> direction, torch.optim.SGD or AdamW
    options    any key of the configuration (rounds, clients, lr, …) or setting of the algorithm (rho, …)
    """
    join()
    own = take_objects(model, data, options)
    track = [track] if isinstance(track, str) or not isinstance(track, Iterable) else list(track)
    own_loss, own_metrics = split_objectives(loss, choose_given(metric, metrics), options)
    options["track"] = [t for t in track if isinstance(t, str)]
    own_trackers = [t for t in track if not isinstance(t, str)]
    for tracker in own_trackers:
        if isinstance(tracker, type) or not all(hasattr(tracker, name) for name in ("begin", "round", "end")):
            raise SettingError(f"track: {quote(tracker)} is neither the name of a tracker nor an object with begin, "
                               "round and end (an instance of a steppe.Tracker)")  # fmt: skip
    several: Any = watch if isinstance(watch, Iterable) and not isinstance(watch, str) else [watch]
    watchers = [Callback(one) for one in several if one is not None]
    call = read_call(algorithm, add, options)
    config = call.config
    if out is not None:
        check_place(out)
    if run_on_first(lambda: out is not None and not resume and RunFolder(out).exists):
        raise SteppeError(f"{out} already holds a run: choose another folder, or continue it with resume=True.")
    with tell_where(say_options({**options, "add": add})):
        if isinstance(own["model"], type):  # a class is built from the run's seed, as `compare` does
            torch.manual_seed(config.seed)
            own["model"] = take_module(own["model"])
        built = build_experiment(config, call.algorithm, loss=own_loss, metric=own_metrics, head=head, add=call.add,
                                 predict=predict, **own)  # fmt: skip
        with Progress(config.rounds, not (progress and is_first()), built.task.metric) as shown:
            shown.begin(built.algorithm.name)
            return simulate(built, out, resume, shown.round, [*watchers, *own_trackers])


def take_objects(model: Any, data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the caller's own model, data and partition for `build_experiment`; their names go into the options."""
    own_model = isinstance(model, type) and issubclass(model, nn.Module)  # built later, where its seed is known
    if own_model:
        check_buildable(model)
    chosen_model = model if own_model else take_model(model)
    data = str(data) if isinstance(data, Path) else data
    own_data = None if data is None or isinstance(data, str) else datasets.as_data(data)
    own_data, split = take_division(own_data, data if isinstance(data, str) else "digits", options)
    options |= {k: v for k, v in (("model", chosen_model), ("data", data)) if isinstance(v, str)}
    usual = Config.model_fields["data"].default
    if own_data is not None and not isinstance(data, str) and own_data.name == usual:
        options["data"] = usual if own_data.hash == datasets.load(usual).hash else f"{OWN}{usual}"
    found = {"model": chosen_model, "data": own_data, "split": split, "optimiser": take_optimiser(options)}
    return {key: None if isinstance(thing, str) else thing for key, thing in found.items()}


@keep_caller_state()
def analyze(path: str | Path, measures: str | Sequence[str] = "usual", *, algorithm: Any = None,
            add: Part | Sequence[str | Part] = (), model: nn.Module | type[nn.Module] | None = None, data: Any = None,
            loss: str | Each | None = None, metric: Any = None, metrics: Any = None, head: str | None = None,
            predict: Predict | None = None, optimiser: Any = None,
            samples: int = 5000, seed: int = 0, clients: int | None = None, client: int | None = None, points: int = 21,
            device: str | None = None, **settings: Any) -> dict[str, Any]:  # fmt: skip
    """Measure a finished run as `steppe analyze` does, store the results in its folder, and return {measure: result}.

    If the run used your own parts, module, data, loss or metrics, pass them again, as to `steppe.run`. For a
    federation's run, whose training data are on its nodes, pass data to measure on.

    path      the run's folder
    measures  names of measures, or groups of them (usual, hessian, clients, numbers)
    samples   largest number of training examples to measure on
    seed      of the sample, probes and directions
    clients   number of clients in the extra round (default: those of the run's next round)
    client    measure this client's loss instead of the global one
    points    points per side of a landscape
    device    where to measure (default: the run's device)
    settings  of an algorithm that is your own function, as they were given to `steppe.run`
    """
    given = None
    if algorithm is not None and not isinstance(algorithm, str):
        given, settings = find_own(algorithm, settings)
    if settings:
        raise SteppeError(f"analyze has no argument {next(iter(settings))}; settings are for an algorithm that is "
                          "your own function; a run's other settings are in its folder.")  # fmt: skip
    own = {"algorithm": given, "model": None if model is None else take_module(model),
           "data": _take_data(data), "loss": loss,
           "metric": choose_given(metric, metrics), "head": head, "predict": predict,
           "optimiser": None if isinstance(optimiser, str) else optimiser,  # a name is in the folder
           "add": [part for part in ([add] if isinstance(add, Part) else add) if isinstance(part, Part)]}  # fmt: skip
    names = choose_measures([measures] if isinstance(measures, str) else measures)
    one = Analysis(Path(path), Options(samples, seed, clients, client, points, device), own)
    found: dict[str, Any] = one.measure(names)["measures"]
    return found


def _take_data(given: Any) -> Any:
    """Return data by name or as an object; None if there are none."""
    if given is None:
        return None
    return datasets.load(str(given)) if isinstance(given, str | Path) else datasets.as_data(given)


@dataclass(repr=False)
class Run(Outcome):
    """A run read back from its folder."""

    folder: Path  # the run's folder
    config: dict[str, Any]  # as in config.json
    about: dict[str, Any]  # as in about.json
    history: list[dict[str, Any]]  # one record per round, as in rounds.jsonl
    summary: dict[str, Any] | None  # as in result.json; None if the run has not finished
    module: nn.Module | None = None  # the trained module; None: not finished, or the user's own and not passed

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm."""
        return str(self.about.get("algorithm", self.config["algorithm"]))

    @property
    def metric(self) -> Metric:
        """Return the main metric, by which the model was evaluated."""
        return RunFolder(self.folder).metric

    @property
    def other_metrics(self) -> Sequence[Metric]:
        """Return the further metrics, after the main one."""
        return RunFolder(self.folder).metrics[1:]

    @property
    def judged_on(self) -> str:
        """Return which samples the model was evaluated on."""
        return str(self.config.get("judged_on", "test"))

    @property
    def model(self) -> nn.Module:
        """Return the trained module, ready to predict."""
        if self.module is None:
            if self.summary is not None:
                raise SteppeError("This run trained a module of your own, and its code is not in the folder: call "
                                  f"steppe.load({str(self.folder)!r}, model=YourModule()).")  # fmt: skip
            raise RunFolder(self.folder).make_unfinished_error()
        return self.module

    def state_dict(self) -> dict[str, Tensor]:
        """Return the trained model's state dict."""
        frozen = "base" in (self.about.get("model") or {})
        return self.model.state_dict() if frozen else RunFolder(self.folder).read_model_state()

    def example(self) -> Any:
        """Return inputs of the recorded shape; None if the model is the user's own."""
        shape = (self.about.get("model") or {}).get("shape")
        return None if shape is None else torch.zeros(2, *shape, dtype=getattr(torch, self.config["dtype"]))


@keep_caller_state()
def load(path: str | Path, model: nn.Module | type[nn.Module] | None = None) -> Run:
    """Load a run's records and its trained module, ready to predict.

    A run has records, but no module, if it has not finished, or if it trained your own module and you do not pass it.

    path   the run's folder
    model  a new instance of your own nn.Module, if the run trained one; its weights are replaced. What was frozen is
           not in the folder: pass a module with the same base (for an adapter of peft, the base alone is enough)
    """
    folder = RunFolder(path)
    with explain_damage(folder):
        config, summary, where = folder.read("config.json"), folder.summary, folder.path
        run = Run(where, config, folder.about, folder.history, summary)
        if summary is not None:
            if model is None and (about := folder.named_model) is not None:
                model = models.build(about["name"], about["classes"], tuple(about["shape"]))
            if model is not None:
                dtype = getattr(torch, config["dtype"])
                run.module = put_together(take_module(model), folder.read_model_state(), folder.about, dtype, where)
    return run
