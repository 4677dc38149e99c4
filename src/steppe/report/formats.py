"""Numbers as people read them."""

from __future__ import annotations

from math import floor, isfinite, log10

Number = tuple[float, float | None]  # a value and, where it has one, its uncertainty


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
    """Return the text with a capital first letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def format_number(number: Number | None) -> str:
    """Return a value, rounded to what its uncertainty allows.

    >>> format_number((18.16279, 2.897)), format_number((1.8652, 0.0144)), format_number((0.00012345, None))
    ('18 ± 3', '1.865 ± 0.014', '0.000123')
    >>> format_number((22.485731, 0.000081)), format_number((1.0972345, 1.2e-6)), format_number((2.5e-9, 1e-10))
    ('22.486 ± 8e-05', '1.0972 ± 1e-06', '2.50e-09 ± 1e-10')
    >>> format_number((1234.5, None)), format_number(None)
    ('1234', '–')
    """
    if number is None:
        return "–"
    value, error = number
    if error is None or not isfinite(error) or error <= 0:
        return _round(value, 3)
    digits = 2 if f"{error:.0e}"[0] == "1" else 1  # of the error: rounding 0.14 to 0.1 would say too little
    decimals = digits - 1 - floor(log10(float(f"{error:.{digits - 1}e}")))
    if abs(value) > 1e5 * error and 1e-4 <= abs(value) < 1e6:  # five digits are enough to read
        return f"{_round(value, 5)} ± {error:.0e}"
    if not -4 <= decimals <= 6:
        return f"{value:.2e} ± {error:.0e}"
    rounded = round(value, decimals) + 0.0  # no minus before a zero
    return f"{rounded:.{max(decimals, 0)}f} ± {round(error, decimals):.{max(decimals, 0)}f}"


def _round(value: float, digits: int) -> str:
    if value and isfinite(value) and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    whole = floor(log10(abs(value))) + 1 if value and isfinite(value) else 1
    return f"{value:.{max(digits - whole, 0)}f}"
