"""The description of what goes over the wire is that of the messages of a federation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message
from tools.docs.folder_page import read_table
from tools.docs.wire_page import MESSAGES, TERMS

from steppe.flower.messages import REFUSAL
from tests.flower import memory

KINDS: dict[str, Any] = {"text": str, "int": int, "float": float, "bool": bool}


class Watching(memory.MemoryGrid):
    """A grid that keeps every message by its kind."""

    seen: dict[str, dict[str, Any]]

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            self.keep(message.metadata.message_type, message)
        return super().push_messages(messages)

    def keep(self, kind: str, message: Message) -> None:
        for record, content in message.content.items():
            entries = {name: "array" if isinstance(content, ArrayRecord) else content[name] for name in content}
            self.seen.setdefault(kind, {}).update({f"{record}.{name}": value for name, value in entries.items()})


def watch(where: Path, algorithm: str, damage: bool = False) -> dict[str, dict[str, Any]]:
    settings, config = memory.settings_of({"algorithm": algorithm}, **({"enough": 2} if damage else {}))
    nodes = memory.node_folders(where / "nodes", config)
    if damage:
        Path(nodes[9000]["data"]).write_bytes(b"no arrays")
    grid = Watching(nodes, own=settings.own)
    grid.seen = {}

    def keep(reply: Message, node: int) -> Message:
        kind = "refusal" if REFUSAL in reply.content else f"reply to {reply.metadata.message_type}"
        grid.keep(kind, reply)
        return reply

    grid.spoil = keep
    memory.launch(where, {"algorithm": algorithm}, grid=grid, terms={"enough": 2} if damage else None)
    return grid.seen


def test_every_entry_is_described_and_every_description_has_an_entry(tmp_path: Path) -> None:
    seen: dict[str, dict[str, Any]] = {}
    for algorithm, damage in (("fedscar", False), ("scaffold", False), ("fedavg", True)):
        for kind, entries in watch(tmp_path / algorithm, algorithm, damage).items():
            seen.setdefault(kind, {}).update(entries)
    assert set(seen) == set(MESSAGES)
    for kind, entries in seen.items():
        table = [
            (re.compile(re.sub(r"<\w+>", "[^/]+", re.escape(key.path))), key) for key in read_table(MESSAGES[kind][1])
        ]
        for path, value in entries.items():
            described = [key for pattern, key in table if pattern.fullmatch(path)]
            assert described, (kind, path)
            assert isinstance(value, KINDS.get(described[0].kind, str)), (kind, path, value)
        unused = {key.path for pattern, key in table if not any(map(pattern.fullmatch, entries))}
        assert unused <= {"arrays.buffers/<name>"}, (kind, unused)  # of batch norm, which test_parity.py sends
    terms = json.loads(seen["query"]["terms.terms"])
    assert set(terms) == {key.path.partition(".")[0] for key in read_table(TERMS)}
