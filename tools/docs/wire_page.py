"""Write the page about the messages of a federation, from the tables and classes that describe them.

Each is a Flower message with named records. A table has one line `record.key  type  meaning` per entry; names in
angle brackets stand for any name. Tests compare the tables with the messages of a federation.
"""

from __future__ import annotations

from pydantic import BaseModel
from tools.docs.folder_page import make_key_table, read_table
from tools.docs.sentences import capitalise
from tools.docs.tables import make_table, say_type

from steppe.flower.federation_file import FederationFile, Own, Sample
from steppe.flower.refusals import REASONS
from steppe.flower.superlink import JOIN, LARGEST, OPEN, SMALL
from steppe.report.listing import describe_limits, format_value

HEAD = """# Messages of a federation

A [federation](../how-to/federation.md) sends Flower messages between one server and its nodes. Data and error texts
never leave a node, and a client's state leaves it only if the algorithm needs it on the server. Arrays are NumPy files
(`.npy`) inside Flower's array records; the server reads an array only if it has exactly as many bytes as the shape
and type that it expects. Nothing is pickled.

In a round, the server sends `train` to each sampled client that is present. It waits until all have replied or the
deadline has passed, checks every reply, and aggregates those that are good. A new node first gets a `query`.
"""

TERMS = """
    name                text    name of the federation
    lost_state          text    what happens if a node has lost its client's state: refuse or fresh
    cost.<key>          any     traced costs of the algorithm, as in about.json
    config.<key>        any     configuration of the run, every key
    sample.<key>        any     form of a sample, the `[data]` table of federation.toml
"""

MESSAGES = {
    "query": ("The server asks a new node which client it is. Flower's message type is `query`.", """
        terms.terms         text    the federation's terms, as JSON (below)
        terms.fingerprint   text    hash of algorithm, layout and everything in the model that is not sent
        """),
    "reply to query": ("The node has read its data and built the same model and algorithm.", """
        facts.federation    text    name of the federation
        facts.client        int     number of the node's client
        facts.samples       int     its number of training samples
        facts.steppe        text    its version of Steppe
        facts.torch         text    its version of PyTorch
        """),
    "train": ("The server sends a round's work to each sampled client. Flower's message type is `train`.", """
        arrays.x                    array   global model, as a flat vector
        arrays.x0                   array   initial model, for a client without state, if it differs from `x`
        arrays.down/<part>/<name>   array   what a part broadcasts
        arrays.buffers/<name>       array   running statistics of batch norm
        terms.terms                 text    the federation's terms, as JSON (below)
        terms.fingerprint           text    hash of algorithm, layout and everything in the model that is not sent
        terms.round                 int     number of the round, from 0
        terms.lr                    float   learning rate of the round
        terms.counted               int     round of this client's last reply that was counted; −1 if there is none
        terms.mirrored              bool    whether the client must also send its state
        """),
    "reply to train": ("The client's update. Its state stays on the node.", """
        arrays.update               array   w − x, or what a part makes of it
        arrays.up/<part>/<name>     array   what a part uploads in addition
        arrays.buffers/<name>       array   running statistics after the round
        arrays.state/<part>/<name>  array   client's state, only if `mirrored` asks for it (FedScar)
        facts.federation            text    name of the federation
        facts.client                int     number of the client
        facts.round                 int     number of the round, from 0
        facts.fingerprint           text    the fingerprint that the server sent
        facts.samples               int     its number of training samples, which sets its weight
        facts.loss                  float   its mean loss during the round
        facts.drift                 float   norm of w − x
        facts.seconds               float   seconds of training
        """),
    "refusal": ("Sent instead of any reply: only a code, because a sentence could quote the node's files.", """
        refusal.code        text    one of the codes below
        """),
}  # fmt: skip


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
        kind = ", ".join(filter(None, [say_type(field.annotation), describe_limits(field.metadata)]))
        default = "required" if field.is_required() else f"`{format_value(field.default)}`"
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
