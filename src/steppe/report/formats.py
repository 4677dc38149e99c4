"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def format_bytes(count: float) -> str:
    """
    >>> format_bytes(12), format_bytes(1536), format_bytes(8_600_000), format_bytes(3 * 2**40)
    ('12 B', '1.5 KiB', '8.2 MiB', '3.0 TiB')
    """
    scale = min((max(int(count), 1).bit_length() - 1) // 10, 4)
    return f"{count / 1024**scale:.1f} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][scale]}" if scale else f"{count:.0f} B"


def format_count(count: float | None) -> str:
    """
    >>> format_count(12_345), format_count(3_250_000), format_count(None)
    ('12,345', '3.25 million', '–')
    """
    if count is None:
        return "–"
    return f"{count / 1e6:,.2f} million" if count >= 1e6 else f"{count:,.0f}"


def pluralize(count: int, what: str) -> str:
    """
    >>> pluralize(1, "round"), pluralize(30, "round")
    ('1 round', '30 rounds')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def capitalize(text: str) -> str:
    """Return the text with a capital first letter, unless that is a symbol such as λ.

    >>> capitalize("mean of L"), capitalize("λ1: eigenvalues")
    ('Mean of L', 'λ1: eigenvalues')
    """
    return (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:]


def count_evaluations(summary: Mapping[str, Any]) -> int:
    """Return after how many rounds a run was evaluated; earlier versions did not record it."""
    return int(summary.get("evaluations", summary["rounds"]))


def name_tail(evaluations: Iterable[int]) -> str:
    """Name what `mean_of_last_ten` covers in runs with these numbers of evaluations: all of them, if they are fewer.

    >>> name_tail([30, 12]), name_tail([4, 4]), name_tail([30, 4])
    ('last ten', 'last 4', 'last ten or fewer')
    """
    counts = {min(count, 10) for count in evaluations}
    return "last ten" if counts == {10} else f"last {counts.pop()}" if len(counts) == 1 else "last ten or fewer"
