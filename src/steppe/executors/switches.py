"""Which fast paths a GPU uses, one line each: after a measurement (`benchmarks/gpu_switches.py`), change the line.

A switch is read when a step or an evaluation is traced. What has been compiled stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass
class Switches:
    """True: in use. False: PyTorch's own way, because the fast path has not been measured yet or for a comparison."""

    client_conv: bool = True  # convolutions of all clients in one kernel (`client_conv.py`)
    fuse_pooling: bool = True  # bias, ReLU and pooling inside them (`fuse_pooling.py`)
    client_attention: bool = True  # PyTorch's fused attention, of all clients in one call (`client_attention.py`)
    client_norm: bool = False  # group norm, shortcut and ReLU in one kernel (`client_norm.py`, `fuse_norm.py`)
    captured_forward: bool = True  # an evaluation's forward pass as one CUDA graph (`captured_forward.py`)
    compiled_forward: bool = False  # and the rest of that pass compiled: less time per round, a later start


SWITCHES = Switches()


@contextmanager
def switched(**changes: bool) -> Iterator[Switches]:
    """Change switches inside a context.

    >>> with switched(client_norm=True): SWITCHES.client_norm
    True
    >>> SWITCHES.client_norm
    False
    """
    before = replace(SWITCHES)
    SWITCHES.__dict__ |= replace(SWITCHES, **changes).__dict__  # an unknown name is an error
    try:
        yield SWITCHES
    finally:
        SWITCHES.__dict__ |= before.__dict__
