"""The protocol of an executor, which trains a round's clients: here, in processes, on a GPU, or on remote nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from steppe.core.algorithm import States
from steppe.core.client import Reply, Sent
from steppe.data.federation import Federation


class Answers(NamedTuple):
    """The answers of a round's clients."""

    ids: list[int]  # the clients that answered, in the order of the replies
    replies: Reply  # stacked
    sizes: list[int]  # training samples of each of them
    samples: int  # training samples of all clients, including those that did not take part
    facts: dict[str, Any]  # further entries of the round's record


class Executor(Protocol):
    """An object that trains clients. Algorithms do not depend on which executor runs them."""

    trusted: bool  # whether the drifts in its replies were measured by this program and need no check

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Train these clients, each from its state."""

    def close(self) -> None:
        """Release processes and memory."""


def answer_for_all(federation: Federation, ids: Sequence[int], replies: Reply) -> Answers:
    """Return the answers of an executor whose clients all answer."""
    return Answers(list(ids), replies, [federation.sizes[i] for i in ids], federation.samples, {})
