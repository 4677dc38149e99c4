"""Names to things: building an algorithm from its name, settings and further parts, with errors that help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from steppe.algorithms import CATALOGUE, Parts
from steppe.core.algorithm import Algorithm, CompositionError
from steppe.core.errors import SteppeError, nearest
from steppe.core.part import Part, SettingError
from steppe.parts.activation_norm import ActivationNorm
from steppe.parts.client_momentum import ClientMomentum
from steppe.parts.consistent_sam import ConsistentSAM
from steppe.parts.contrast import Contrast
from steppe.parts.control_variates import ControlVariates
from steppe.parts.differential_privacy import DifferentialPrivacy
from steppe.parts.distillation import Distillation
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.ema import EMA
from steppe.parts.geometric_bias import GeometricBias
from steppe.parts.global_ascent import GlobalAscent
from steppe.parts.latest_mean import LatestMean
from steppe.parts.locally_estimated_sam import LocallyEstimatedSAM
from steppe.parts.mixed_ascent import MixedAscent
from steppe.parts.momentum_sam import MomentumSAM
from steppe.parts.nesterov import NesterovSAM, NesterovStart
from steppe.parts.norm_bound import NormBound
from steppe.parts.proximal import Proximal
from steppe.parts.rate_cycle import RateCycle
from steppe.parts.relaxed_start import RelaxedStart
from steppe.parts.robust import Krum, Median, TrimmedMean
from steppe.parts.sam import ASAM, SAM
from steppe.parts.server_optimisers import ServerAdaptive, ServerMomentum
from steppe.parts.swa import SWA
from steppe.parts.trajectory_teacher import TrajectoryTeacher


def make(name: str, optimiser: Part, settings: dict[str, Any] | None = None, add: Parts = ()) -> Algorithm:
    """A catalogue entry with its settings, further parts inside or around it, and the local optimiser around all."""
    if name not in CATALOGUE:
        raise SteppeError(f"there is no algorithm {name!r}{nearest(name, CATALOGUE)}")
    parts = configured(CATALOGUE[name], f"algorithm {name!r}", settings or {})
    return assembled(parts, optimiser, add, name)


def assembled(parts: Parts, optimiser: Part, add: Parts, name: str) -> Algorithm:
    """Every part in its place: see `Part.outer` and `Part.around_optimiser`."""
    together = (*(p for p in add if not p.outer), *parts, *(p for p in add if p.outer))
    inside = [p for p in together if not p.around_optimiser]
    around = [p for p in together if p.around_optimiser]
    label = "+".join([name, *(p.name for p in add)])
    try:
        return Algorithm((*inside, optimiser, *around), label)
    except CompositionError as error:
        raise SteppeError(f"{label}: {error}") from error


def configured(function: Callable[..., Any], what: str, settings: dict[str, Any]) -> Any:
    """Call `function` with settings of the right names and types, or say which one is wrong."""
    hints, defaults = get_type_hints(function), settings_of(function)
    checked = {}
    for key, value in settings.items():
        if key not in defaults:
            raise SteppeError(f"{what} has no setting {key!r}{nearest(key, defaults)}")
        checked[key] = _cast(what, key, value, hints[key])
    try:
        return function(**checked)
    except SettingError as error:
        raise SteppeError(f"{what}: {error}") from error


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a catalogue entry or a part with their defaults, in order."""
    return {k: p.default for k, p in inspect.signature(function).parameters.items()}


def catalogue_settings(name: str) -> dict[str, Any]:
    """The settings of an algorithm by name; none for an unknown one, which is refused later."""
    return settings_of(CATALOGUE[name]) if name in CATALOGUE else {}


def _cast(what: str, key: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        value = "none" if value is None and "none" in get_args(hint) else value  # how `--set` reads none
        if value not in get_args(hint):
            raise SteppeError(f"{key} of {what} is {value!r}{nearest(str(value), get_args(hint))}")
        return value
    kinds = [k for k in (get_args(hint) or (hint,)) if k is not type(None)]
    if value is None and len(get_args(hint)) > len(kinds):
        return None
    for kind in kinds:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    expected = " or ".join({"float": "a number", "int": "a whole number", "str": "text"}.get(k.__name__, k.__name__)
                           for k in kinds)  # fmt: skip
    raise SteppeError(f"{key} of {what} must be {expected}, not {value!r}")


def _swa(start: float = 0.75, cycle: int = 10, rounds: int | None = None) -> Part:
    """Stochastic weight averaging on the server: judge a mean of late global models."""
    return SWA(start, cycle, rounds)


# What can be added to any algorithm. A part's `outer` says where it goes: closest to the loss (False), or around the
# algorithm's own parts (corrections of a finished direction, server rules); always inside the local optimiser.
PARTS: dict[str, Callable[..., Part]] = {
    "asam": ASAM,
    "client_momentum": ClientMomentum,
    "consistent_sam": ConsistentSAM,
    "contrast": Contrast,
    "control_variates": ControlVariates,
    "distillation": Distillation,
    "dp": DifferentialPrivacy,
    "dynamic_regularisation": DynamicRegularisation,
    "ema": EMA,
    "geometric_bias": GeometricBias,
    "global_ascent": GlobalAscent,
    "krum": Krum,
    "latest_mean": LatestMean,
    "locally_estimated_sam": LocallyEstimatedSAM,
    "man": ActivationNorm,
    "median": Median,
    "mixed_ascent": MixedAscent,
    "momentum_sam": MomentumSAM,
    "nesterov_sam": NesterovSAM,
    "nesterov_start": NesterovStart,
    "norm_bound": NormBound,
    "proximal": Proximal,
    "rate_cycle": RateCycle,
    "relaxed_start": RelaxedStart,
    "sam": SAM,
    "server_adaptive": ServerAdaptive,
    "server_momentum": ServerMomentum,
    "swa": _swa,
    "trajectory_teacher": TrajectoryTeacher,
    "trimmed_mean": TrimmedMean,
}


def parse_addition(text: str) -> Part:
    """A part from its name and settings.

    >>> parse_addition("ema"), parse_addition("sam:rho=0.05,eps=1e-7")
    (EMA(keep=0.99), SAM(rho=0.05, eps=1e-07, mix=1.0, ramp=0))
    """
    name, _, rest = text.partition(":")
    if name not in PARTS:
        raise SteppeError(f"there is no part {name!r} to add{nearest(name, PARTS)}")
    settings = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise SteppeError(f"{item!r} in {text!r} is not a setting: write name=value, with commas between several")
        settings[key.strip()] = _value(value.strip())
    missing = [k for k, v in settings_of(PARTS[name]).items() if v is inspect.Parameter.empty and k not in settings]
    if missing:
        raise SteppeError(f"part {name!r} needs a value for {missing[0]}: write {name}:{missing[0]}=…")
    part: Part = configured(PARTS[name], f"part {name!r}", settings)
    return part


def _value(text: str) -> Any:
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
