"""Write the page about the messages of a federation, from the tables and classes that describe them."""

from __future__ import annotations

from pydantic import BaseModel
from tools.docs.folder_page import make_key_table
from tools.docs.sentences import capitalise
from tools.docs.tables import make_table, say_range, say_type, show

from steppe.flower.federation_file import FederationFile, Own, Sample
from steppe.flower.message_schemas import MESSAGES, TERMS
from steppe.flower.refusals import REASONS
from steppe.flower.superlink import JOIN, LARGEST, OPEN, SMALL
from steppe.runs.file_schemas import read_table

HEAD = """# Messages of a federation

A [federation](../how-to/federation.md) sends Flower messages between one server and its nodes. Data and error texts
never leave a node, and a client's state leaves it only if the algorithm needs it on the server. Arrays are NumPy files
(`.npy`) inside Flower's array records; the server reads an array only if it has exactly as many bytes as the shape
and type that it expects. Nothing is pickled.

In a round, the server sends `train` to each sampled client that is present. It waits until all have replied or the
deadline has passed, checks every reply, and aggregates those that are good. A new node first gets a `query`.
"""


def make_page() -> str:
    """Return the page."""
    text = HEAD
    for kind, (what, table) in MESSAGES.items():
        text += f"\n## {capitalise(kind)}\n\n{what}\n\n{make_key_table(read_table(table))}\n"
        if kind == "refusal":
            rows = [[f"`{code}`", capitalise(why) + "."] for code, why in REASONS.items()]
            text += "\n" + make_table(["code", "what the operator reads"], rows) + "\n"
    text += f"\n## Terms\n\nThe JSON text in `terms.terms`.\n\n{make_key_table(read_table(TERMS))}\n"
    text += "\n## federation.toml\n\nThe operator's file, from which the terms are made.\n\n" + describe(FederationFile)
    text += "\n### `[data]`\n\n" + describe(Sample) + "\n### `[own]`\n\n" + describe(Own)
    return text + _paths()


def describe(model: type[BaseModel]) -> str:
    """Return the table of a class of settings."""
    rows = []
    for name, field in model.model_fields.items():
        kind = ", ".join(filter(None, [say_type(field.annotation), say_range(field.metadata)]))
        default = "required" if field.is_required() else f"`{show(field.default)}`"
        nested = isinstance(field.default, BaseModel) or "Sample" in kind
        meaning = field.description or "your own Python, a separate table"
        rows.append([f"`{name}`", capitalise(meaning) + ".", "table" if nested else kind,
                     "" if nested else default])  # fmt: skip
    return make_table(["key", "meaning", "type and range", "default"], rows) + "\n"


def _paths() -> str:
    rows = [[f"`{path}`", f"{LARGEST.get(path, SMALL):,}", "nodes without keys" if path in JOIN else "all nodes"]
            for path in (*OPEN, *JOIN)]  # fmt: skip
    return ("\n## HTTP paths of the nodes' port\n\nThe nodes' port of the SuperLink answers POST requests to these "
            "paths of Flower's fleet API and refuses all others ([why](../decisions/014-two-doors-and-one-app.md)).\n\n"
            + make_table(["path", "largest request in bytes", "for"], rows) + "\n")  # fmt: skip
