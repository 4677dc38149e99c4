"""Experiments in Python: `compare`, `sweep`, `cost`, `trace` and others, with names or with the caller's objects.

Runs use the same queue as the command line. With a folder, the same call reuses finished runs and continues
interrupted ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from steppe.api import Run, take_objects
from steppe.config import Config, find_key
from steppe.core.algorithm import Algorithm
from steppe.core.errors import RunFailed, SettingError, SteppeError, quote
from steppe.core.metric import Each
from steppe.core.part import Part
from steppe.data import Partition, as_data, load
from steppe.data.divide import divide
from steppe.engine.build import build_algorithm, name_what_is_own
from steppe.engine.caller_state import keep_caller_state
from steppe.engine.objectives import choose_given, split_objectives, take_objectives
from steppe.engine.quadratics import read_problem, trace_algorithm
from steppe.engine.read_call import Added, Asked, Call, read_call, say_options
from steppe.engine.traced_costs import CostTracer
from steppe.jobs.many_runs import make_points, run_all
from steppe.jobs.points import Point
from steppe.jobs.search import Search, parse_range
from steppe.models.model_argument import UNSET
from steppe.registry import list_catalogue_settings, list_settings, name_part
from steppe.report.formats import pluralize
from steppe.report.result_objects import ComparedRuns, Costs, ManyRuns, SweptRuns, Trace
from steppe.report.write import write
from steppe.runs.folder import check_place
from steppe.runs.provenance import describe_part, describe_value
from steppe.settings import split_algorithm, tell_where

Several = Sequence[Asked] | Mapping[str, Asked]  # algorithms; a dictionary gives them names


@keep_caller_state()
def compare(algorithms: Several, model: Any = UNSET, data: Any = None, *, seeds: int = 1,
            out: str | Path | None = None, jobs: int = 1, on: str | None = None, add: Added = (),
            loss: str | Each | None = None, metric: Any = None, metrics: Any = None, head: str | None = None,
            predict: Any = None, progress: bool = True, **options: Any) -> ComparedRuns:  # fmt: skip
    """Run several algorithms under one protocol, with paired seeds, and return their lines, tested against the first.

    The arguments that are not listed are those of `steppe.run`.

    algorithms  each as in `steppe.run`; a dictionary gives them your own names
    seeds       runs per algorithm: seed, seed + 1, …
    out         a folder for all runs; the same call continues there. Without it, a temporary one
    jobs        runs at a time, each in its own process; 1: in this process
    on          a Ray cluster to run on, ray://host:port, with as many jobs as fit; see `steppe compare --help`
    model       the class of a module is built for every seed, an instance starts each run with the same weights
    options     keys of the run, and settings, which go to the algorithms that have them
    """
    _check_counts(seeds=seeds, jobs=jobs)
    named = _name(algorithms)
    own = _take(model, data, loss, choose_given(metric, metrics), head, predict, options)
    points = []
    for label, algorithm, mine in _share(named, options):
        call = read_call(algorithm, add, mine)
        with_parts = [name_part(part) for part in ([add] if isinstance(add, str | Part) else add)]
        points.append(_make_point("+".join([label, *with_parts]), call, own, {}, mine))
    first = points[0].config
    labels = ", ".join(p.label for p in points)
    title = (f"{labels} on {first.data}, {first.partition}, {first.clients} clients, {first.per_round} per "
             f"round, {pluralize(first.rounds, 'round')}, {pluralize(seeds, 'seed')}")  # fmt: skip
    folder, holder = _find_folder(out)
    run_all(points, seeds, folder, jobs, on, not progress)
    found = ComparedRuns(points, seeds, folder, title, holder)
    _conclude(found)
    return found


@keep_caller_state()
def sweep(algorithm: Asked, grid: Mapping[str, Sequence[Any]] | None = None, model: Any = UNSET, data: Any = None, *,
          seeds: int = 1, search: int | None = None, ranges: Mapping[str, str] | None = None,
          out: str | Path | None = None, jobs: int | None = 1, on: str | None = None, add: Added = (),
          loss: str | Each | None = None, metric: Any = None, metrics: Any = None, head: str | None = None,
          predict: Any = None, progress: bool = True, **options: Any) -> SweptRuns:  # fmt: skip
    """Run every point of a grid, or of a search, over seeds, and return one line per point.

    The other arguments are those of `steppe.compare`.

    grid     the values of each key or setting: {"rho": [0.05, 0.1], "lr": [0.01, 0.1]}
    search   instead of the whole grid, this many points that Optuna suggests, by the validation metric
    ranges   what to search in addition to the grid's choices: {"rho": "0.01..1:log"}
    """
    _check_counts(seeds=seeds, jobs=jobs, search=search)
    for name, given, example in (("grid", grid, '{"rho": [0.1, 0.5]}'), ("ranges", ranges, '{"rho": "0.01..1:log"}')):
        if given is not None and not isinstance(given, Mapping):
            raise SettingError(f"{name} is {quote(given)}, but must be a dictionary, such as {example}")
    for key, values in (grid or {}).items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise SettingError(f"the values of {key} must be a list, such as [{quote(values)}]", key)
    choices = {key: list(values) for key, values in (grid or {}).items()}
    for key, several in choices.items():
        if key in Config.model_fields and (function := next(filter(callable, several), None)):
            raise SettingError(f"the values of {key} include {quote(function)}, which has no name to tell its runs "
                               "apart: give names, numbers or lists", key)  # fmt: skip
    spans = dict(parse_range(f"{key}={text}", f"ranges={quote({key: text})}") for key, text in (ranges or {}).items())
    if (not choices and not spans) or not all(choices.values()):
        raise SteppeError('sweep needs something to vary: {"rho": [0.1, 0.5]}, or search=20 and ranges={"rho": '
                          '"0.01..1:log"}.')  # fmt: skip
    if spans and search is None:
        raise SteppeError("ranges are for a search: give the number of points, such as search=20.")
    own = _take(model, data, loss, choose_given(metric, metrics), head, predict, options)

    for key, values in choices.items():
        _check_distinct(key, values)

    def point(values: dict[str, Any]) -> Point:
        shown = {key: _show(value) for key, value in values.items()}
        label = ",".join(f"{k}={v}" for k, v in shown.items())
        given = {**options, **values}
        parts = given.pop("add", add)
        return _make_point(label, read_call(algorithm, parts, given), own, shown, given)

    points = make_points(point, choices, spans)
    first = points[0].config
    if search is not None and not first.validation:
        raise SteppeError("A search chooses by the validation metric, never by the test set: set validation=0.1.")
    folder, holder = _find_folder(out)
    title = (f"{_label(algorithm)} on {first.data}, {first.partition}, {first.clients} clients, "
             f"{pluralize(first.rounds, 'round')}")  # fmt: skip
    searched = Search(spans, choices, search, point, first.seed, folder) if search else None
    points = run_all(points, seeds, folder, jobs, on, not progress, searched)
    found = SweptRuns(points, seeds, folder, title, holder)
    _conclude(found)
    return found


@keep_caller_state()
def cost(algorithms: Asked | Several, model: str | nn.Module | type[nn.Module] = "cnn", data: Any = None, *,
         shape: Sequence[int] = (3, 32, 32), classes: int = 10, batch: int = 50,
         example: Mapping[str, Any] | None = None, add: Added = (), loss: str | Each | None = None,
         predict: Any = None, **options: Any) -> Costs:  # fmt: skip
    """Trace what algorithms cost: vectors and bytes, gradients, forwards and FLOPs of one client's round.

    algorithms  one or several, as in `steppe.compare`
    model       a name, a module, or its class
    data        as in `steppe.run`: the model is given a batch of them
    shape       without data: the shape of one input
    classes     without data: the number of classes, for a built-in model
    batch       batch size of a step
    example     instead of data: a batch {"x": inputs, "y": targets}
    add         further parts
    loss        as in `steppe.run`
    predict     as in `steppe.run`
    options     settings, which go to the algorithms that have them
    """
    tracer = CostTracer(model, data, shape, classes, batch, example, loss, predict)
    named = _name([algorithms] if _is_one(algorithms) else algorithms)
    rows = []
    for label, algorithm, mine in _share(named, options):
        call = read_call(algorithm, add, mine)
        rows.append(tracer.trace(label, build_algorithm(call.config, call.algorithm, call.add)))
    what = model if isinstance(model, str) else type(tracer.task.learner).__name__
    return Costs(rows, f"one client's round; {what}, {tracer.task.layout.size:,} parameters")


def trace(algorithm: Asked, problem: str | Path | Mapping[str, Any], *, add: Added = (), **settings: Any) -> Trace:
    """Run an algorithm on a federation of quadratics, in float64, and return every state of every round.

    algorithm  as in `steppe.run`
    problem    the quadratics: a JSON file, or the same as a dictionary (examples/quadratics.json)
    add        further parts
    settings   settings of the algorithm
    """
    checked = read_problem(problem)
    for key in settings:
        if key in Config.model_fields:
            raise SettingError(f"{key} belongs to the problem here, like lr and momentum", key)
    recipe = {"momentum": checked.momentum, "weight_decay": checked.weight_decay, "clip": checked.clip}
    call = read_call(algorithm, add, {**settings, **recipe})
    return Trace(trace_algorithm(build_algorithm(call.config, call.algorithm, call.add), checked))


def partition(data: Any, rule: str = "lda(0.3)", clients: int = 20, seed: int | None = None) -> Partition:
    """Split training data over clients by a rule, as a run would; inspect, save or change it, or pass it to a run.

    data    as in `steppe.run`: a name, a Data, arrays, data sets
    rule    such as "lda(0.1)" (steppe list partitions)
    seed    default: the one of the rule's paper

        >>> split = partition("digits", "lda(0.1)", clients=5)
        >>> len(split.clients), int(split.sizes.sum())
        (5, 1437)
    """
    return divide(load(str(data)) if isinstance(data, str | Path) else as_data(data), rule, clients, seed)[1]


def write_report(runs: str | Path | Run | Sequence[str | Path | Run], path: str | Path = "report.html") -> Path:
    """Write a page about finished runs, as `steppe report` does, and return its path.

    runs  folders of runs or of comparisons, or what `steppe.load` returns; one or several
    path  the page; its suffix is .html, .md or .tex
    """
    several: list[Any] = list(runs) if isinstance(runs, list | tuple) else [runs]
    for one in several:
        if not isinstance(one, str | Path | Run):
            raise SteppeError(f"runs has {quote(one)}: give folders of runs, or what steppe.load returns.")
    return write([one.folder if isinstance(one, Run) else Path(one) for one in several], Path(path))[0]


def _take(model: Any, data: Any, loss: Any, metric: Any, head: str | None, predict: Any,
          options: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Return the caller's own objects; names go into the options."""
    own_loss, own_metric = split_objectives(loss, metric, options)
    own = take_objects(model, data, options)
    return {**own, "loss": own_loss, "metric": own_metric, "head": head, "predict": predict}


