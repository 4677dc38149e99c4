"""Files of a federation are readable by their owner only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def write_private() -> Iterator[None]:
    """Make everything written in this context readable by its owner only: folders 0700, files 0600."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
