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
    from steppe.core.part import Oracle, Part, Scope, unit
    from steppe.data import Data, from_arrays, from_dataset
    from steppe.engine.trackers import Tracker

_HOMES = {
    "run": "steppe.api", "analyze": "steppe.api", "load": "steppe.api", "Algorithm": "steppe.core.algorithm",
    "Part": "steppe.core.part", "Scope": "steppe.core.part", "Oracle": "steppe.core.part", "unit": "steppe.core.part",
    "Data": "steppe.data", "from_arrays": "steppe.data", "from_dataset": "steppe.data",
    "SteppeError": "steppe.core.errors", "Tracker": "steppe.engine.trackers",
}  # fmt: skip
__all__ = ["Algorithm", "Data", "Oracle", "Part", "Scope", "SteppeError", "Tracker", "analyze", "from_arrays",
           "from_dataset", "load", "run", "unit"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'steppe' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
