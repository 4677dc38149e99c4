"""A griffe extension: convert this project's docstring style to Google's, which mkdocstrings shows as lists.

- A comment after a field of a class describes it: `x: Tensor  # the global model`.
- Lines `name  what it is` in a docstring are the arguments of a function, or the fields of a class.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object
from tools.docs.sentences import capitalise

ENTRY = re.compile(r"^(\w+) {2,}(\S.*)$")
COMMENT = re.compile(r"\s#\s+(?!type:|noqa|fmt:)(\S.*?)(?:\s+# (?:type|noqa|fmt).*)?$")


class HouseStyle(Extension):
    """Read docstrings and comments in the style of this project."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Rewrite the docstrings of a whole package, when all base classes are known."""
        for thing in list(walk(pkg)):
            if isinstance(thing, Class):
                describe_fields(thing)
            elif isinstance(thing, Function) and thing.docstring is not None:
                thing.docstring.value = write_section(
                    "Args", *take_entries(thing.docstring.value, {p.name for p in thing.parameters})
                )
            elif isinstance(thing, Attribute) and thing.docstring is None and isinstance(thing.parent, Module):
                thing.docstring = find_comment(thing)
            if thing.docstring is not None:
                thing.docstring.value = fence_examples(thing.docstring.value)


def walk(thing: Object) -> Any:
    """Yield an object and all that is defined in it."""
    yield thing
    for member in thing.members.values():
        if not member.is_alias:
            yield from walk(member)  # type: ignore[arg-type]


def describe_fields(cls: Class) -> None:
    """List the fields of a class, its bases' first, as described in its docstring or in the comment after each."""
    fields: dict[str, str] = {}
    for one in [*reversed(cls.mro()), cls]:
        for name, member in one.members.items():
            if isinstance(member, Attribute) and is_field(member):
                found = COMMENT.search(member.source.rpartition("\n")[2])
                fields[name] = make_sentence(found[1]) if found else ""
    if cls.docstring is not None:
        text, told = take_entries(cls.docstring.value, set(fields))
        fields |= {name: words for name, words in told.items() if name in fields}
        cls.docstring.value = write_section("Attributes", text, fields if any(fields.values()) else {})


def is_field(member: Attribute) -> bool:
    """Return whether this is an annotated name in the body of a class, not a property or what a method assigns."""
    return not member.name.startswith("_") and member.source.lstrip().startswith(f"{member.name}:")


def find_comment(name: Attribute) -> Docstring | None:
    """Return the comment after a name of a module, or above it, as its docstring."""
    module = name.parent
    behind = COMMENT.search(name.source.rpartition("\n")[2])
    words = [behind[1]] if behind else []
    for line in [] if behind else reversed(module.source.splitlines()[: (name.lineno or 1) - 1]):  # type: ignore[union-attr]
        if not line.startswith("# "):
            break
        words.insert(0, line[2:].strip())
    same = module.docstring  # type: ignore[union-attr]
    style = {"parser": same.parser, "parser_options": same.parser_options} if same else {}
    return Docstring(make_sentence(" ".join(words)), parent=name, **style) if words else None  # type: ignore[arg-type]


def fence_examples(text: str) -> str:
    """Put examples into fences, which Markdown shows as code.

    >>> fence_examples("Add.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
    """
    return re.sub(r"^(>>> .*(?:\n.+)*)", r"```pycon\n\1\n```", text, flags=re.MULTILINE)


def make_sentence(text: str) -> str:
    """Write a comment as a sentence.

    >>> make_sentence("of this round")
    'Of this round.'
    """
    return capitalise(text) + ("" if text.endswith((".", "…")) else ".")


def take_entries(text: str, names: set[str]) -> tuple[str, dict[str, str]]:
    """Take the lines `name  what it is` with their continuations out of a docstring.

    >>> take_entries("Train.\\n\\nlr     the rate,\\n       per step\\nclip   a norm", {"lr", "clip"})
    ('Train.\\n', {'lr': 'The rate, per step.', 'clip': 'A norm.'})
    """
    lines: list[str] = []
    found: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        start = ENTRY.match(line)
        if start and (last or start[1] in names):
            last = start[1]
            found[last] = start[2]
        elif last and line.startswith("  "):
            found[last] += f" {line.strip()}"
        else:
            last = ""
            lines.append(line)
    return "\n".join(lines), {name: make_sentence(words) for name, words in found.items()}


def write_section(title: str, text: str, entries: dict[str, str]) -> str:
    """Return a docstring with a section of entries, before its examples.

    >>> print(write_section("Args", "Train.", {"lr": "The rate."}))
    Train.
    <BLANKLINE>
    Args:
        lr: The rate.
    """
    head, example, rest = text.partition("\n>>>")
    listed = "\n".join(f"    {name}: {words}" for name, words in entries.items())
    section = f"\n\n{title}:\n{listed}" if entries else ""
    return f"{head.rstrip()}{section}" + (f"\n{example}{rest}" if example else "")
