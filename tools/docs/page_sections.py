"""Sections that the pages of methods and of parts share: equations, settings, deviations, how to cite."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin

from tools.docs.docstrings import Document, Row
from tools.docs.mathematics import translate, typeset
from tools.docs.tables import make_table, say_type

from steppe.core.part import Part
from steppe.core.ranges import Range, read_hints
from steppe.evaluate.personal import is_personal
from steppe.parts.sgd import SGD
from steppe.registry import assemble, list_settings
from steppe.report.listing import format_value

RULE, ORACLE = "D", "g"  # what a part returns, and what it wraps
REQUIRED = inspect.Parameter.empty
TERM = re.compile(r"(without )?`(\w+)`(?: (\w+))?")
CONDITION = re.compile(r"((?:(?:^|, | or )(?:without )?`\w+`(?: (?!or )\w+)?)+): ?")


def equations(rows: Sequence[Row], names: Mapping[str, str] | None = None) -> str:
    """Return rows of equations, each with its remark next to it or, in a narrow window, below it."""
    named = {"direction": f"{RULE}(w)", "penalty": "R(w)"} | dict(names or {})
    lines = []
    for row in rows:
        latex = r",\qquad ".join(translate(e, named) for e in row.equations)
        remark = f"\n\n{typeset(row.remark)}" if row.remark else ""
        lines.append(rf'<div class="equation" markdown>{chr(10)}\(\displaystyle {latex}\){remark}{chr(10)}</div>')
    return "\n\n".join(lines)


def choose_rows(rows: Sequence[Row], part: Part) -> list[Row]:
    """Return the rows that hold for a part as it is set: a remark may begin with a condition.

    `norm`: …                one of a setting's choices is set         `along` mean: …    a setting has this value
    `gain`, without `jump`: …    both hold                             `plain` or `outside`: …    one of them holds
    """
    found = []
    for row in rows:
        condition = CONDITION.match(row.remark)
        if condition is None:
            found.append(row)
        elif all(any(_holds(one, part) for one in each.split(" or ")) for each in condition[1].split(", ")):
            found.append(Row(row.equations, row.remark[condition.end() :]))
    return found


def _holds(term: str, part: Part) -> bool:
    absent, name, value = TERM.fullmatch(term).groups()  # type: ignore[union-attr]
    hints = read_hints(type(part))
    if name in hints:
        found = getattr(part, name) == value if value else bool(getattr(part, name))
    else:
        (key,) = (k for k, hint in hints.items() if get_origin(hint) is Literal and name in get_args(hint))
        found = getattr(part, key) == name
    return found != bool(absent)


def is_in_steps(document: Document) -> bool:
    """Return whether a part's equations define a new oracle."""
    return any(e.startswith("direction") for row in document.rows for e in row.equations)


def name_oracles(documents: Sequence[Document]) -> list[dict[str, str]]:
    """Return for each part, innermost first, the names of the oracle that it wraps and of the one that it makes.

    The first is g, the last D; those between are numbered. So the rows of several parts read as one algorithm.
    """
    inside = [k for k, d in enumerate(documents) if is_in_steps(d)]
    found, oracle, number = [], ORACLE, 0
    for k in range(len(documents)):
        made = oracle
        if k in inside:
            number += 1
            made = RULE if k == inside[-1] else f"{ORACLE}_{{{number}}}"
        found.append({"g": oracle, "direction": f"{made}(w)"})
        oracle = made
    return found


def settings(thing: Any, meanings: Mapping[str, str], sources: Mapping[str, str]) -> str:
    """Return the table of settings: type, default and range from the signature, the rest from docstrings."""
    found = list_settings(thing)
    if not found:
        return "It has no settings."
    hints = read_hints(thing)
    lines = [[f"`{key}`", show_default(value), say_values(hints.get(key, Any)), typeset(meanings[key]),
              typeset(sources.get(key, ""))] for key, value in found.items()]  # fmt: skip
    return make_table(["setting", "default", "values", "meaning", "default from"], lines)


def meanings_of(thing: Any, document: Document) -> dict[str, str]:
    """Return what a docstring says about settings; what it says about one of a setting's choices is added to it."""
    hints, found = read_hints(thing), {}
    for key in list_settings(thing):
        if key in document.items:
            choices = get_args(hints.get(key)) if get_origin(hints.get(key)) is Literal else ()
            own = [f"`{c}`: {document.items[c]}" for c in choices if c in document.items]
            found[key] = " ".join([document.items[key], *own])
    return found


def show_default(value: Any) -> str:
    """Return a default as the command line takes it."""
    if value is None:
        return "none"
    return (
        f"`{str(value).lower() if isinstance(value, bool) else value}`"
        if isinstance(value, str | int | float)
        else "required"
    )


def say_values(hint: Any) -> str:
    """Return what a setting may be, in words.

    >>> say_values(Annotated[float, Range(0, 1)] | None), say_values(Literal["a", "b"])
    ('0 to 1, or none', '`a`, `b`')
    """
    several = [hint] if get_origin(hint) in (Annotated, Literal) else get_args(hint) or (hint,)
    found = []
    for one in several:
        inside = get_args(one) if get_origin(one) is Annotated else ()
        limits = next((_say_range(r) for r in inside if isinstance(r, Range)), "")
        whole = "whole, " if inside and inside[0] is int else ""
        found.append(f"{whole}{limits}" if limits else say_type(one))
    return ", or ".join(found)


def _say_range(limits: Range) -> str:
    if limits.high == float("inf"):
        return f"at least {format_value(limits.low)}"
    return f"{format_value(limits.low)} to {format_value(limits.high)}" + (", exclusive" if limits.below else "")


def write_expression(part: Part) -> str:
    """Return a part as code, without the settings that have their defaults."""
    given = [f"{f.name}={_write(getattr(part, f.name))}" for f in fields(part)  # type: ignore[arg-type]
             if getattr(part, f.name) != f.default]  # fmt: skip
    return f"{type(part).__name__}({', '.join(given)})"


def write_addition(part: Part) -> str:
    """Return a part as `--add` takes it, with the settings without which it cannot be made."""
    needed = {k: getattr(part, k) for k, v in list_settings(type(part)).items() if v is REQUIRED}
    given = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in needed.items())
    return f"{part.name}:{given}" if given else part.name


def _write(value: Any) -> str:
    return write_expression(value) if isinstance(value, Part) else repr(value)


def choose_result(parts: Sequence[Part]) -> tuple[str, str]:
    """Return which number of a result to print, and why if it is not the global model's accuracy."""
    if not is_personal(assemble(tuple(parts), SGD(), (), "shown")):
        return "result.accuracy", ""
    return 'result.summary["personal"]', (
        "The result of interest is each client's own model: mean and deviation over clients, by epochs of fine-tuning. "
        "`result.accuracy` is the global model's.\n\n"
    )


def cite(command: str, bibtex: str) -> str:
    return f"`{command}` prints it.\n\n```bibtex\n{bibtex}\n```"
