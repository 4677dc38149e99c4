"""A griffe extension: the house's ways of documenting, as Google's, which mkdocstrings shows as lists.

- A comment behind a field of a class says what it is: `x: Tensor  # the global model`.
- Lines `name  what it is` in a docstring are the arguments of a function, or the fields of a class.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object

ENTRY = re.compile(r"^(\w+) {2,}(\S.*)$")
COMMENT = re.compile(r"\s#\s+(?!type:|noqa|fmt:)(\S.*?)(?:\s+# (?:type|noqa|fmt).*)?$")


class HouseStyle(Extension):
    """Read docstrings and comments in the style of this project."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Rewrite the docstrings of a whole package, when all base classes are known."""
        for thing in walk(pkg):
            if isinstance(thing, Function) and thing.docstring is not None:
                thing.docstring.value = rewrite(thing.docstring.value, "Args", {p.name for p in thing.parameters})
        for thing in list(walk(pkg)):
            if isinstance(thing, Class):
                describe_fields(thing)


def walk(thing: Object) -> Any:
    """Yield an object and all that is defined in it."""
    yield thing
    for member in thing.members.values():
        if not member.is_alias:
            yield from walk(member)  # type: ignore[arg-type]


def describe_fields(cls: Class) -> None:
    """List the fields of a class, its bases' first, with the words of its docstring or of the comment behind each."""
    fields: dict[str, str] = {}
    for one in [*reversed(cls.mro()), cls]:
        for name, member in one.members.items():
            if isinstance(member, Attribute) and is_field(member):
                found = COMMENT.search(member.source.rpartition("\n")[2])
                fields[name] = make_sentence(found[1]) if found else ""
    text = "" if cls.docstring is None else cls.docstring.value
    told = rewrite(text, "Attributes", set(fields))
    if told == text and any(fields.values()):
        told += "\n\nAttributes:\n" + "\n".join(f"    {name}: {words}" for name, words in fields.items())
    if told != text:
        cls.docstring = Docstring(told, parent=cls, lineno=cls.lineno)


def is_field(member: Attribute) -> bool:
    """Return whether this is an annotated name in the body of a class, not a property or what a method assigns."""
    return member.annotation is not None and "property" not in member.labels and not member.name.startswith("_") and (
        "class-attribute" in member.labels or "dataclass" in member.parent.labels)  # type: ignore[union-attr]  # fmt: skip


def make_sentence(text: str) -> str:
    """Write a comment as a sentence.

    >>> make_sentence("of this round")
    'Of this round.'
    """
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "…")) else ".")


def rewrite(text: str, section: str, names: set[str]) -> str:
    """Turn lines `name  what it is` with their continuations into a section.

    >>> print(rewrite("Train.\\n\\nlr     the rate,\\n       per step\\nclip   a norm", "Args", {"lr", "clip"}))
    Train.
    <BLANKLINE>
    Args:
        lr: The rate, per step.
        clip: A norm.
    """
    lines: list[str] = []
    last: tuple[str, str] | None = None

    def close() -> None:
        if last is not None:
            lines.append(f"    {last[0]}: {make_sentence(last[1])}")

    for line in text.splitlines():
        start = ENTRY.match(line)
        if start and (last is not None or start[1] in names):
            lines += [] if last is not None else [f"{section}:"]
            close()
            last = start[1], start[2]
        elif last is not None and line.startswith("  "):
            last = last[0], f"{last[1]} {line.strip()}"
        else:
            close()
            last = None
            lines.append(line)
    close()
    return "\n".join(lines)
