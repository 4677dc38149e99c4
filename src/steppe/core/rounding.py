"""A number with its uncertainty, as people read it."""

from __future__ import annotations

from math import floor, isfinite, log10

Number = tuple[float, float | None]  # a value and, where it has one, its uncertainty


def format_number(number: Number | None) -> str:
    """Return a value, rounded to what its uncertainty allows, and the uncertainty with the same decimals.

    >>> format_number((18.16279, 2.897)), format_number((1.8652, 0.0144)), format_number((0.00012345, None))
    ('18 ± 3', '1.865 ± 0.014', '0.000123')
    >>> format_number((22.485731, 0.000081)), format_number((11.073, 4e-9)), format_number((2.5e-9, 1e-10))
    ('22.486 ± <0.001', '11.073 ± <0.001', '(2.50 ± 0.10)e-09')
    >>> format_number((1234.5, None)), format_number(None)
    ('1234', '–')
    """
    if number is None:
        return "–"
    value, error = number
    if error is None or error <= 0 or not isfinite(value + error):
        return _round(value, 3)
    size = floor(log10(max(abs(value), error)))
    digits = 2 if f"{error:.0e}"[0] == "1" else 1  # of the error: rounding 0.14 to 0.1 would say too little
    decimals = digits - 1 - floor(log10(float(f"{error:.{digits - 1}e}")))
    hidden = abs(value) > 1e5 * error  # five digits are enough to read
    decimals = 4 - size if hidden else decimals
    if decimals > 6 or size > 5:
        return f"({format_number((value / 10.0**size, error / 10.0**size))})e{size:+03d}"
    shown, unit = max(decimals, 0), f"{10.0**-decimals:.{max(decimals, 0)}f}"
    rounded = round(value, decimals) + 0.0  # no minus before a zero
    return f"{rounded:.{shown}f} ± {f'<{unit}' if hidden else f'{round(error, decimals):.{shown}f}'}"


def _round(value: float, digits: int) -> str:
    if value and isfinite(value) and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    whole = floor(log10(abs(value))) + 1 if value and isfinite(value) else 1
    return f"{value:.{max(digits - whole, 0)}f}"
