"""The page about the files of a run's folder, from the tables that describe them."""

from __future__ import annotations

from tools.docs.sentences import capitalise
from tools.docs.tables import make_table

from steppe.runs.file_schemas import FILES, TABLES, Key, read_table

HEAD = """# Files of a run

`steppe run --out FOLDER` and `steppe.run(out=FOLDER)` write one folder per run. A comparison or sweep has one
folder per point, and in it one such folder per seed (`seed-0`, `seed-1`, …). Every file is written under a
temporary name and renamed, except `rounds.jsonl`, which is appended to. JSON files have null where a number is not
finite. Read a folder with [`steppe.load`](api/run.md#steppe.load), or with any program that reads JSON and
safetensors.

"""


def make_page() -> str:
    """Return the page."""
    text = HEAD + make_table(["file", "content"], [[f"`{name}`", what] for name, what in FILES.items()]) + "\n"
    text += "\nA key with a dot is nested; `[]` is an entry of a list; `<name>` stands for any name.\n"
    for file, table in TABLES.items():
        text += (
            f"\n## {file.replace('<number>', '…')}\n\n{FILES.get(file, '')}\n\n{make_key_table(read_table(table))}\n"
        )
    return text


def make_key_table(keys: list[Key]) -> str:
    """Return the table of a file's or message's keys."""
    return make_table(["key", "type", "meaning"], [[f"`{key.path}`", key.kind, say(key.meaning)] for key in keys])


def say(meaning: str) -> str:
    """Write a description as a sentence.

    >>> say("norm of w − x")
    'Norm of w − x.'
    """
    return capitalise(meaning) + "."