def _is_one(algorithms: Any) -> bool:
    """Return whether this is one algorithm: a tuple of parts is, a list is not."""
    parts = isinstance(algorithms, tuple) and all(isinstance(p, Part) for p in algorithms)
    return parts or not isinstance(algorithms, Sequence | Mapping) or isinstance(algorithms, str)


def _name(algorithms: Several) -> dict[str, Asked]:
    """Return every algorithm by its label; of two with one name, the settings are part of it."""
    if isinstance(algorithms, Mapping):
        named = dict(algorithms)
    elif isinstance(algorithms, str) or not isinstance(algorithms, Sequence):
        raise SteppeError(f'algorithms is {quote(algorithms)}: give several, such as ["fedavg", "fedsam"].')
    else:
        short = [_label(one) for one in algorithms]
        named = {}
        for one, label in zip(algorithms, short, strict=True):
            function = isinstance(one, FunctionType)  # its settings are not known, and its text has an address
            alone = short.count(label) == 1 or isinstance(one, str) or function
            label = label if alone else f"{label} {_format_settings(one)}"
            if label in named and not isinstance(one, str):
                raise SteppeError(f"Two algorithms are called {label!r}: give them names, "
                                  'as in {"mine": part, "other": part}.')  # fmt: skip
            named[label] = one
    if not named:
        raise SteppeError('algorithms is empty: give at least one, such as ["fedavg", "fedsam"].')
    return named


