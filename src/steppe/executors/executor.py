"""What trains a round's clients: in this process, in others, all at once on a GPU, or on the nodes of a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from steppe.core.algorithm import States
from steppe.core.client import Reply, Sent
from steppe.data.federation import Federation


class Answers(NamedTuple):
    """What came back from a round's clients."""

    ids: list[int]  # who answered, in the order of the replies
    replies: Reply  # stacked
    sizes: list[int]  # training samples of each of them
    samples: int  # of all clients together, also of those that took no part
    facts: dict[str, Any]  # what else the round's record says


class Executor(Protocol):
    """Trains clients. No algorithm knows which executor runs it."""

    trusted: bool  # whether the drifts in its replies need no checking, because this program measured them

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Train these clients, each from its state."""

    def close(self) -> None:
        """Give back processes and memory."""


def everybody(federation: Federation, ids: Sequence[int], replies: Reply) -> Answers:
    """The answers of an executor whose clients all answer."""
    return Answers(list(ids), replies, [federation.sizes[i] for i in ids], federation.samples, {})
