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
    from steppe.api import analyze, load, run
    from steppe.core.algorithm import Algorithm
    from steppe.core.errors import SteppeError
    from steppe.core.part import Part, unit
    from steppe.core.scopes import Aggregation, ClientRound, LocalStep, Oracle, ServerTurn
    from steppe.data import Data, from_arrays, from_dataset
    from steppe.engine.trackers import Tracker

_HOMES = {
    "run": "steppe.api", "analyze": "steppe.api", "load": "steppe.api", "Algorithm": "steppe.core.algorithm",
    "Part": "steppe.core.part", "unit": "steppe.core.part",
    **dict.fromkeys(("Aggregation", "ClientRound", "LocalStep", "Oracle", "ServerTurn"), "steppe.core.scopes"),
    "Data": "steppe.data", "from_arrays": "steppe.data", "from_dataset": "steppe.data",
    "SteppeError": "steppe.core.errors", "Tracker": "steppe.engine.trackers",
}  # fmt: skip
__all__ = ["Aggregation", "Algorithm", "ClientRound", "Data", "LocalStep", "Oracle", "Part", "ServerTurn",
           "SteppeError", "Tracker", "analyze", "from_arrays", "from_dataset", "load", "run", "unit"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'steppe' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
