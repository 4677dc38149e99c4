"""Shakespeare's plays, next character: a client is a role, so the division among clients is natural.

The file has one speech per line, {"play", "role", "text"}, compressed with xz. Of each role, the first nine tenths of
the text are for training and the rest, at least one window, for testing. A window has 80 characters, and the target of
each is the next one. What is left at the end is dropped, and so is a role with less than two windows for training. The
package contains a slice of 30 roles; the whole file is read from the user's data folder.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np

from steppe.core.errors import SteppeError

LENGTH, TRAIN = 80, 0.9
ALPHABET = "\t\n !$&',-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz"
TOKENS = len(ALPHABET) + 1  # and one for any other character
SLICE = Path(__file__).with_name("shakespeare.jsonl.xz")


class Windows(NamedTuple):
    """Windows of tokens (n, 80) with the next tokens, and whose they are."""

    inputs: np.ndarray
    targets: np.ndarray
    clients: np.ndarray


def read(path: Path = SLICE) -> tuple[Windows, Windows, tuple[str, ...]]:
    """Read windows for training and for testing, and the clients' names."""
    roles: dict[str, list[str]] = {}
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                speech = json.loads(line)
                roles.setdefault(f"{speech['play']}: {speech['role']}", []).append(speech["text"])
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise SteppeError(f"{path} cannot be read ({error}); it needs lines with play, role and text.") from error
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    names = []
    for name, speeches in roles.items():
        tokens = encode("\n".join(speeches))
        border = max(min(int(TRAIN * len(tokens)), len(tokens) - LENGTH - 1), 0)  # one window for testing at least
        train, test = cut(tokens[:border]), cut(tokens[border:])
        if len(train) >= 2:
            names.append(name)
            for windows, found in zip(parts, (train, test), strict=True):
                windows.append(found)
    if not names:
        raise SteppeError(f"{path} has no role with enough text: at least {3 * LENGTH + 2} characters.")
    return (*map(_join, parts), tuple(names))  # type: ignore[return-value]


def encode(text: str) -> np.ndarray:
    """Return the characters' numbers.

    >>> encode("to be").tolist()
    [70, 65, 2, 52, 55]
    """
    place = {character: i for i, character in enumerate(ALPHABET)}
    return np.array([place.get(character, len(ALPHABET)) for character in text], np.int64)


def decode(tokens: np.ndarray) -> str:
    """Return the text of these numbers."""
    return "".join(f"{ALPHABET}\N{REPLACEMENT CHARACTER}"[i] for i in tokens)


def cut(tokens: np.ndarray) -> np.ndarray:
    """Return windows of 81 tokens, of which neighbours share one: (n, 81)."""
    count = max((len(tokens) - 1) // LENGTH, 0)
    found: np.ndarray = tokens[np.arange(count)[:, None] * LENGTH + np.arange(LENGTH + 1)]
    return found


def _join(windows: list[np.ndarray]) -> Windows:
    together = np.concatenate(windows)
    clients = np.repeat(np.arange(len(windows)), [len(w) for w in windows])
    return Windows(together[:, :-1], together[:, 1:], clients)