def _label(algorithm: Asked) -> str:
    if isinstance(algorithm, str):
        return algorithm
    if isinstance(algorithm, Algorithm):
        return algorithm.name
    if isinstance(algorithm, tuple | list | Part):
        parts = algorithm if isinstance(algorithm, tuple | list) else (algorithm,)
        return "+".join(str(getattr(p, "name", p)) for p in parts)
    return str(getattr(algorithm, "__name__", algorithm))


def _format_settings(algorithm: Asked) -> str:
    parts = algorithm.parts if isinstance(algorithm, Algorithm) else algorithm
    return "+".join(repr(p) for p in (parts if isinstance(parts, tuple | list) else (parts,)))


def _show(value: Any) -> Any:
    """Return a value of a grid as tables and names of folders show it: objects by what they are, not by an address."""
    if isinstance(value, Part):
        own = {k: v for k, v in describe_part(value).items() if k not in ("part", "type")}
        return f"{type(value).__name__}({', '.join(f'{k}={v}' for k, v in own.items())})"
    if isinstance(value, list | tuple):
        shown = map(_show, value)
        return tuple(shown) if isinstance(value, tuple) else list(shown)
    return describe_value(value)


def _check_distinct(key: str, values: list[Any]) -> None:
    """Refuse functions that nothing but their addresses tells apart: one of them would not be run."""
    named: dict[str, Any] = {}
    for value in values:
        if callable(value) and named.setdefault(text := str(_show(value)), value) is not value:
            raise SettingError(f"two values of {key} are called {text}: give each function a name of its own", key)


