"""The catalogue: one function a paper, each an expression over parts.

A function's arguments are the algorithm's settings with their defaults; its docstring is what `steppe list`
shows. Every public function here that returns `Parts` is in the catalogue. The local optimiser is not: it
belongs to the experiment's recipe, and is put around these parts by `make`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from steppe.core.algorithm import Algorithm
from steppe.core.part import Part
from steppe.errors import SteppeError, nearest
from steppe.parts.control_variates import ControlVariates
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.proximal import Proximal
from steppe.parts.sam import ASAM, SAM
from steppe.parts.server_optimisers import ServerAdaptive, ServerMomentum

Parts = tuple[Part, ...]


def fedavg(server_lr: float = 1.0) -> Parts:
    """FedAvg (McMahan et al., AISTATS 2017): average the clients' models."""
    return () if server_lr == 1.0 else (ServerMomentum(server_lr),)


def fedavgm(server_momentum: float = 0.9, server_lr: float = 1.0) -> Parts:
    """FedAvgM (Hsu et al., 2019): momentum on the server."""
    return (ServerMomentum(server_lr, server_momentum),)


def fedadam(server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float | None = None,
            variant: Literal["official", "paper"] = "official") -> Parts:  # fmt: skip
    """FedAdam (Reddi et al., ICLR 2021): Adam on the server."""
    return _adaptive("adam", server_lr, beta1, beta2, tau, variant)


def fedyogi(server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float | None = None,
            variant: Literal["official", "paper"] = "official") -> Parts:  # fmt: skip
    """FedYogi (Reddi et al., ICLR 2021): Yogi on the server."""
    return _adaptive("yogi", server_lr, beta1, beta2, tau, variant)


def fedadagrad(server_lr: float = 0.1, beta1: float = 0.0, beta2: float = 0.99, tau: float | None = None,
               variant: Literal["official", "paper"] = "official") -> Parts:  # fmt: skip
    """FedAdagrad (Reddi et al., ICLR 2021): Adagrad on the server."""
    return _adaptive("adagrad", server_lr, beta1, beta2, tau, variant)


def _adaptive(kind: str, lr: float, beta1: float, beta2: float, tau: float | None, variant: str) -> Parts:
    tau = (1e-3 if variant == "paper" else 1e-2) if tau is None else tau
    return (ServerAdaptive(kind, lr, beta1, beta2, tau, v0=tau**2 if variant == "paper" else 0.0),)


def fedprox(mu: float = 1.0) -> Parts:
    """FedProx (Li et al., MLSys 2020): a pull towards the global model."""
    return (Proximal(mu),)


def scaffold(divisor: Literal["effective", "steps"] = "effective") -> Parts:
    """SCAFFOLD (Karimireddy et al., ICML 2020): control variates against client drift."""
    return (ControlVariates(divisor),)


def feddyn(alpha: float = 0.1, variant: Literal["paper", "official", "norm"] = "paper") -> Parts:
    """FedDyn (Acar et al., ICLR 2021): a dual for each client makes local optima agree."""
    return (_dynamic(alpha, variant),)


def _dynamic(alpha: float, variant: str, over: str = "all") -> DynamicRegularisation:
    order = "official" if variant == "official" else "textbook"
    return DynamicRegularisation(alpha, over, "norm" if variant == "norm" else "square", order)


def fedsam(rho: float = 0.1, eps: float = 1e-12) -> Parts:
    """FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): local steps by SAM."""
    return (SAM(rho, eps),)


def fedasam(rho: float = 1.0, eta: float = 0.0, variant: Literal["official", "paper"] = "official") -> Parts:
    """FedASAM (Caldarola et al., ECCV 2022): local steps by adaptive SAM."""
    if variant == "paper":
        return (ASAM(rho, eta, on="weight", eps=1e-16),)
    return (ASAM(rho, eta),)


Entry = Callable[..., Parts]
CATALOGUE: dict[str, Entry] = {
    name: f
    for name, f in list(globals().items())
    if inspect.isfunction(f) and not name.startswith("_") and f.__annotations__.get("return") == "Parts"
}


def make(name: str, optimiser: Part, settings: dict[str, Any] | None = None, add: Parts = ()) -> Algorithm:
    """A catalogue entry with its settings, further parts closest to the loss, and the local optimiser around."""
    if name not in CATALOGUE:
        raise SteppeError(f"there is no algorithm {name!r}{nearest(name, CATALOGUE)}")
    parts = configured(CATALOGUE[name], f"algorithm {name!r}", settings or {})
    return Algorithm((*add, *parts, optimiser), "+".join([name, *(p.name for p in add)]))


def configured(function: Callable[..., Any], what: str, settings: dict[str, Any]) -> Any:
    """Call `function` with settings of the right names and types, or say which one is wrong."""
    hints, defaults = get_type_hints(function), settings_of(function)
    checked = {}
    for key, value in settings.items():
        if key not in defaults:
            raise SteppeError(f"{what} has no setting {key!r}{nearest(key, defaults)}")
        checked[key] = _cast(what, key, value, hints[key])
    return function(**checked)


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a catalogue entry or a part with their defaults, in order."""
    return {k: p.default for k, p in inspect.signature(function).parameters.items()}


def _cast(what: str, key: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal:
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
