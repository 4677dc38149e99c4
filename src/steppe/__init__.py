"""Flatness-aware federated learning.

    import steppe
    result = steppe.run("fedsam", rounds=20, rho=0.1)
    result.accuracy, result.model

Names are imported when they are first used, so that `steppe --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from steppe import data, flatness, optim, testing
    from steppe.api import Run, analyze, load, run
    from steppe.core.algorithm import Algorithm
    from steppe.core.errors import CompositionError, RunFailed, SettingError, SteppeError
    from steppe.core.metric import Metric
    from steppe.core.part import Part, unit
    from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle, ServerTurn
    from steppe.data import Data, Partition, from_arrays, from_clients, from_dataset
    from steppe.embed import client, server
    from steppe.engine.result import Result
    from steppe.engine.trackers import Tracker
    from steppe.lab import compare, cost, partition, sweep, trace, write_report
    from steppe.optim import optimiser

# The public names by the module that defines them.
_HOMES = {
    "api": ("Run", "analyze", "load", "run"),
    "core.algorithm": ("Algorithm",),
    "core.errors": ("CompositionError", "RunFailed", "SettingError", "SteppeError"),
    "core.metric": ("Metric",),
    "core.part": ("Part", "unit"),
    "core.scopes": ("Aggregation", "ClientRound", "LocalStep", "Oracle", "ServerTurn"),
    "embed": ("client", "server"),
    "lab": ("compare", "cost", "partition", "sweep", "trace", "write_report"),
    "optim": ("optimiser",),
    "data": ("Data", "Partition", "from_arrays", "from_clients", "from_dataset"),
    "engine.result": ("Result",),
    "engine.trackers": ("Tracker",),
}
_MODULES = ("data", "flatness", "optim", "testing")
__all__ = ["Aggregation", "Algorithm", "ClientRound", "CompositionError", "Data", "LocalStep", "Metric", "Oracle",
           "Part", "Partition", "Result", "Run", "RunFailed", "ServerTurn", "SettingError", "SteppeError", "Tracker",
           "analyze", "client", "compare", "cost", "data", "flatness", "from_arrays", "from_clients", "from_dataset",
           "load", "optim", "optimiser", "partition", "run", "server", "sweep", "testing", "trace", "unit",
           "write_report"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"steppe.{name}")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'steppe' has no attribute {name!r}")
    return getattr(import_module(f"steppe.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
