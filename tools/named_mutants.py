"""Faults that once went unnoticed: (what is wrong, file below src/steppe, text as it is, text as it must not be)."""

NAMED: list[tuple[str, str, str, str]] = []