def _share(named: Mapping[str, Asked], options: dict[str, Any]) -> list[tuple[str, Asked, dict[str, Any]]]:
    """Return each algorithm with the run's keys and the settings that it has; refuse a setting that none has."""
    known = {label: _list_settings(algorithm) for label, algorithm in named.items()}
    every = {key for keys in known.values() for key in keys}
    for key in options:
        find_key(key, every)
    return [(label, algorithm, {k: v for k, v in options.items() if k in known[label] or k in Config.model_fields})
            for label, algorithm in named.items()]  # fmt: skip


def _list_settings(algorithm: Asked) -> set[str]:
    if isinstance(algorithm, str):
        return set(list_catalogue_settings(split_algorithm(algorithm)[0]))
    is_function = callable(algorithm) and not isinstance(algorithm, Part | Algorithm)  # the class of a part, too
    return set(list_settings(algorithm)) if is_function else set()


def _make_point(label: str, call: Call, own: Mapping[str, Any], settings: dict[str, Any],
                options: Mapping[str, Any]) -> Point:  # fmt: skip
    """Return a point with the caller's own objects, and their names in its configuration."""
    given = {**own, "algorithm": call.algorithm, "add": call.add or None}
    objects = {key: thing for key, thing in given.items() if thing is not None}
    config = name_what_is_own(call.config, call.algorithm, objects.get("model"), objects.get("data"), call.add,
                              objects.get("split"))  # fmt: skip
    config = take_objectives(config, objects.get("loss"), objects.get("metric"))[0]
    with tell_where(say_options(options)):  # a mistake is found before any run
        build_algorithm(call.config, call.algorithm, call.add, objects.get("optimiser"))
    return Point(label, config, settings, own=objects)


def _check_counts(**given: Any) -> None:
    """Refuse what is neither a whole number above 0 nor left out."""
    for name, count in given.items():
        if (count is not None or name == "seeds") and (
            not isinstance(count, Integral) or isinstance(count, bool) or count < 1
        ):
            raise SettingError(f"{name} is {quote(count)}, but must be a whole number, at least 1", name)


def _find_folder(out: str | Path | None) -> tuple[Path, Any]:
    if out is not None:
        check_place(out)
        return Path(out), None
    holder = tempfile.TemporaryDirectory(prefix="steppe-")
    return Path(holder.name) / "runs", holder


def _conclude(found: ManyRuns) -> None:
    """Write what the command line writes as well; refuse if none of the runs has finished."""
    found.write_summary()
    if not any(p.results for p in found.points):
        why = next(why for p in found.points for why in p.failed.values())
        raise RunFailed(f"Every run failed, the first because: {why}")
