"""The exceptions that a user is meant to read."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class SteppeError(Exception):
    """A problem the user can fix; its text is a full sentence that says what is wrong and what to do."""

    exit_code = 2


class SettingError(SteppeError, ValueError):
    """A setting has the wrong type, or is out of its range; the text names it and whose it is."""


class CompositionError(SteppeError, ValueError):
    """These parts make no sense together; the text says why and what to choose instead."""


class RunFailed(SteppeError):
    """The settings were valid, but the run broke down: it diverged, or lost a process."""

    exit_code = 3


def nearest(word: str, options: Iterable[str]) -> str:
    """What to append to a sentence about an unknown word.

    >>> nearest("ldaa", ["iid", "lda"])
    "; did you mean 'lda'? Known: iid, lda"
    >>> nearest("zzz", ["iid", "lda"])
    '; known: iid, lda'
    """
    known = sorted(options)
    close = get_close_matches(word, known, n=1)
    listed = ", ".join(known)
    return f"; did you mean {close[0]!r}? Known: {listed}" if close else f"; known: {listed}"


def missing(what: str, extra: str, otherwise: str = "") -> SteppeError:
    """What to raise where an optional package is not installed: what needs it, and the command that installs it.

    The command is for the Python that is running; the pip on the path may be another's.
    """
    python, found = Path(sys.executable), shutil.which("pip")
    short = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    pip = "pip" if found and Path(found).parent == python.parent else f"{shlex.quote(str(short))} -m pip"
    return SteppeError(f"{what}; install it with: {pip} install 'steppe[{extra}]'{otherwise}")
