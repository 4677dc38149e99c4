"""Write a phrase of a docstring or of a table as a sentence."""

from __future__ import annotations

import re

WORD = re.compile(r"(?:a|[a-z][a-z'’-]+)[,;:.]?(?=\s|$)")  # not a symbol (w, d_i, ε) and not code (unit(g), `rho`)


def capitalise(text: str) -> str:
    """Return the text with a capital first letter, unless it starts with a symbol or code, which would change.

    >>> [capitalise(t) for t in ("a norm", "own rate", "d_i is its own", "ε of unit(g)", "x, y and mask", "w -> d")]
    ['A norm', 'Own rate', 'd_i is its own', 'ε of unit(g)', 'x, y and mask', 'w -> d']
    """
    return text[:1].upper() + text[1:] if WORD.match(text) else text
