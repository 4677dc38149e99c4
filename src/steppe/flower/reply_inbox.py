"""Read replies from Flower's grid, one by one and within limits.

Flower's own `Grid.pull_messages` waits for a message whose objects never arrive, builds an array from as many pieces
as its header lists, and may raise an exception that loses all other replies. Here a reply is read when it is complete,
and a bad reply does not affect the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, inflate_object_from_contents
from google.protobuf.message import DecodeError

from steppe.core.errors import SteppeError

DEPTH = 8  # of a reply's objects: message, records, record, array, piece
# What Flower's reader raises for bad bytes.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, DecodeError)


@dataclass
class Arriving:
    """A reply whose objects are arriving."""

    message_id: str
    wanted: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class Inbox:
    """Replies to the messages that were sent, each no larger than `limit` bytes."""

    def __init__(self, grid: Grid, limit: int) -> None:
        self.grid, self.limit = grid, limit
        self.arriving: dict[str, Arriving] = {}  # by the message that it answers

    def pull(self, asked: Sequence[str]) -> Iterator[tuple[str, Message | SteppeError]]:
        """Return (answered message, reply or why it cannot be read) for all replies that have arrived."""
        client: Any = self.grid._runtime_client  # type: ignore[attr-defined]
        # Flower returns a reply once, and afterwards reports that there is none.
        news = client.PullMessages(PullAppMessagesRequest(message_ids=[a for a in asked if a not in self.arriving]))
        for message, tree in zip(news.messages_list, news.message_object_trees, strict=True):
            answered = message.metadata.reply_to_message_id
            if answered not in asked:
                continue
            try:
                self.arriving[answered] = Arriving(message.metadata.message_id, list_objects(tree, self.limit))
            except SteppeError as error:
                yield answered, error
        for answered in [a for a in asked if a in self.arriving]:
            try:
                if not self._complete(client, self.arriving[answered]):
                    continue
                found: Message | SteppeError = read_message(self.arriving[answered], self.limit)
            except httpx.HTTPError:  # an error of the SuperLink, not of the node
                raise
            except Exception as error:
                found = error if isinstance(error, SteppeError) else Unreadable(error)
            del self.arriving[answered]
            yield answered, found

    def forget(self, asked: Sequence[str]) -> None:
        """Ignore replies to these messages from now on."""
        for answered in asked:
            self.arriving.pop(answered, None)

    def _complete(self, client: Any, reply: Arriving) -> bool:
        """Fetch the objects of a reply that have arrived; return whether it is complete."""
        run_id = self.grid.run.run_id
        for name in [n for n in reply.wanted if n not in reply.contents]:
            told = client.PullObject(PullObjectRequest(node=self.grid.node, run_id=run_id, object_id=name))  # type: ignore[attr-defined]
            if not told.object_found:
                raise SteppeError("the reply was announced but never sent")
            if not told.object_available:
                return False
            reply.contents[name] = told.object_content
            reply.size += len(told.object_content)
            if reply.size > self.limit:
                raise SteppeError(f"the reply is larger than {self.limit:,} bytes")
        client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(
            node=self.grid.node, run_id=run_id, message_object_id=reply.message_id))  # type: ignore[attr-defined]  # fmt: skip
        return True


class Unreadable(SteppeError):
    """A reply that is not a Flower message; only the error's type is given, because its text comes from the node."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the reply cannot be read ({type(error).__name__})")


def list_objects(tree: ObjectTree, limit: int) -> list[str]:
    """Return the objects that a reply announces; refuse more than one per kilobyte of the limit."""
    names = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
    if len(names) > max(1000, limit // 1024):
        raise SteppeError(f"the reply announces {len(names):,} objects, too many for {limit:,} bytes")
    return names


def read_message(reply: Arriving, limit: int) -> Message:
    """Return the message after adding up its size from its headers, which may list a piece any number of times."""
    try:
        size = measure_size(reply.message_id, reply.contents, {})
        message = inflate_object_from_contents(reply.message_id, reply.contents) if size <= limit else None
    except MALFORMED as error:
        raise Unreadable(error) from error
    if message is None:
        raise SteppeError(f"the reply unpacks to more than {limit:,} bytes")
    if not isinstance(message, Message):
        raise SteppeError("the reply is not a message")
    message.metadata.__dict__["_message_id"] = reply.message_id
    return message


def measure_size(name: str, contents: dict[str, bytes], known: dict[str, int], depth: int = 0) -> int:
    """Return the bytes of an object and of everything that it refers to, once per reference."""
    if depth > DEPTH:
        raise SteppeError("the reply is nested too deeply")
    if name not in known:
        kind, children, _ = get_object_head_values_from_object_content(contents[name])
        sizes = [measure_size(child, contents, known, depth + 1) for child in children]
        listed = sizes
        if kind in ("Array", "ArrayRecord", "RecordDict"):
            told = json.loads(get_object_body(contents[name], inflatable_class_registry[kind]))
            if kind == "Array":
                listed = [sizes[i] for i in told["arraychunk_ids"]]
            else:
                place = dict(zip(children, sizes, strict=True))
                listed = [place[child] for child in told.values()]
        known[name] = len(contents[name]) + sum(listed)
    return known[name]
