"""Files of a federation are for their owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private() -> Iterator[None]:
    """Make what is written meanwhile readable by its owner only: folders 0700, files 0600."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
