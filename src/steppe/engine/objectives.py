"""The loss and the metrics of a run: names of the configuration with their settings, or the user's own functions.

cross_entropy               a name
cross_entropy:axis=-1       a name with settings
f                           a function (outputs, targets) -> one value per sample, token or pixel
("error", f, "lower")       a metric with its name and direction, as steppe.Metric("error", f, lower=True)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from steppe.config import OWN, Config
from steppe.core.errors import SettingError, SteppeError, quote, suggest_name
from steppe.core.losses import LOSSES
from steppe.core.metric import Each, Metric
from steppe.core.named_metrics import METRICS, choose_usual_metric, make_metric
from steppe.runs.provenance import qualify_name
from steppe.settings import parse_named


def choose_given(metric: Any, metrics: Any) -> Any:
    """Return the metrics, which may be given as `metric` or `metrics`."""
    if metric is not None and metrics is not None:
        raise SettingError("metric and metrics are both given: put all of them into metrics, the main one first")
    return metrics if metric is None else metric


def split_objectives(loss: Any, metric: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Write names into the options of a run; return the user's own functions, which have none."""
    if isinstance(loss, str):
        options["loss"] = loss
    names = [metric] if isinstance(metric, str) else metric
    named = isinstance(names, list | tuple) and all(isinstance(m, str) for m in names)
    if named:
        options["metrics"] = metric if isinstance(metric, str) else list(metric)
    return None if isinstance(loss, str) else loss, None if named else metric


def take_objectives(config: Config, loss: Any, metric: Any) -> tuple[Config, Any, Any]:
    """Return loss and metrics as they were given or as the configuration names them, and write them into it."""
    loss = config.loss if loss is None else loss
    metrics = config.metrics if metric is None else as_list(metric)

    def named(thing: Any) -> str:
        return thing if isinstance(thing, str) else f"{OWN}{getattr(thing, 'name', None) or qualify_name(thing)}"

    names = {"loss": None if loss is None else named(loss),
             "metrics": [named(m[1] if isinstance(m, tuple) else m) for m in metrics]}  # fmt: skip
    return config.model_copy(update=names), loss, metrics


def check_early_stopping(config: Config, metrics: Sequence[Metric]) -> None:
    """Refuse to stop by a metric that the run does not have."""
    known = ["loss", *(m.name for m in metrics)]
    if config.early_stopping_by not in known:
        raise SettingError(f"early_stopping_by is {quote(config.early_stopping_by)}, but this run has no such metric"
                           f"{suggest_name(config.early_stopping_by, known)}", "early_stopping_by")  # fmt: skip


def read_loss(given: Any) -> Each:
    """Return the loss, one value per sample, token or pixel."""
    if isinstance(given, str):
        function, settings = _find(given, "loss", LOSSES)
        return partial(function, **settings) if settings else function
    if not callable(given) or isinstance(given, type):
        raise SettingError(f"loss is {quote(given)}, but must be a name or a function (outputs, targets) -> one value "
                           f"per sample{_suggest_instance(given)}", "loss")  # fmt: skip
    own: Each = given
    return own


def read_metrics(given: Any, loss: Each) -> tuple[tuple[Metric, ...], list[str]]:
    """Return the metrics, the main one first, and messages for the user."""
    if given is None or (isinstance(given, list | tuple) and not given):
        return (choose_usual_metric(loss),), []
    notes: list[str] = []
    found = tuple(_read_metric(one, loss, notes) for one in as_list(given))
    names = [m.name for m in found]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise SettingError(f"there are two metrics {quote(twice)}: rename one of them", "metrics")
    return found, notes


def as_list(given: Any) -> list[Any]:
    """Return several metrics as a list; a tuple ("name", f, "lower") is one."""
    if isinstance(given, Mapping):
        raise SettingError('metrics is a dictionary: give a list, such as [("error", f, "lower")]', "metrics")
    one = isinstance(given, str) or not isinstance(given, Iterable) or _is_triple(given)
    return [given] if one else list(given)


def _is_triple(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) in (2, 3) and isinstance(given[0], str) and callable(given[1]) \
        and not isinstance(given[1], Metric)  # fmt: skip


def _read_metric(given: Any, loss: Each, notes: list[str]) -> Metric:
    if isinstance(given, Metric):
        if given.each is None and given.tally is None and given.on_all is None:
            raise SettingError(f"the metric {given.name} has no function: give it one, as steppe.Metric("
                               f'"{given.name}", f)', "metrics")  # fmt: skip
        return given
    if isinstance(given, str):
        _, settings = _find(given, "metric", {name: m.each or m.tally or m.on_all for name, m in METRICS.items()})
        return make_metric(given.partition(":")[0].strip(), loss, **settings)
    if _is_triple(given):
        name, function, *rest = given
        if rest not in (["lower"], ["higher"], []):
            raise SettingError(f"the direction of the metric {name} is {quote(rest[0])}, but must be 'lower' or "
                               "'higher', whichever is better", "metrics")  # fmt: skip
        made = Metric(name, function, lower=rest == ["lower"])
        return made if rest else _note_guess(made, notes)
    if not callable(given) or isinstance(given, type):
        raise SettingError(f"a metric is {quote(given)}, but must be a name, a function (outputs, targets) -> one "
                           f"value per sample, or a steppe.Metric{_suggest_instance(given)}", "metrics")  # fmt: skip
    # A function that is the loss too is better when lower.
    made = Metric(given, lower=given is loss)
    return made if given is loss else _note_guess(made, notes)


def _note_guess(metric: Metric, notes: list[str]) -> Metric:
    notes.append(f"the metric {metric.name} is a function without a direction, so higher is taken to be better; if it "
                 f"is an error, write steppe.Metric({metric.name}, lower=True)")  # fmt: skip
    return metric


def _find(
    text: str, kind: str, known: Mapping[str, Callable[..., Any] | None]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function of a name with settings, and the settings."""
    if text.startswith(OWN):
        raise SteppeError(f"The {kind} of this run is your own function ({text.removeprefix(OWN)}), so it has no name: "
                          f"pass it again from Python, with {kind}=….")  # fmt: skip
    name, settings = parse_named(text)
    function = known.get(name)
    key = {"loss": "loss"}.get(kind, "metrics")
    if function is None:
        raise SettingError(f"there is no {kind} {quote(name)}{suggest_name(name, known)}", key)
    taken = [p.name for p in list(inspect.signature(function).parameters.values())[2:]]
    for setting, value in settings.items():
        if setting not in taken:
            has = suggest_name(setting, taken) if taken else "; it has none"
            raise SettingError(f"the {kind} {name} has no setting {setting!r}{has}", key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (setting != "smooth" and value != int(value))
        ):
            raise SettingError(f"{setting} of the {kind} {name} is {quote(value)}, but must be a number", key)
    return function, settings


def _suggest_instance(given: Any) -> str:
    return f"; give an instance, {given.__name__}()" if isinstance(given, type) else ""
