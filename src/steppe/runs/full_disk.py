"""Report a full disk in a sentence that names the place; the run can be resumed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from steppe.core.errors import RunFailed

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # no space, no quota, no larger file allowed


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


@contextmanager
def explain_full_disk(where: object) -> Iterator[None]:
    """Turn the error of a full disk, wherever it comes from, into a sentence; `where` if the error names no file."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise RunFailed(f"The disk is full ({error.filename or where}): free some space, then resume the run from its "
                        "last checkpoint.") from error  # fmt: skip
