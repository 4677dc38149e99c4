"""Exceptions whose text is written for the user."""

from __future__ import annotations

import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class SteppeError(Exception):
    """A problem that the user can fix; its text is a full sentence that says what is wrong and what to do.

    `keys` are the settings that it is about. The code that read them adds them in the user's notation.
    """

    exit_code = 2
    keys: tuple[str, ...] = ()


class SettingError(SteppeError, ValueError):
    """A setting has the wrong type or is out of range; the text names the setting and its owner."""

    def __init__(self, text: str, *keys: str) -> None:
        super().__init__(text)
        self.keys = keys


class CompositionError(SteppeError, ValueError):
    """These parts cannot be combined; the text says why and what to choose instead."""


class RunFailed(SteppeError):
    """The settings were valid, but the run broke down: it diverged, or lost a process."""

    exit_code = 3


def suggest_name(word: str, options: Iterable[str]) -> str:
    """Return an ending for a sentence about an unknown word. A long list appears only if nothing in it is close.

    >>> suggest_name("ldaa", ["iid", "lda"])
    "; did you mean 'lda'? Known: iid, lda"
    >>> suggest_name("zzz", ["iid", "lda"])
    '; known: iid, lda'
    """
    known = sorted(options)
    close = get_close_matches(word[:80], known)
    listed = ", ".join(known)
    if not close:
        return f"; known: {listed}"
    return f"; did you mean {' or '.join(map(repr, close))}?" + (f" Known: {listed}" if len(known) <= 20 else "")


def take_first_line(text: object) -> str:
    """Return the first line of an error or a docstring; empty if there is none."""
    return "" if text is None else str(text).strip().partition("\n")[0]


def show_codes(text: str, kept: str = "") -> str:
    r"""Replace control characters, which a terminal would obey, by their escapes.

    >>> print(show_codes("a\x1b[31m\n"))
    a\x1b[31m\n
    """
    return "".join(c if c in kept or unicodedata.category(c)[0] != "C" else ascii(c)[1:-1] for c in text)


def quote(value: Any) -> str:
    """Quote a value in a sentence: on one line, and shortened if it is long.

    >>> quote("lda"), quote(10**5000), quote([1] * 1000)[-9:]
    ("'lda'", 'a whole number of about 5000 digits', '1, 1, 1…]')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a whole number of about {value.bit_length() * 0.30103:.0f} digits"
    try:
        text = " ".join(line.strip() for line in repr(value).split("\n"))
    except (ValueError, RecursionError):  # Python refuses to print it: it is too long or nested too deeply
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 80 else f"{text[:77]}…{text[-1]}"


def make_missing_error(what: str, extra: str, otherwise: str = "") -> SteppeError:
    """Return an error for an optional package that is not installed, with the command that installs it.

    The command is for the running Python; `pip` on the path may belong to a different one.
    """
    python, found = Path(sys.executable), shutil.which("pip")
    short = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    pip = "pip" if found and Path(found).parent == python.parent else f"{shlex.quote(str(short))} -m pip"
    return SteppeError(f"{what}; install it with: {pip} install 'steppe[{extra}]'{otherwise}")
